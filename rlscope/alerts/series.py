"""A metric over a window of buckets: sums over sums, quantiles of histograms, the worst of a kind. Pure.

Every series is made once of the parts of a run, or of the last part of it, and answers for any window in it. Sums are
of whole numbers, or exact, so that the same window gives the same value whatever else is known.

The parts of a run laid out as arrays, one place a bucket, from which series are made. Pure.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Final, Literal, NamedTuple, Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from rlscope.alerts.buckets import Family, Parts, Ticks, WorkerLife
from rlscope.alerts.types import Reduction
from rlscope.analysis.staleness import weighted_quantile

Statistic = Literal["mean", "p50", "p95", "p99", "max"]
Whole = NDArray[np.int64]
LEAST_INTERVALS: Final = 3
"""Intervals between events from which their usual length is told; two cannot outvote one."""
HISTORY_NS: Final = 6 * 3_600_000_000_000
"""How far back anything is looked at: the usual length of an interval, and a window in steps. Runs change."""


class Reading(NamedTuple):
    """A metric over one window."""

    value: float | None
    evidence: float
    """What it was counted from, in the metric's unit of evidence."""
    worker_id: str | None = None
    """Which worker it is about, where it is about one."""


NOTHING: Final = Reading(None, 0)


class Series(Protocol):
    """A metric of one run."""

    def reading(self, first: int, after: int) -> Reading:
        """The metric over buckets [first, after), counted from the first bucket of the parts."""
        ...


@dataclass(frozen=True, slots=True)
class Ratio:
    """Sum over sum; no data where the lower sum is nothing."""

    upper: Whole
    lower: Whole
    evidence: Whole
    evidence_unit: float

    def reading(self, first: int, after: int) -> Reading:
        """See Series."""
        lower = int(self.lower[first:after].sum())
        if not lower:
            return NOTHING
        evidence = int(self.evidence[first:after].sum()) * self.evidence_unit
        return Reading(int(self.upper[first:after].sum()) / lower, evidence)


@dataclass(frozen=True, slots=True)
class FloatRatio:
    """Sum over sum of numbers that are not whole: exactly rounded sums, so that no order of adding shows."""

    upper: Sequence[float]
    lower: Sequence[float]
    evidence: Whole
    evidence_unit: float

    def reading(self, first: int, after: int) -> Reading:
        """See Series."""
        lower = math.fsum(self.lower[first:after])
        if not lower:
            return NOTHING
        evidence = int(self.evidence[first:after].sum()) * self.evidence_unit
        return Reading(math.fsum(self.upper[first:after]) / lower, evidence)


@dataclass(frozen=True, slots=True)
class Histogram:
    """A statistic of whole values, each with its weight."""

    levels: tuple[int, ...]
    """The values, rising."""
    weights: Whole
    """By bucket and level."""
    statistic: Statistic

    def reading(self, first: int, after: int) -> Reading:
        """See Series."""
        weights = self.weights[first:after].sum(axis=0).tolist()
        seen = tuple((level, weight) for level, weight in zip(self.levels, weights, strict=True) if weight)
        total = sum(weight for _, weight in seen)
        if not total:
            return NOTHING
        if self.statistic == "mean":
            return Reading(sum(level * weight for level, weight in seen) / total, total)
        percent = {"p50": 50, "p95": 95, "p99": 99, "max": 100}[self.statistic]
        return Reading(weighted_quantile(seen, percent), total)


@dataclass(frozen=True, slots=True)
class Greatest:
    """The greatest value of any bucket."""

    values: NDArray[np.float64]
    """Minus infinity where a bucket has none."""
    evidence: Whole

    def reading(self, first: int, after: int) -> Reading:
        """See Series."""
        evidence = int(self.evidence[first:after].sum())
        return Reading(float(self.values[first:after].max()), evidence) if evidence else NOTHING


@dataclass(frozen=True, slots=True)
class Fullest:
    """The greatest ratio of several series: of the fullest queue."""

    parts: tuple[Ratio, ...]

    def reading(self, first: int, after: int) -> Reading:
        """See Series."""
        readings = [part.reading(first, after) for part in self.parts]
        known = [reading for reading in readings if reading.value is not None]
        return max(known, key=lambda reading: reading.value or 0.0, default=NOTHING)


