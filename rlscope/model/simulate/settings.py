"""What a simulation is told besides the system and the layout, and which combinations of them can not run."""

import math
from dataclasses import dataclass
from typing import Final, Literal

from rlscope.model.system import Layout, System

Publication = Literal["in_flight", "drained", "capped"]
"""How new weights reach the engines.

`in_flight`: each takes them after the pass it is in. `drained`: each finishes what it runs first. `capped`: as
in_flight, but the trainer keeps `max_staleness`: before a step it waits for running groups that would be too old after
the next publication, and it skips a publication that would leave one behind. No token is ever over the cap.
"""
QueueOrder = Literal["fifo", "oldest_first"]
"""What the trainer takes first: the group queued first, or the one with the oldest token."""
Dispatch = Literal["least_loaded", "pulled"]
"""Who gives samples to engines.

`least_loaded`: a router, sample by sample, to the engine with the fewest requests; finished groups wait in one line for
room in the queue. `pulled`: each engine takes whole groups between its passes, for as long as it has free places and
nothing holds it; it holds its own finished groups back, and starts none meanwhile.
"""


@dataclass(frozen=True, slots=True)
class Settings:
    """The manner of a simulated run."""

    publication: Publication = "in_flight"
    queue_order: QueueOrder = "fifo"
    """A capped publication always takes the oldest first."""
    dispatch: Dispatch = "least_loaded"
    engine_slowness: tuple[float, ...] | None = None
    """Factor on each engine's times for passes and prefill; None: all 1."""
    step_noise: float = 0.0
    """Standard deviation of the log of each step's time; the mean factor is 1."""


DEFAULTS: Final = Settings()
MOST_PLACES: Final = 1_000_000
"""Requests at once that are still simulated: more than any run has, fewer than fill the memory."""


def refuse_what_can_not_run(system: System, layout: Layout, settings: Settings) -> None:
    """ValueError, saying which limit no step, or no sample, could ever pass."""
    workload, admission, engine = system.workload, system.admission, system.engine
    engines = layout.sampler_gpus // engine.gpus
    if engines < 1 or layout.trainer_gpus < 1 or layout.running_per_engine < 1:
        raise ValueError(f"{layout} has no whole engine, no trainer or no request to run")
    if engines * layout.running_per_engine > MOST_PLACES:
        raise ValueError(
            f"{engines * layout.running_per_engine} requests at once are more than the {MOST_PLACES} at most"
        )
    slowness = settings.engine_slowness
    if slowness is not None and (len(slowness) != engines or min(slowness) <= 0):
        raise ValueError(f"{len(slowness)} slowness factors for {engines} engines; each must be above 0")
    batch = math.ceil(workload.samples_per_step / workload.group_size)
    limits = {
        "the queue's capacity": admission.queue_capacity_samples,
        "max_in_flight_samples": admission.max_in_flight_samples,
    }
    for name, limit in limits.items():
        if limit is not None and limit // workload.group_size < batch:
            raise ValueError(f"{name} of {limit} samples holds fewer whole groups than a step: none could ever start")
    longest = workload.prompt_tokens + workload.lengths.max_tokens
    if engine.kv_capacity_tokens is not None and longest > engine.kv_capacity_tokens:
        raise ValueError(f"a sample of {longest:.0f} tokens does not fit into {engine.kv_capacity_tokens:.0f}")
    _refuse_contradictions(system, settings)


def _refuse_contradictions(system: System, settings: Settings) -> None:
    admission = system.admission
    if not 0.0 < system.workload.kept_ratio <= 1.0:
        raise ValueError(f"a kept_ratio of {system.workload.kept_ratio} trains nothing, or more than there is")
    if admission.queue_policy == "drop_by_age" and admission.max_staleness is None:
        raise ValueError("drop_by_age needs a max_staleness")
    if admission.queue_policy == "drop_oldest" and admission.queue_capacity_samples is None:
        raise ValueError("drop_oldest needs a capacity of the queue")
    if settings.publication == "capped" and not (admission.max_staleness or 0) >= 1:
        raise ValueError("a capped publication needs a max_staleness of 1 or more; 0 is a drained one")
    ahead = system.workload.batches_ahead
    if settings.publication == "capped" and ahead:
        raise ValueError("a capped publication is known only of trainers that take no batches ahead")
    if admission.queue_policy != "drop_by_age" and ahead > (admission.max_staleness or math.inf):
        raise ValueError(f"{ahead} batches ahead are older than a max_staleness of {admission.max_staleness}")
    if settings.publication == "capped" and admission.queue_policy != "wait":
        raise ValueError("a capped publication throws nothing away: its queue policy is wait")
