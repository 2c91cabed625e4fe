"""A run in steady state, as represented in the closed forms and the event simulator, and its possible layouts.

Quantities are per engine, not per GPU: an engine of several GPUs is one batch. Lengths are generated tokens only.
"""

import math
from dataclasses import dataclass, replace
from typing import Final, Literal

from rlscope.model.decode.curves import RooflineCurve
from rlscope.model.lengths import LengthLaw
from rlscope.model.policies import Delivery, QueuePolicy, StalenessPolicy

RUNNING_FACTORS: Final = (0.25, 0.35, 0.5, 0.71, 1.0, 1.41, 2.0, 2.83, 4.0)
"""Running requests to try, relative to the current limit, in half doublings: finer steps differ by less than the error
of the fit."""

Side = Literal["trainer_gpus", "sampler_gpus"]
"""A side of a run, by the GPUs of a layout that it has."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Requirements of one training step."""

    lengths: LengthLaw
    prompt_tokens: float
    """Mean context besides the response: the prompt, and what environments added, averaged over the response."""
    group_size: int
    samples_per_step: int
    """Samples between two publications."""
    trained_prompt_tokens: float = 0.0
    """Prompt tokens per sample that the trainer's token count includes; 0 if it counts responses only."""
    kept_ratio: float = 1.0
    """Samples trained over samples that are neither dropped as stale nor lost; below 1 if groups are filtered."""
    environment_s: float = 0.0
    """Mean seconds of a sample outside the engine (tools and reward)."""
    turnaround_s: float = 0.0
    """Seconds of environment_s after the sample's last token; the rest is somewhere before it."""
    delivered_after_ratio: float = 1.0
    """Share of turnaround_s after which the sample is delivered; for the rest only its place stays empty."""
    environment_place_held: bool = True
    """Whether a sample that will go on holds its place among the running requests of its engine meanwhile."""
    environment_kv_held: bool = False
    """Whether the KV of a sample that will go on stays in its engine's cache meanwhile."""
    environment_kv_voided: bool = False
    """Whether updates that void the cache void that KV too, so that it is recomputed on return."""
    environment_waits_s: tuple[float, ...] = ()
    """Variation of those waits: equally likely values, used relative to their own mean. Empty: all alike."""
    prefetched_batches: float = 0.0
    """Batches that the trainers hold besides the one they train on: a step starts once they are taken."""
    delivery: Delivery = "group"
    batches_per_version: int = 1
    """Equal batches that the trainers take one after the other, and train on, between two publications."""

    @property
    def place_held_s(self) -> float:
        """Mean seconds in which a sample outside holds its place; it always does after its last token."""
        return self.environment_s if self.environment_place_held else min(self.turnaround_s, self.environment_s)

    @property
    def unit_samples(self) -> int:
        """Samples that are queued, taken and dropped as one."""
        return self.group_size if self.delivery == "group" else 1

    @property
    def samples_per_batch(self) -> float:
        """Samples that the trainers take at a time."""
        return self.samples_per_step / self.batches_per_version


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine of the run; all engines are assumed to be alike."""

    gpus: int
    curve: RooflineCurve
    max_running: int
    """Maximum requests in its batch: the setting, or the maximum that the run showed."""
    kv_capacity_tokens: float | None = None
    prefill_tokens_per_s: float | None = None
    """Prompt tokens per second during prefill; None: prefill is assumed to be free."""
    prefill_pass_s: float = 0.0
    """Seconds of a pass that computes prompts, however many, besides the time for their tokens."""


CHECKPOINTS_PHASE: Final = "checkpoints and evaluation"
"""Name of the phase that saves, evaluates and does other recorded work."""


@dataclass(frozen=True, slots=True)
class TrainerPhase:
    """Part of a trainer's step other than the forward and backward pass: log-probabilities, a checkpoint, ..."""

    name: str
    step_s: float
    """Mean seconds per step, with the run's number of trainer GPUs."""
    shrinks_with_gpus: bool
    every_steps: int = 1
    """Steps from one occurrence to the next; always 1 if it shrinks with GPUs."""


