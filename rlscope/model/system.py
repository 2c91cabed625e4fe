"""A run in steady state, as the closed forms and the event simulator see it, and the layouts it could have.

Quantities are per engine, not per GPU: an engine of several GPUs is one batch. Lengths are generated tokens only.
"""

import math
from dataclasses import dataclass
from typing import Final, Protocol

from rlscope.model.arrays import Reals
from rlscope.model.lengths import LengthLaw
from rlscope.model.policies import Delivery, QueuePolicy, StalenessPolicy

RUNNING_FACTORS: Final = (0.25, 0.35, 0.5, 0.71, 1.0, 1.41, 2.0, 2.83, 4.0)
"""Running requests to try over today's limit, in half doublings: finer steps differ by less than the fit knows."""


class DecodeCurve(Protocol):
    """Seconds of one decode pass of one engine: `pass_s(b) + kv_s_per_token * K`, affine in the resident tokens K."""

    @property
    def kv_s_per_token(self) -> float:
        """Seconds that each token resident in the KV cache adds to a pass."""
        ...

    def pass_s(self, running: Reals | float) -> Reals:
        """Seconds of a pass over `running` requests that hold no KV; grows with `running`. Broadcasts."""
        ...


@dataclass(frozen=True, slots=True)
class Workload:
    """What one training step needs."""

    lengths: LengthLaw
    prompt_tokens: float
    """Mean prompt length."""
    group_size: int
    samples_per_step: int
    """Samples between two publications."""
    trained_prompt_tokens: float = 0.0
    """Prompt tokens of a sample that the trainer's token count includes: 0 where it counts responses only."""
    kept_ratio: float = 1.0
    """Samples trained over samples that are neither dropped as stale nor lost: below 1 where groups are filtered."""
    environment_s: float = 0.0
    """Mean seconds of a sample outside the engine, tools and reward, while it holds its place in the concurrency."""
    turnaround_s: float = 0.0
    """Of those, seconds after its last token; the others are somewhere before it."""
    delivered_after_ratio: float = 1.0
    """Share of that after which the sample is delivered; for the rest only its place stays empty."""
    environment_kv_held: bool = False
    """Whether the KV of a sample that will go on stays in its engine's cache meanwhile."""
    environment_kv_voided: bool = False
    """Whether updates that void the cache void that KV too, so that it is computed again on return."""
    environment_waits_s: tuple[float, ...] = ()
    """How those waits vary: equally likely ones, taken relative to their own mean. Empty: all alike."""
    prefetched_batches: float = 0.0
    """Batches that the trainers hold besides the one they train on: a step starts once they are taken."""
    delivery: Delivery = "group"
    batches_per_version: int = 1
    """Equal batches that the trainers take one after the other, and train on, between two publications."""

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
    """One engine of the run; all are taken to be alike."""

    gpus: int
    curve: DecodeCurve
    max_running: int
    """Most requests in its batch: the setting, or what the run showed."""
    kv_capacity_tokens: float | None = None
    prefill_tokens_per_s: float | None = None
    """Prompt tokens per second while it prefills; None: they are taken as free."""
    prefill_pass_s: float = 0.0
    """Seconds of a pass that computes prompts, however many, besides what their tokens take."""


CHECKPOINTS_PHASE: Final = "checkpoints and evaluation"
"""The name of the phase that saves, evaluates and does what else was recorded."""


@dataclass(frozen=True, slots=True)
class TrainerPhase:
    """Time of a trainer's step that is not the forward and backward pass: log-probabilities, a checkpoint, ..."""

    name: str
    step_s: float
    """Seconds a step, with the trainer GPUs of the run."""
    shrinks_with_gpus: bool


@dataclass(frozen=True, slots=True)
class Trainer:
    """The trainer side as it was seen, and how it is taken to scale."""

    tokens_per_gpu_s: float
    """Tokens per second and GPU of the forward and backward pass, with `seen_gpus` GPUs."""
    seen_gpus: int
    scaling_exponent: float = 1.0
    """g in: all trainers' rate = tokens_per_gpu_s * seen_gpus * (gpus / seen_gpus) ** g."""
    overhead_s: float = 0.0
    """Seconds of a step that do not depend on its tokens or GPUs."""
    phases: tuple[TrainerPhase, ...] = ()


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """What one publication costs."""

    engine_pause_s: float = 0.0
    """Each engine generates nothing for so long."""
    trainer_blocked_s: float = 0.0
    """The trainer cannot take the next batch for so long."""
    delay_s: float = 0.0
    """From the end of the trainer's step to the first token of the new version, besides the pause."""
    kv_kept: bool = True
    """False: the resident KV is computed again, at the prefill rate."""


@dataclass(frozen=True, slots=True)
class Admission:
    """What holds the samplers back, or drops samples. None: no such limit."""

    queue_capacity_samples: int | None = None
    queue_policy: QueuePolicy = "wait"
    max_staleness: int | None = None
    """Cap on the staleness of a sample's oldest token, in versions."""
    max_in_flight_samples: int | None = None
    """Cap on running and queued samples together."""
    max_running_samples: int | None = None
    """Cap on the samples that run or are outside, over all engines; those that wait for their group do not count."""
    staleness_policy: StalenessPolicy = "admission"
    """How `max_staleness` is kept; without a cap it means nothing."""
    in_flight_until_trained: bool = False
    """Whether `max_in_flight_samples` counts samples until their step ends, and not until the trainer takes them."""

    @property
    def waits_for_cap(self) -> bool:
        """Whether somebody waits so that the staleness cap is kept, and nothing is dropped."""
        return self.max_staleness is not None and self.queue_policy == "wait" and self.staleness_policy != "drop"


@dataclass(frozen=True, slots=True)
class System:
    """All that a layout does not change."""

    workload: Workload
    engine: Engine
    trainer: Trainer
    update: WeightUpdate = WeightUpdate()
    admission: Admission = Admission()


@dataclass(frozen=True, slots=True)
class Layout:
    """How the GPUs are split, and how many requests an engine may run at once."""

    trainer_gpus: int
    sampler_gpus: int
    running_per_engine: int
    """The limit set; the running count may be less."""


@dataclass(frozen=True, slots=True)
class Granularity:
    """The smallest pieces that GPUs can be moved in."""

    gpus_per_engine: int
    gpus_per_trainer_replica: int = 1
    gpus_per_node: int = 1
    """Above 1: a node belongs to one side as a whole."""


def possible_layouts(gpus: int, granularity: Granularity, running: tuple[int, ...]) -> tuple[Layout, ...]:
    """Every split of `gpus` into at least one trainer replica and one engine, by each limit of running requests.

    GPUs that make no whole engine stay idle; a split that leaves a whole one idle is not listed.
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


def running_limits(today: int, safe_batch: float | None) -> tuple[int, ...]:
    """Limits of running requests to try: around today's, up to what the KV cache holds safely; today's always.

    The others are round numbers, as one would set them: 2**k or 3 * 2**k.
    """
    most = float("inf") if safe_batch is None else max(1.0, safe_batch)
    tried = {_round_limit(today * factor) for factor in RUNNING_FACTORS if factor != 1.0}
    return tuple(sorted({limit for limit in tried if limit <= most} | {today}))


def _round_limit(limit: float) -> int:
    """The nearest of 1, 2, 3, 4, 6, 8, 12, 16, 24, ..., by ratio."""
    below = 2 ** max(0, math.floor(math.log2(limit)))
    near = (below, 3 * below // 2, 2 * below)
    return min(near, key=lambda each: abs(math.log(each / limit)))
