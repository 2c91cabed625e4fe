"""Results of a simulation: rates, times and staleness, computed from its columns and totals.

The version of a token follows from the passes at which its engine changed weights: a sample's tokens fall on
consecutive passes of one engine (on several stretches of passes if it was preempted), so these changes cut it into runs
of one version, and no loop over tokens is needed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, TypeAlias

import numpy as np

from rlscope.model.arrays import Counts
from rlscope.model.simulate.engine import EngineTotals
from rlscope.model.simulate.queue import IdleReason
from rlscope.model.simulate.samples import DROPPED, FILTERED, Samples
from rlscope.model.simulate.trainer import TrainerSeconds
from rlscope.model.system import Trainer

LONGEST_RATIO: Final = 0.1
"""Share of the samples that counts as the longest."""
_Sums: TypeAlias = EngineTotals | TrainerSeconds
Switches = Sequence[Sequence[tuple[int, int]]]
"""(passes done, version) at each change of weights, by engine; the first is at pass 0."""


class NeverTrains(Exception):
    """So much is filtered or dropped that simulating a step has no end in sight."""


@dataclass(frozen=True, slots=True)
class Ages:
    """Counts by age, in versions."""

    counts: tuple[tuple[int, int], ...]
    """(staleness, count), by staleness; not empty."""

    @property
    def total(self) -> int:
        """Total count."""
        return sum(count for _, count in self.counts)

    @property
    def mean(self) -> float:
        """Mean staleness, versions."""
        return sum(age * count for age, count in self.counts) / self.total

    @property
    def max(self) -> int:
        """Largest staleness, versions."""
        return self.counts[-1][0]

    def percentile(self, ratio: float) -> int:
        """Smallest staleness that at least this share (0..1) does not exceed."""
        needed, so_far = math.ceil(ratio * self.total - 1e-9), 0
        for age, count in self.counts:
            so_far += count
            if so_far >= needed:
                return age
        raise ValueError(f"a share of {ratio} is not within 0..1")


@dataclass(frozen=True, slots=True)
class SimulatedStaleness:
    """Staleness of everything trained after the warm-up: consumer version minus the version that sampled it."""

    tokens: Ages
    samples: Ages
    """Ages of samples, by their oldest token."""
    growth: float
    """Mean of the samples trained in the later half of the steps minus that of the earlier half."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """One simulated layout. Unless stated otherwise, values cover the time after the warm-up."""

    steps: int
    warm_up_steps: int
    published_versions: int
    """Fewer than the steps if publications wait for the staleness cap."""
    seconds: float
    step_periods_s: tuple[float, ...]
    """Seconds between the ends of successive steps, in order, if rare phases were spread evenly over the steps."""
    step_trained_tokens: tuple[int, ...]
    """Response tokens of each of these steps."""
    engines: int
    trainer_seconds: TrainerSeconds
    engine_totals: EngineTotals
    """Sums over the engines; their seconds and `idle_s` add up to engines times seconds."""
    idle_s: Mapping[IdleReason, float]
    """Engine-seconds without any request, by the cause that keeps requests away."""
    mean_trained_tokens: float
    """Response length, mean over trained samples."""
    step_left_tokens: tuple[int, ...]
    """Response tokens that were trained, dropped or filtered, by step."""
    step_dropped_tokens: tuple[int, ...]
    """Response tokens dropped as stale, or pushed out of a full queue, by step."""
    longest_trained_ratio: float
    """Share of the longest tenth of the trained and dropped samples that was trained, 0..1."""
    mean_queued_samples: float
    """Samples in the queue, mean over time; excludes samples that a full queue holds back."""
    mean_in_flight_samples: float
    """Samples started, and neither taken by the trainer nor dropped or filtered, mean over time."""
    staleness: SimulatedStaleness

    def of_whole(self, whole_ratio: float) -> "Simulated":
        """Return the results of the whole system, if this is a part of it; the counts of staleness stay the part's.

        whole_ratio: engines of the whole over those of the part, 1 or more.
        """

        def times(tokens: Sequence[int]) -> tuple[int, ...]:
            return tuple(round(whole_ratio * each) for each in tokens)

        if whole_ratio == 1.0:
            return self
        totals = {name: whole_ratio * each for name, each in asdict(self.engine_totals).items()}
        return replace(
            self,
            step_trained_tokens=times(self.step_trained_tokens),
            engines=round(whole_ratio * self.engines),
            engine_totals=EngineTotals(**totals),
            idle_s={cause: whole_ratio * idle_s for cause, idle_s in self.idle_s.items()},
            step_left_tokens=times(self.step_left_tokens),
            step_dropped_tokens=times(self.step_dropped_tokens),
            mean_queued_samples=whole_ratio * self.mean_queued_samples,
            mean_in_flight_samples=whole_ratio * self.mean_in_flight_samples,
        )

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.seconds / self.steps

    @property
    def engine_s(self) -> float:
        """Seconds of all engines."""
        return self.engines * self.seconds

    @property
    def trained_tokens_per_s(self) -> float:
        """Response tokens trained per second."""
        return sum(self.step_trained_tokens) / self.seconds

    @property
    def dropped_ratio(self) -> float:
        """Dropped share of the response tokens that were trained, dropped or filtered, 0..1."""
        return sum(self.step_dropped_tokens) / sum(self.step_left_tokens)

    @property
    def mean_running(self) -> float:
        """Requests in an engine's batch, mean over time."""
        return self.engine_totals.running_s / self.engine_s

    @property
    def trainer_idle_ratio(self) -> float:
        """Share of the trainer's seconds in which it waits for samples or for the staleness cap, 0..1."""
        return (self.trainer_seconds.wait_samples_s + self.trainer_seconds.wait_staleness_cap_s) / self.seconds