@dataclass(frozen=True, slots=True)
class Trainer:
    """The trainer side as measured, with its assumed scaling."""

    tokens_per_gpu_s: float
    """Tokens per second and GPU of the forward and backward pass, with `seen_gpus` GPUs."""
    seen_gpus: int
    scaling_exponent: float = 1.0
    """Exponent g of the trainers' total rate: tokens_per_gpu_s * seen_gpus * (gpus / seen_gpus) ** g."""
    overhead_s: float = 0.0
    """Seconds of a step that do not depend on its tokens or GPUs."""
    phases: tuple[TrainerPhase, ...] = ()

    def uneven_s(self, step: int) -> float:
        """Seconds of all phases in a step less their mean; the first step is 1, and each occurs in mid-period."""
        return sum(
            each.step_s * (each.every_steps * ((step + each.every_steps // 2) % each.every_steps == 0) - 1)
            for each in self.phases
        )


@dataclass(frozen=True, slots=True)
class WeightUpdateCost:
    """Cost of one publication."""

    engine_pause_s: float = 0.0
    """Seconds that each engine generates nothing."""
    trainer_blocked_s: float = 0.0
    """Seconds that the trainer cannot take the next batch."""
    delay_s: float = 0.0
    """Seconds from the end of the trainer's step to the first token of the new version, excluding the pause."""
    kv_kept: bool = True
    """False: the resident KV is recomputed at the prefill rate."""

    @property
    def seconds(self) -> float:
        """Seconds from a step's end until both sides continue: the trainers' wait, or delay plus pause if longer."""
        return max(self.trainer_blocked_s, self.delay_s + self.engine_pause_s)


@dataclass(frozen=True, slots=True)
class Admission:
    """Limits that hold the samplers back or drop samples. A limit that is None does not apply."""

    queue_capacity_samples: int | None = None
    """Maximum samples in the queue."""
    queue_policy: QueuePolicy = "wait"
    """Effect of a full queue on new samples."""
    max_staleness: int | None = None
    """Cap on the staleness of a sample's oldest token, in versions; None if there is no cap."""
    max_in_flight_samples: int | None = None
    """Cap on running and queued samples together."""
    max_running_samples: int | None = None
    """Cap on samples that run or are outside, over all engines; samples that wait for their group do not count."""
    staleness_policy: StalenessPolicy = "admission"
    """Enforcement of `max_staleness`; without a cap it has no meaning."""
    waits_for_queued: bool = True
    """Whether publications that wait for the cap also wait for queued samples, not only for running ones."""
    in_flight_until_trained: bool = False
    """Whether `max_in_flight_samples` counts samples until their step ends, rather than until the trainer takes
    them."""

    @property
    def drops_stale(self) -> bool:
        """Whether samples beyond the staleness cap are dropped."""
        return self.max_staleness is not None and self.staleness_policy == "drop"

    @property
    def waits_for_cap(self) -> bool:
        """Whether a side waits to keep the staleness cap, so that nothing is dropped."""
        return self.max_staleness is not None and self.queue_policy == "wait" and self.staleness_policy != "drop"

    @property
    def bounds_queue_age(self) -> bool:
        """Whether a side waits so that not even queued samples exceed the staleness cap."""
        return self.waits_for_cap and (self.staleness_policy == "admission" or self.waits_for_queued)


@dataclass(frozen=True, slots=True)
class System:
    """Everything that a layout does not change."""

    workload: Workload
    engine: Engine
    trainer: Trainer
    update: WeightUpdateCost = WeightUpdateCost()
    admission: Admission = Admission()


@dataclass(frozen=True, slots=True)
class Layout:
    """Split of the GPUs, and the number of requests that an engine may run at once."""

    trainer_gpus: int
    """Trainer GPUs."""
    sampler_gpus: int
    """Sampler GPUs."""
    max_running: int
    """Limit on running requests of an engine."""

    @property
    def gpus(self) -> int:
        """GPUs of both sides."""
        return self.trainer_gpus + self.sampler_gpus


@dataclass(frozen=True, slots=True)
class Granularity:
    """Smallest units in which GPUs can be moved."""

    gpus_per_engine: int
    gpus_per_trainer_replica: int = 1
    gpus_per_node: int = 1
    """Above 1, a node belongs to one side as a whole."""


def possible_layouts(gpus: int, granularity: Granularity, running: tuple[int, ...]) -> tuple[Layout, ...]:
    """Return every split of `gpus` into at least one trainer replica and one engine, by each limit on running requests.

    GPUs that make no whole engine stay idle; a split that leaves a whole engine idle is not listed.
    """
    nodes = granularity.gpus_per_node
    step = math.lcm(granularity.gpus_per_trainer_replica, nodes)
    layouts: list[Layout] = []
    for trainer_gpus in range(step, gpus, step):
        left = (gpus - trainer_gpus) // nodes * nodes
        sampler_gpus = left // granularity.gpus_per_engine * granularity.gpus_per_engine
        if sampler_gpus:
            layouts += [Layout(trainer_gpus, sampler_gpus, limit) for limit in running]
    return tuple(layouts)


def smaller_layouts(today: Layout, granularity: Granularity, side: Side) -> tuple[Layout, ...]:
    """Return the layouts with fewer GPUs on one side, the smallest first; a replica or an engine is left."""
    pieces: dict[Side, int] = {
        "trainer_gpus": granularity.gpus_per_trainer_replica,
        "sampler_gpus": granularity.gpus_per_engine,
    }
    unit, now = math.lcm(pieces[side], granularity.gpus_per_node), getattr(today, side)
    return tuple(replace(today, **{side: gpus}) for gpus in reversed(range(now - unit, unit - 1, -unit)))


def running_limits(today: int, safe_batch: float | None) -> tuple[int, ...]:
    """Limits on running requests to try: around the current one, up to what the KV cache holds safely.

    The current limit is always included. The others are round numbers, as one would set them: 2**k or 3 * 2**k.
    """
    most = float("inf") if safe_batch is None else max(1.0, safe_batch)
    tried = {_round_limit(today * factor) for factor in RUNNING_FACTORS if factor != 1.0}
    return tuple(sorted({limit for limit in tried if limit <= most} | {today}))


def _round_limit(limit: float) -> int:
    """Return the nearest of 1, 2, 3, 4, 6, 8, 12, 16, 24, ..., by ratio."""
    below = 2 ** max(0, math.floor(math.log2(limit)))
    near = (below, 3 * below // 2, 2 * below)
    return min(near, key=lambda each: abs(math.log(each / limit)))
