"""What a simulation says of a layout. No computing beyond ratios of its own numbers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rlscope.model.simulate.places import Cause


class NeverTrains(Exception):
    """So much is filtered or dropped that simulating a step has no end in sight."""


@dataclass(frozen=True, slots=True)
class Ages:
    """How many were how old, in versions."""

    counts: tuple[tuple[int, int], ...]
    """(staleness, how many), by staleness; not empty."""

    @property
    def total(self) -> int:
        """How many there were."""
        return sum(count for _, count in self.counts)

    @property
    def mean(self) -> float:
        """Mean staleness, versions."""
        return sum(age * count for age, count in self.counts) / self.total

    @property
    def max(self) -> int:
        """The oldest."""
        return self.counts[-1][0]

    def percentile(self, ratio: float) -> int:
        """The smallest staleness that at least this share (0..1) does not exceed."""
        needed, so_far = math.ceil(ratio * self.total - 1e-9), 0
        for age, count in self.counts:
            so_far += count
            if so_far >= needed:
                return age
        raise ValueError(f"a share of {ratio} is not within 0..1")


@dataclass(frozen=True, slots=True)
class SimulatedStaleness:
    """How old what was trained after the warm-up was: consumer version minus the version that sampled it."""

    tokens: Ages
    samples: Ages
    """By their oldest token."""
    groups: Ages
    """By the oldest token of any member."""
    in_flight_mean: float
    """Versions between a token and the last token of its sample, mean over tokens."""
    in_queue_mean: float
    """Versions between the last token of its sample and the training step, mean over tokens: the wait for the group
    is in it. The two add up to the mean of the tokens."""
    group_before_queue_mean: float
    """Versions between the first token of a group and the end of its last sample, mean over groups."""
    group_in_queue_mean: float
    """Versions between that end and the training step. The two add up to the mean of the groups."""


@dataclass(frozen=True, slots=True)
class TrainerSeconds:
    """The trainer's seconds after the warm-up; they add up to all of them."""

    train_s: float
    """Forward and backward passes with the overhead of a step."""
    phases_s: float
    publish_s: float
    wait_samples_s: float
    wait_staleness_cap_s: float
    """Waits for running groups that would be too old after the next publication."""


@dataclass(frozen=True, slots=True)
class EngineSeconds:
    """The seconds after the warm-up, summed over engines; they add up to engines times seconds."""

    decode_s: float
    prefill_s: float
    recompute_s: float
    """Computing KV again, after a preemption or a weight update."""
    weight_update_s: float
    """Paused for new weights."""
    idle_s: Mapping[Cause, float]
    """Without any request, by what keeps requests away."""

    @property
    def total_s(self) -> float:
        """All of them."""
        return self.decode_s + self.prefill_s + self.recompute_s + self.weight_update_s + sum(self.idle_s.values())


@dataclass(frozen=True, slots=True)
class TokenLedger:
    """Every response token generated since the start of the run, exactly once."""

    generated: int
    """Counted by the engines, pass by pass; all others are counted by sample, and add up to it."""
    trained: int
    dropped: int
    """For their age, or pushed out of a full queue."""
    filtered: int
    queued: int
    """In finished groups, held back or queued."""
    awaiting_group: int
    """In finished samples of unfinished groups, and in samples that wait outside the engines."""
    in_flight: int
    """In unfinished samples."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """One layout, simulated. Unless said otherwise: after the warm-up, to the end of the last step."""

    steps: int
    warm_up_steps: int
    seconds: float
    step_periods_s: tuple[float, ...]
    """Between the ends of successive steps, in order."""
    step_trained_tokens: tuple[int, ...]
    """Response tokens of each of these steps."""
    engines: int
    trainer_seconds: TrainerSeconds
    engine_seconds: EngineSeconds
    empty_place_s: Mapping[Cause, float]
    """Place-seconds without a request, by what keeps requests away; the limit on running requests sets the places."""
    generated_tokens: int
    passes: int
    mean_running: float
    """Requests in an engine's batch, mean over time."""
    mean_resident_tokens: float | None
    """In an engine's KV cache, mean over its passes; None without a pass."""
    preemptions: int
    mean_trained_tokens: float
    """Response length, mean over trained samples."""
    mean_queued_samples: float
    """In the queue, mean over time; what is held back by a full queue is not in it."""
    staleness: SimulatedStaleness
    ledger: TokenLedger
    """Of the whole run, warm-up included."""

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.seconds / self.steps

    @property
    def trained_tokens_per_s(self) -> float:
        """Response tokens trained per second."""
        return sum(self.step_trained_tokens) / self.seconds

    @property
    def generated_tokens_per_s(self) -> float:
        """Response tokens generated per second."""
        return self.generated_tokens / self.seconds

    @property
    def trainer_idle_ratio(self) -> float:
        """Share of the trainer's seconds in which it waits for samples or for the staleness cap, 0..1."""
        return (self.trainer_seconds.wait_samples_s + self.trainer_seconds.wait_staleness_cap_s) / self.seconds

    @property
    def engine_idle_ratio(self) -> float:
        """Share of the engines' seconds without a request, 0..1."""
        return sum(self.engine_seconds.idle_s.values()) / (self.engines * self.seconds)
