"""Results of a simulation: rates, times, staleness and a token ledger, computed from its columns and totals.

The version of a token follows from the passes at which its engine changed weights: a sample's tokens fall on
consecutive passes of one engine (on several stretches of passes if it was preempted), so these changes cut it into runs
of one version, and no loop over tokens is needed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from rlscope.model.arrays import Counts, Flags, Reals
from rlscope.model.simulate.engine import EngineTotals
from rlscope.model.simulate.queue import HoldCause, PlaceTotals
from rlscope.model.simulate.samples import DROPPED, FILTERED, OPEN, QUEUED, TRAINED, Samples
from rlscope.model.simulate.trainer import TrainerTotals

_LONGEST_RATIO: Final = 0.1
"""Share of the samples that counts as the longest."""
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
    groups: Ages
    """Ages of groups, by the oldest token of any member."""
    in_flight_mean: float
    """Versions between a token and the last token of its sample, mean over tokens."""
    in_queue_mean: float
    """Versions between the last token of its sample and the training step, mean over tokens; includes the wait for the
    group. Both parts add up to the mean of the tokens."""
    group_before_queue_mean: float
    """Versions between the first token of a group and the end of its last sample, mean over groups."""
    group_in_queue_mean: float
    """Versions between that end and the training step. Both parts add up to the mean of the groups."""
    growth: float
    """Mean of the groups trained in the later half of the steps minus that of the earlier half."""


@dataclass(frozen=True, slots=True)
class TrainerSeconds:
    """The trainer's seconds after the warm-up, by activity; they add up to the total."""

    train_s: float
    """Forward and backward passes with the overhead of a step."""
    phases_s: float
    publish_s: float
    wait_samples_s: float
    wait_staleness_cap_s: float
    """Waits for running groups that the next publication would make too stale."""


@dataclass(frozen=True, slots=True)
class EngineSeconds:
    """Seconds after the warm-up, summed over engines; they add up to engines times seconds."""

    decode_s: float
    prefill_s: float
    recompute_s: float
    """Recomputing KV after a preemption or a weight update."""
    weight_update_s: float
    """Paused for new weights."""
    idle_s: Mapping[HoldCause, float]
    """Seconds without any request, by the cause that keeps requests away."""

    @property
    def total_s(self) -> float:
        """Total seconds."""
        return self.decode_s + self.prefill_s + self.recompute_s + self.weight_update_s + sum(self.idle_s.values())


@dataclass(frozen=True, slots=True)
class TokenLedger:
    """Every response token generated since the start of the run, exactly once."""

    generated: int
    """Counted by the engines, pass by pass; all others are counted by sample, and add up to it."""
    trained: int
    dropped: int
    """Dropped as stale, or pushed out of a full queue."""
    filtered: int
    queued: int
    """In finished groups that are queued or wait for room in the queue."""
    awaiting_group: int
    """In finished samples of unfinished groups, and in samples that wait outside the engines."""
    in_flight: int
    """In unfinished samples."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """One simulated layout. Unless stated otherwise, values cover the time after the warm-up."""

    steps: int
    warm_up_steps: int
    published_versions: int
    """Fewer than the steps if publications wait for the staleness cap."""
    seconds: float
    step_periods_s: tuple[float, ...]
    """Seconds between the ends of successive steps, in order."""
    step_trained_tokens: tuple[int, ...]
    """Response tokens of each of these steps."""
    engines: int
    trainer_seconds: TrainerSeconds
    engine_seconds: EngineSeconds
    empty_place_s: Mapping[HoldCause, float]
    """Place-seconds without a request, by the cause that keeps requests away; the limit on running requests sets the
    places."""
    generated_tokens: int
    passes: int
    mean_running: float
    """Requests in an engine's batch, mean over time."""
    mean_resident_tokens: float | None
    """Tokens in an engine's KV cache, mean over its passes; None without a pass."""
    preemptions: int
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
    ledger: TokenLedger
    """Ledger of the whole run, including the warm-up."""
    queue_kept_out: bool
    """Whether the queue's capacity ever mattered, including the warm-up."""

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.seconds / self.steps

    @property
    def trained_tokens_per_s(self) -> float:
        """Response tokens trained per second."""
        return sum(self.step_trained_tokens) / self.seconds

    @property
    def dropped_ratio(self) -> float:
        """Dropped share of the response tokens that were trained, dropped or filtered, 0..1."""
        return sum(self.step_dropped_tokens) / sum(self.step_left_tokens)

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
    places: PlaceTotals
    trainer: TrainerTotals
    queue_group_s: float
    queue_kept_out: bool