@dataclass(frozen=True, slots=True)
class RunningSums:
    """All running sums at one moment."""

    now_s: float
    steps: int
    version: int
    """Version published last."""
    engines: tuple[EngineTotals, ...]
    switches: tuple[tuple[tuple[int, int], ...], ...]
    """(passes done, version) at every change of weights, by engine."""
    idle_s: Mapping[IdleReason, float]
    trainer: TrainerSeconds
    queue_group_s: float


def summarize(
    samples: Samples, start: RunningSums, end: RunningSums, step_ends_s: Sequence[float], trainer: Trainer
) -> Simulated:
    """Summarize what happened between two moments."""
    seconds, steps, ends_s = end.now_s - start.now_s, end.steps - start.steps, np.array(step_ends_s[start.steps :])
    outcome, left_s, step = map(np.array, (samples.group_outcome, samples.group_left_s, samples.group_step))
    lengths = np.array(samples.length_tokens).reshape(-1, samples.group_size)
    trained = np.flatnonzero(step > start.steps)
    dropped, filtered = (np.flatnonzero((outcome == each) & (left_s > start.now_s)) for each in (DROPPED, FILTERED))
    periods_s = np.diff([0.0, *step_ends_s]) - [trainer.uneven_s(step + 1) for step in range(end.steps)]

    def by_step(groups: Counts, at: Counts) -> Counts:
        """Response tokens of finished groups by step; at: the step of each group, from 0; if beyond, the last."""
        tokens = lengths[groups].sum(axis=1)
        return np.bincount(np.minimum(at, steps - 1), weights=tokens, minlength=steps).astype(np.int64)

    step_tokens = by_step(trained, step[trained] - start.steps - 1)
    # What leaves untrained belongs to the step that ends next.
    step_dropped, step_filtered = (by_step(each, np.searchsorted(ends_s, left_s[each])) for each in (dropped, filtered))
    trained_tokens = lengths[trained].ravel()
    return Simulated(
        steps=steps,
        warm_up_steps=start.steps,
        published_versions=end.version - start.version,
        seconds=seconds,
        step_periods_s=tuple(periods_s[start.steps :].tolist()),
        step_trained_tokens=tuple(step_tokens.tolist()),
        engines=len(end.engines),
        trainer_seconds=TrainerSeconds(**_differences([start.trainer], [end.trainer])),
        engine_totals=EngineTotals(**_differences(start.engines, end.engines)),
        idle_s={cause: end.idle_s[cause] - start.idle_s[cause] for cause in end.idle_s},
        mean_trained_tokens=float(trained_tokens.mean()),
        step_left_tokens=tuple((step_tokens + step_dropped + step_filtered).tolist()),
        step_dropped_tokens=tuple(step_dropped.tolist()),
        longest_trained_ratio=longest_trained_ratio(trained_tokens, lengths[dropped].ravel()),
        mean_queued_samples=(end.queue_group_s - start.queue_group_s) * samples.group_size / seconds,
        mean_in_flight_samples=_in_flight_s(samples, start.now_s, end.now_s) / seconds,
        staleness=_staleness(samples, trained, end.switches),
    )