@dataclass(frozen=True, slots=True)
class Rate:
    """Amounts over the length of the window, which ends with the run and begins no earlier than it."""

    amounts: Whole
    events: Whole
    ticks: Ticks
    first_bucket: int
    start_ns: int
    end_ns: int | None

    def reading(self, first: int, after: int) -> Reading:
        """See Series."""
        from_ns = max(self.ticks.at_ns(first + self.first_bucket), self.start_ns)
        to_ns = self.ticks.at_ns(after + self.first_bucket)
        length_ns = (to_ns if self.end_ns is None else min(to_ns, self.end_ns)) - from_ns
        if length_ns <= 0:
            return NOTHING
        events = int(self.events[first:after].sum())
        return Reading(int(self.amounts[first:after].sum()) / (length_ns / 1e9), events)


@dataclass(frozen=True, slots=True)
class Overdue:
    """How long ago the last event was, in lengths of the usual interval between events."""

    moments_ns: tuple[int, ...]
    """Rising."""
    ticks: Ticks
    first_bucket: int
    end_ns: int | None
    """After it nothing is due; None while the run goes on."""

    def reading(self, first: int, after: int) -> Reading:
        """The intervals are those of HISTORY_NS up to the tick; the window only says where the tick is."""
        at_ns = self.ticks.at_ns(after + self.first_bucket)
        begin, end = bisect_left(self.moments_ns, at_ns - HISTORY_NS), bisect_left(self.moments_ns, at_ns)
        seen = self.moments_ns[begin:end]
        intervals_ns = [later - earlier for earlier, later in pairwise(seen)]
        if len(intervals_ns) < LEAST_INTERVALS or not (usual_ns := median(intervals_ns)):
            return Reading(None, len(intervals_ns))
        now_ns = at_ns if self.end_ns is None else min(at_ns, self.end_ns)
        return Reading(max(0, now_ns - seen[-1]) / usual_ns, len(intervals_ns))


@dataclass(frozen=True, slots=True)
class Silence:
    """How long the worker that was not heard of for longest is silent, seconds; one that said it stopped is not."""

    workers: tuple[WorkerLife, ...]
    ticks: Ticks
    first_bucket: int
    end_ns: int | None
    """After it nobody has to be heard of; None while the run goes on."""

    def reading(self, first: int, after: int) -> Reading:
        """A worker is heard of until its last flush or row: what is silent and speaks again was not silent."""
        at_ns = self.ticks.at_ns(after + self.first_bucket)
        now_ns = at_ns if self.end_ns is None else min(at_ns, self.end_ns)
        begun = [worker for worker in self.workers if worker.start_ns <= now_ns]
        silent = [(max(0, now_ns - worker.last_ns), worker.worker_id) for worker in begun if not worker.has_end]
        if not begun:
            return NOTHING
        silent_ns, worker_id = max(silent, default=(0, None))
        return Reading(silent_ns / 1e9, len(begun), worker_id if silent_ns else None)


@dataclass(frozen=True, slots=True)
class Constant:
    """A fact of the whole run."""

    value: float | None
    evidence: float

    def reading(self, first: int, after: int) -> Reading:
        """See Series."""
        return Reading(self.value, self.evidence)


@dataclass(frozen=True, slots=True)
class OwnValues:
    """The rows of the user's own SELECT, by bucket, in the order of their moments."""

    values: Mapping[int, Sequence[float]]
    reduction: Reduction

    def reading(self, first: int, after: int) -> Reading:
        """See Series."""
        seen = [value for bucket in range(first, after) for value in self.values.get(bucket, ())]
        if not seen:
            return NOTHING
        match self.reduction:
            case "mean":
                return Reading(math.fsum(seen) / len(seen), len(seen))
            case "sum":
                return Reading(math.fsum(seen), len(seen))
            case "min":
                return Reading(min(seen), len(seen))
            case "max":
                return Reading(max(seen), len(seen))
            case "last":
                return Reading(seen[-1], len(seen))