def summarise(samples: Samples, start: RunningSums, end: RunningSums, step_ends_s: Sequence[float]) -> Simulated:
    """Summarize what happened between two moments; the ledger covers the start of the run to the later one."""
    seconds, engine = end.now_s - start.now_s, _engine_difference(start, end)
    columns = Columns.of(samples)
    trained_groups = np.flatnonzero(columns.group_step > start.steps)
    trained = columns.members(trained_groups)
    lengths = columns.length_tokens[trained]
    idle_s = _difference(start.places.idle_s, end.places.idle_s)
    steps, lost = end.steps - start.steps, _Lost.between(columns, start.now_s, step_ends_s[start.steps :])
    step_tokens = _by_step(columns, trained_groups, columns.group_step[trained_groups] - start.steps - 1, steps)
    return Simulated(
        steps=steps,
        warm_up_steps=start.steps,
        published_versions=end.version - start.version,
        seconds=seconds,
        step_periods_s=tuple(np.diff([0.0, *step_ends_s])[start.steps :].tolist()),
        step_trained_tokens=tuple(step_tokens.tolist()),
        engines=len(end.engines),
        trainer_seconds=_trainer_difference(start.trainer, end.trainer),
        engine_seconds=EngineSeconds(engine.decode_s, engine.prefill_s, engine.recompute_s, engine.pause_s, idle_s),
        empty_place_s=_difference(start.places.empty_s, end.places.empty_s),
        generated_tokens=engine.tokens,
        passes=engine.passes,
        mean_running=engine.running_s / (len(end.engines) * seconds),
        mean_resident_tokens=engine.resident_token_passes / engine.passes if engine.passes else None,
        preemptions=engine.preemptions,
        mean_trained_tokens=float(lengths.mean()),
        step_left_tokens=tuple((step_tokens + lost.step_dropped_tokens + lost.step_filtered_tokens).tolist()),
        step_dropped_tokens=tuple(lost.step_dropped_tokens.tolist()),
        longest_trained_ratio=longest_trained_ratio(lengths, columns.length_tokens[lost.dropped]),
        mean_queued_samples=(end.queue_group_s - start.queue_group_s) * samples.group_size / seconds,
        mean_in_flight_samples=_in_flight_s(columns, start.now_s, end.now_s) / seconds,
        staleness=staleness_of(columns, trained_groups, end.switches),
        ledger=_ledger(columns, end),
        queue_kept_out=end.queue_kept_out,
    )


def _engine_difference(start: RunningSums, end: RunningSums) -> EngineTotals:
    """Difference of the totals, summed over engines."""
    return EngineTotals(
        **{
            each.name: sum(getattr(totals, each.name) for totals in end.engines)
            - sum(getattr(totals, each.name) for totals in start.engines)
            for each in fields(EngineTotals)
        }
    )


def _trainer_difference(start: TrainerTotals, end: TrainerTotals) -> TrainerSeconds:
    return TrainerSeconds(
        **{each.name: getattr(end, each.name) - getattr(start, each.name) for each in fields(TrainerTotals)}
    )