def _differences(start: Sequence[_Sums], end: Sequence[_Sums]) -> dict[str, Any]:
    """Return the difference of each field, summed over the sequences."""
    return {
        name: sum(getattr(each, name) for each in end) - sum(getattr(each, name) for each in start)
        for name in (each.name for each in fields(end[0]))
    }


def longest_trained_ratio(trained_tokens: Counts, dropped_tokens: Counts) -> float:
    """Trained share, 0..1, of the longest tenth of all samples; those as long as its shortest belong to it.

    trained_tokens, dropped_tokens: lengths of the samples, at least one of them trained.
    """
    lengths = np.concatenate((trained_tokens, dropped_tokens))
    tenth = math.ceil(LONGEST_RATIO * lengths.size - 1e-9)
    shortest = np.partition(lengths, lengths.size - tenth)[lengths.size - tenth]
    return float((trained_tokens >= shortest).sum() / (lengths >= shortest).sum())


def _in_flight_s(samples: Samples, start_s: float, end_s: float) -> float:
    """Seconds in flight between two moments, summed over samples: from the first pass until the group has left."""
    group_left_s, admitted_s = np.array(samples.group_left_s), np.array(samples.admitted_s)
    left_s = np.repeat(np.where(group_left_s < 0.0, np.inf, group_left_s), samples.group_size)
    spans_s = np.minimum(left_s, end_s) - np.maximum(admitted_s, start_s)
    return float(np.maximum(spans_s[admitted_s >= 0.0], 0.0).sum())


def _staleness(samples: Samples, trained_groups: Counts, switches: Switches) -> SimulatedStaleness:
    """Staleness over the tokens and samples of the given groups, all of them trained."""
    members = (trained_groups[:, None] * samples.group_size + np.arange(samples.group_size)).ravel()
    sample, version, tokens = _runs(samples, members, switches)
    consumer, first = np.array(samples.group_consumer_version), np.array(samples.first_version)
    ages = consumer[trained_groups, None] - first.reshape(-1, samples.group_size)[trained_groups]
    step = np.array(samples.group_step)[trained_groups]
    is_late = 2 * step > step.min() + step.max()
    return SimulatedStaleness(
        tokens=_ages(consumer[sample // samples.group_size] - version, tokens),
        samples=_ages(ages.ravel()),
        growth=_mean(ages[is_late]) - _mean(ages[~is_late]),
    )


def _mean(ages: Counts) -> float:
    return float(ages.mean()) if ages.size else 0.0


def _runs(samples: Samples, wanted: Counts, switches: Switches) -> tuple[Counts, Counts, Counts]:
    """Sample, version and number of tokens of each run of one version in the wanted samples, all finished."""
    sample, start_pass, tokens = _stretches(samples, wanted)
    engine = np.array(samples.engine)[sample]
    # One axis serves all engines: each has a section of it as long as the longest engine has passes.
    width = max(int((start_pass + tokens).max()), max(at for each in switches for at, _ in each)) + 1
    switch_at = np.array([index * width + at for index, each in enumerate(switches) for at, _ in each])
    switch_version = np.array([version for each in switches for _, version in each])
    start = engine * width + start_pass
    end = start + tokens
    first = np.searchsorted(switch_at, start, side="right") - 1
    count = np.searchsorted(switch_at, end, side="left") - first
    owner = np.repeat(np.arange(sample.size), count)
    at = first[owner] + np.arange(owner.size) - np.repeat(np.cumsum(count) - count, count)
    ends = np.minimum(end[owner], np.append(switch_at[1:], np.iinfo(np.int64).max)[at])
    length = ends - np.maximum(start[owner], switch_at[at])
    filled = length > 0
    return sample[owner][filled], switch_version[at][filled], length[filled]


def _stretches(samples: Samples, wanted: Counts) -> tuple[Counts, Counts, Counts]:
    """Sample, passes before the first token, and tokens, of each stretch of consecutive passes."""
    pieces = np.array(samples.pieces, dtype=np.int64).reshape(-1, 3)
    pieces = pieces[np.isin(pieces[:, 0], wanted)]
    return (
        np.concatenate((wanted, pieces[:, 0])),
        np.concatenate((np.array(samples.start_pass)[wanted], pieces[:, 1])),
        np.concatenate((np.array(samples.left_tokens)[wanted], pieces[:, 2])),
    )


def _ages(ages: Counts, weights: Counts | None = None) -> Ages:
    """Count the ages that occur; the sums of whole weights are exact below 2^53."""
    counts = np.bincount(ages, weights=weights)
    return Ages(tuple((age, int(count)) for age, count in enumerate(counts.tolist()) if count))