@dataclass(frozen=True, slots=True)
class Timeline:
    """Parts and the stretch of buckets [first_bucket, first_bucket + buckets) that arrays are made for."""

    parts: Parts
    first_bucket: int
    buckets: int
    step_ends_ns: tuple[int, ...] = field(default=())
    """Ends of the optimizer steps that are known, rising."""
    warm_up_end_ns: int | None = None
    """When warm-up is over; None where that is not known yet."""
    residual_ratio: float | None = None
    """What the model's prediction leaves unexplained; None where it was not asked."""

    @property
    def ticks(self) -> Ticks:
        """Where the ticks are."""
        return self.parts.ticks

    @property
    def start_ns(self) -> int:
        """When the first worker began, UTC epoch; the first tick's origin where there is none."""
        return min((worker.start_ns for worker in self.parts.workers), default=self.ticks.origin_ns)

    def rows(self, family: Family) -> pl.DataFrame:
        """The rows of a family that lie in the stretch, `place` counted from its first bucket; empty where missing."""
        frame = self.parts.frames.get(family)
        if frame is None or frame.is_empty():
            return pl.DataFrame()
        place = pl.col("bucket") - self.first_bucket
        return frame.with_columns(place.alias("place")).filter(pl.col("place").is_between(0, self.buckets - 1))

    def sums(self, rows: pl.DataFrame, column: str) -> Whole:
        """The sum of a column of whole numbers, by bucket."""
        sums = np.zeros(self.buckets, dtype=np.int64)
        if len(rows):
            np.add.at(sums, rows["place"].to_numpy(), rows[column].fill_null(0).to_numpy())
        return sums

    def counts(self, rows: pl.DataFrame) -> Whole:
        """How many rows there are, by bucket."""
        counts = np.zeros(self.buckets, dtype=np.int64)
        if len(rows):
            np.add.at(counts, rows["place"].to_numpy(), 1)
        return counts

    def exact_sums(self, rows: pl.DataFrame, column: str) -> list[float]:
        """The sum of a column of floats, by bucket, each rounded once."""
        values: list[list[float]] = [[] for _ in range(self.buckets)]
        if len(rows):
            for place, value in rows.select("place", column).iter_rows():
                values[place].append(value)
        return [math.fsum(some) for some in values]

    def greatest(self, rows: pl.DataFrame, column: str) -> NDArray[np.float64]:
        """The greatest value of a column, by bucket; minus infinity where there is none."""
        greatest = np.full(self.buckets, -np.inf)
        if len(rows):
            np.maximum.at(greatest, rows["place"].to_numpy(), rows[column].cast(pl.Float64).to_numpy())
        return greatest

    def by_level(self, rows: pl.DataFrame, level: str, weight: str) -> tuple[tuple[int, ...], Whole]:
        """The levels of a column, rising, and the sum of another by bucket and level."""
        if rows.is_empty():
            return (), np.zeros((self.buckets, 0), dtype=np.int64)
        levels = rows[level].unique().sort()
        weights = np.zeros((self.buckets, len(levels)), dtype=np.int64)
        columns = np.searchsorted(levels.to_numpy(), rows[level].to_numpy())
        np.add.at(weights, (rows["place"].to_numpy(), columns), rows[weight].to_numpy())
        return tuple(levels.to_list()), weights


def merged(old: pl.DataFrame | None, new: pl.DataFrame, replaced: Iterable[int], keep_from: int) -> pl.DataFrame:
    """Parts with the buckets of one range replaced by others, and those before keep_from let go."""
    buckets = list(replaced)
    fresh = new.filter(pl.col("bucket").is_in(buckets)) if len(new) else new
    if old is None or old.is_empty():
        return fresh
    kept = old.filter(~pl.col("bucket").is_in(buckets) & (pl.col("bucket") >= keep_from))
    # One piece: a piece a look would make every look dearer than the one before.
    return pl.concat([kept, fresh], how="vertical_relaxed", rechunk=True) if len(fresh) else kept