def _difference(start: Mapping[HoldCause, float], end: Mapping[HoldCause, float]) -> dict[HoldCause, float]:
    return {cause: end[cause] - start[cause] for cause in end}


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Columns of `Samples` as arrays: by sample, or by group if the name says so."""

    group_size: int
    length_tokens: Counts
    left_tokens: Counts
    engine: Counts
    start_pass: Counts
    first_version: Counts
    is_finished: Flags
    admitted_s: Reals
    group_left_s: Reals
    group_outcome: Counts
    group_step: Counts
    group_first_version: Counts
    group_ready_version: Counts
    group_consumer_version: Counts
    pieces: Counts

    @classmethod
    def of(cls, samples: Samples) -> "Columns":
        """Copy the columns, each once."""
        return cls(
            group_size=samples.group_size,
            length_tokens=np.array(samples.length_tokens),
            left_tokens=np.array(samples.left_tokens),
            engine=np.array(samples.engine),
            start_pass=np.array(samples.start_pass),
            first_version=np.array(samples.first_version),
            is_finished=np.array(samples.finished_s) >= 0.0,
            admitted_s=np.array(samples.admitted_s),
            group_left_s=np.array(samples.group_left_s),
            group_outcome=np.array(samples.group_outcome),
            group_step=np.array(samples.group_step),
            group_first_version=np.array(samples.group_first_version),
            group_ready_version=np.array(samples.group_ready_version),
            group_consumer_version=np.array(samples.group_consumer_version),
            pieces=np.array(samples.pieces, dtype=np.int64).reshape(-1, 3),
        )

    def members(self, groups: Counts) -> Counts:
        """Return the samples of groups."""
        return (groups[:, None] * self.group_size + np.arange(self.group_size)).ravel()


def _by_step(columns: Columns, groups: Counts, step: Counts, steps: int) -> Counts:
    """Response tokens of finished groups by step; step: of each group, from 0."""
    tokens = columns.length_tokens.reshape(-1, columns.group_size)[groups].sum(axis=1)
    return np.bincount(step, weights=tokens, minlength=steps).astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class _Lost:
    """Samples that left after the warm-up without being trained."""

    dropped: Counts
    """The dropped samples."""
    step_dropped_tokens: Counts
    step_filtered_tokens: Counts

    @classmethod
    def between(cls, columns: Columns, start_s: float, step_ends_s: Sequence[float]) -> "_Lost":
        """Return what left after a moment, by the step that ended next."""
        ends_s = np.array(step_ends_s)

        def groups(outcome: int) -> Counts:
            return np.flatnonzero((columns.group_outcome == outcome) & (columns.group_left_s > start_s))

        def tokens(lost: Counts) -> Counts:
            step = np.searchsorted(ends_s, columns.group_left_s[lost])
            return _by_step(columns, lost, np.minimum(step, ends_s.size - 1), ends_s.size)

        dropped = groups(DROPPED)
        return cls(columns.members(dropped), tokens(dropped), tokens(groups(FILTERED)))


def longest_trained_ratio(trained_tokens: Counts, dropped_tokens: Counts) -> float:
    """Trained share, 0..1, of the longest tenth of all samples; those as long as its shortest belong to it.

    trained_tokens, dropped_tokens: lengths of the samples, at least one of them trained.
    """
    lengths = np.concatenate((trained_tokens, dropped_tokens))
    tenth = math.ceil(_LONGEST_RATIO * lengths.size - 1e-9)
    shortest = np.partition(lengths, lengths.size - tenth)[lengths.size - tenth]
    return float((trained_tokens >= shortest).sum() / (lengths >= shortest).sum())


def _in_flight_s(columns: Columns, start_s: float, end_s: float) -> float:
    """Seconds in flight between two moments, summed over samples: from the first pass until the group has left."""
    left_s = np.repeat(np.where(columns.group_left_s < 0.0, np.inf, columns.group_left_s), columns.group_size)
    begun = columns.admitted_s >= 0.0
    spans_s = np.minimum(left_s, end_s) - np.maximum(columns.admitted_s, start_s)
    return float(np.maximum(spans_s[begun], 0.0).sum())


def _ledger(columns: Columns, end: RunningSums) -> TokenLedger:
    """Count finished samples by the fate of their group, and the tokens generated so far by the others."""
    lengths = np.where(columns.is_finished, columns.length_tokens, 0).reshape(-1, columns.group_size).sum(axis=1)
    outcomes = (TRAINED, DROPPED, FILTERED, QUEUED, OPEN)
    tokens = {each: int(lengths[columns.group_outcome == each].sum()) for each in outcomes}
    return TokenLedger(
        generated=sum(engine.tokens for engine in end.engines),
        trained=tokens[TRAINED],
        dropped=tokens[DROPPED],
        filtered=tokens[FILTERED],
        queued=tokens[QUEUED],
        awaiting_group=tokens[OPEN],
        in_flight=_tokens_in_flight(columns, end),
    )


def _tokens_in_flight(columns: Columns, end: RunningSums) -> int:
    """Tokens before the last preemption, plus one per pass since the last admission for running samples."""
    begun = np.flatnonzero(~columns.is_finished & (columns.engine >= 0))
    before = int((columns.length_tokens - columns.left_tokens)[begun].sum())
    runs = begun[columns.start_pass[begun] >= 0]
    passes = np.array([engine.passes for engine in end.engines])[columns.engine[runs]]
    return before + int((passes - columns.start_pass[runs]).sum())


@dataclass(frozen=True, slots=True, eq=False)
class _Runs:
    """Consecutive tokens of one sample that one version sampled."""

    sample: Counts
    version: Counts
    tokens: Counts


def staleness_of(columns: Columns, trained_groups: Counts, switches: Switches) -> SimulatedStaleness:
    """Staleness over the tokens, samples and groups of the given groups, all of them trained."""
    runs = _runs(columns, columns.members(trained_groups), switches)
    newest = np.zeros(columns.engine.size, dtype=np.int64)
    np.maximum.at(newest, runs.sample, runs.version)
    consumer = columns.group_consumer_version[trained_groups]
    first = columns.first_version.reshape(-1, columns.group_size)[trained_groups]
    of_token = columns.group_consumer_version[runs.sample // columns.group_size] - runs.version
    tokens = int(runs.tokens.sum())
    in_flight = int(((newest[runs.sample] - runs.version) * runs.tokens).sum())
    ready, group_first = (each[trained_groups] for each in (columns.group_ready_version, columns.group_first_version))
    step = columns.group_step[trained_groups]
    is_late = 2 * step > step.min() + step.max()
    return SimulatedStaleness(
        tokens=_ages(of_token, runs.tokens),
        samples=_ages((consumer[:, None] - first).ravel()),
        groups=_ages(consumer - group_first),
        in_flight_mean=in_flight / tokens,
        in_queue_mean=(int((of_token * runs.tokens).sum()) - in_flight) / tokens,
        group_before_queue_mean=float((ready - group_first).mean()),
        group_in_queue_mean=float((consumer - ready).mean()),
        growth=_mean((consumer - group_first)[is_late]) - _mean((consumer - group_first)[~is_late]),
    )


def _mean(ages: Counts) -> float:
    return float(ages.mean()) if ages.size else 0.0


def _runs(columns: Columns, wanted: Counts, switches: Switches) -> _Runs:
    """Split the tokens of the wanted samples, all finished, by version."""
    sample, start_pass, tokens = _stretches(columns, wanted)
    engine = columns.engine[sample]
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
    return _Runs(sample[owner][filled], switch_version[at][filled], length[filled])


def _stretches(columns: Columns, wanted: Counts) -> tuple[Counts, Counts, Counts]:
    """Sample, passes before the first token, and tokens, of each stretch of consecutive passes."""
    pieces = columns.pieces
    if pieces.size:
        is_wanted = np.zeros(columns.engine.size, dtype=np.bool_)
        is_wanted[wanted] = True
        pieces = pieces[is_wanted[pieces[:, 0]]]
    return (
        np.concatenate((wanted, pieces[:, 0])),
        np.concatenate((columns.start_pass[wanted], pieces[:, 1])),
        np.concatenate((columns.left_tokens[wanted], pieces[:, 2])),
    )


def _ages(ages: Counts, weights: Counts | None = None) -> Ages:
    """Count the ages that occur; the sums of whole weights are exact below 2^53."""
    counts = np.bincount(ages, weights=weights)
    return Ages(tuple((age, int(count)) for age, count in enumerate(counts.tolist()) if count))
