"""Rollout scheduling of a simulation, and the combinations with system and layout that cannot run."""

import math
from dataclasses import dataclass
from typing import Final

from rlscope.model.policies import Dispatch, QueueOrder, Taking
from rlscope.model.system import Layout, System


@dataclass(frozen=True, slots=True)
class Settings:
    """Rollout scheduling of a simulated run, besides its limits. Engines take new weights after the current pass."""

    queue_order: QueueOrder = "fifo"
    """Order in which the trainer takes samples from the queue. Ignored if publications also wait for queued samples to
    keep the staleness cap: the oldest is then always first."""
    dispatch: Dispatch = "least_loaded"
    """Component that assigns samples to the engines."""
    dequeue: Taking = "batch"
    """Way in which the trainers take samples from the queue."""
    filters_taken: bool = False
    """Whether the trainers filter groups that they took; else groups are filtered before they enter the queue."""
    engine_slowness: tuple[float, ...] | None = None
    """Factor on each engine's times for passes and prefill, one per engine; None: all 1."""
    step_noise: float = 0.0
    """Standard deviation of the log of each step's time; the mean factor is 1."""


DEFAULTS: Final = Settings()
MOST_PLACES: Final = 1_000_000
"""Maximum concurrent requests of a simulation, over all engines: more than any run has, too few to fill the memory."""


def refuse_what_can_not_run(system: System, layout: Layout, settings: Settings) -> None:
    """Raise ValueError for a limit that no step, or no sample, could ever pass; the message names it."""
    workload, admission, engine = system.workload, system.admission, system.engine
    engines = layout.sampler_gpus // engine.gpus
    if engines < 1 or layout.trainer_gpus < 1 or layout.max_running < 1:
        raise ValueError(f"{layout} has no whole engine, no trainer or no request to run")
    batch = math.ceil(workload.samples_per_batch / workload.unit_samples)
    # Samples taken one by one leave the queue before the batch is full, and also the in-flight count, if it ends there.
    queued = 1 if settings.dequeue == "as_they_come" else batch
    in_flight = batch if admission.in_flight_until_trained else queued
    limits = {
        "the queue's capacity": (admission.queue_capacity_samples, queued),
        "max_in_flight_samples": (admission.max_in_flight_samples, in_flight),
    }
    for name, (limit, least) in limits.items():
        if limit is not None and limit // workload.unit_samples < least:
            raise ValueError(f"{name} of {limit} samples holds fewer whole groups than a step: none could ever start")
    longest = workload.prompt_tokens + workload.lengths.max_tokens
    if engine.kv_capacity_tokens is not None and longest > engine.kv_capacity_tokens:
        raise ValueError(f"a sample of {longest:.0f} tokens does not fit into {engine.kv_capacity_tokens:.0f}")
    prefetched = workload.prefetched_batches
    if admission.staleness_policy != "drop" and prefetched > (admission.max_staleness or math.inf):
        raise ValueError(f"{prefetched} prefetched batches are older than a max_staleness of {admission.max_staleness}")
    if admission.staleness_policy == "publication_waits" and not admission.max_staleness:
        raise ValueError("publication_waits needs a max_staleness of 1 or more")
    if admission.staleness_policy == "publication_waits" and prefetched:
        raise ValueError("publication_waits is simulated only for trainers without prefetched batches")
