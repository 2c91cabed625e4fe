"""A metric over any window of a run, from arrays with one entry per bucket. Pure.

A `Timeline` lays the parts of a run out as arrays; a series is built from them once and then answers for any window.
Sums are integers or exactly rounded, so a window's value does not depend on what else is known.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
"""Fewest intervals whose median is the usual interval: of two, neither is the outlier."""
HISTORY_NS: Final = 6 * 3_600_000_000_000
"""Maximum reach of the usual interval and of windows in steps, because runs change."""


class MetricReading(NamedTuple):
    """A metric over one window."""

    value: float | None
    evidence: float
    """In the metric's unit of evidence."""
    worker_id: str | None = None
    """The worker that the value is about; None if it is not about one."""


NOTHING: Final = MetricReading(None, 0)


class Series(Protocol):
    """A metric of one run."""

    def reading(self, first: int, after: int) -> MetricReading:
        """The metric over buckets [first, after), counted from the first bucket of the parts."""
        ...


@dataclass(frozen=True, slots=True)
class Ratio:
    """Sum over sum; no value if the lower sum is 0. Sums of floats are exactly rounded, so order has no effect."""

    upper: Whole | Sequence[float]
    lower: Whole | Sequence[float]
    evidence: Whole
    evidence_unit: float

    def reading(self, first: int, after: int) -> MetricReading:
        """See Series."""
        upper, lower = (_total(values[first:after]) for values in (self.upper, self.lower))
        if not lower:
            return NOTHING
        return MetricReading(upper / lower, int(self.evidence[first:after].sum()) * self.evidence_unit)


def _total(values: Whole | Sequence[float]) -> float:
    return int(values.sum()) if isinstance(values, np.ndarray) else math.fsum(values)


@dataclass(frozen=True, slots=True)
class Histogram:
    """A statistic of weighted integers."""

    levels: tuple[int, ...]
    """The values, ascending."""
    weights: Whole
    """By bucket and level."""
    statistic: Statistic

    def reading(self, first: int, after: int) -> MetricReading:
        """See Series."""
        weights = self.weights[first:after].sum(axis=0).tolist()
        seen = tuple((level, weight) for level, weight in zip(self.levels, weights, strict=True) if weight)
        total = sum(weight for _, weight in seen)
        if not total:
            return NOTHING
        if self.statistic == "mean":
            return MetricReading(sum(level * weight for level, weight in seen) / total, total)
        percent = {"p50": 50, "p95": 95, "p99": 99, "max": 100}[self.statistic]
        return MetricReading(weighted_quantile(seen, percent), total)


@dataclass(frozen=True, slots=True)
class Greatest:
    """The highest value of any bucket."""

    values: NDArray[np.float64]
    """Minus infinity for a bucket without one."""
    evidence: Whole

    def reading(self, first: int, after: int) -> MetricReading:
        """See Series."""
        evidence = int(self.evidence[first:after].sum())
        return MetricReading(float(self.values[first:after].max()), evidence) if evidence else NOTHING


@dataclass(frozen=True, slots=True)
class Fullest:
    """The highest of several ratios, such as that of the fullest queue."""

    parts: tuple[Ratio, ...]

    def reading(self, first: int, after: int) -> MetricReading:
        """See Series."""
        readings = [part.reading(first, after) for part in self.parts]
        known = [reading for reading in readings if reading.value is not None]
        return max(known, key=lambda reading: reading.value or 0.0, default=NOTHING)


@dataclass(frozen=True, slots=True)
class Rate:
    """Amounts per second of the window, clipped to the run."""

    amounts: Whole
    events: Whole
    ticks: Ticks
    first_bucket: int
    start_ns: int
    end_ns: int | None

    def reading(self, first: int, after: int) -> MetricReading:
        """See Series."""
        from_ns = max(self.ticks.at_ns(first + self.first_bucket), self.start_ns)
        to_ns = self.ticks.at_ns(after + self.first_bucket)
        length_ns = (to_ns if self.end_ns is None else min(to_ns, self.end_ns)) - from_ns
        if length_ns <= 0:
            return NOTHING
        events = int(self.events[first:after].sum())
        return MetricReading(int(self.amounts[first:after].sum()) / (length_ns / 1e9), events)


@dataclass(frozen=True, slots=True)
class Overdue:
    """Time since the last event, in units of the median interval between events."""

    moments_ns: Whole
    """Ascending."""
    ticks: Ticks
    first_bucket: int
    end_ns: int | None
    """After it no event is due; None while the run is in progress."""

    def reading(self, first: int, after: int) -> MetricReading:
        """Intervals from HISTORY_NS before the tick count; the window only gives the tick."""
        at_ns = self.ticks.at_ns(after + self.first_bucket)
        begin, end = (int(np.searchsorted(self.moments_ns, edge_ns)) for edge_ns in (at_ns - HISTORY_NS, at_ns))
        intervals_ns = np.diff(self.moments_ns[begin:end])
        if len(intervals_ns) < LEAST_INTERVALS or not (usual_ns := _median(intervals_ns)):
            return MetricReading(None, len(intervals_ns))
        now_ns = at_ns if self.end_ns is None else min(at_ns, self.end_ns)
        return MetricReading(max(0, now_ns - int(self.moments_ns[end - 1])) / usual_ns, len(intervals_ns))


def _median(values: Whole) -> float:
    """As of Python's integers, which have no largest; without sorting all of them at each tick."""
    below, above = (len(values) - 1) // 2, len(values) // 2
    parted = np.partition(values, (below, above))
    return int(parted[above]) if below == above else (int(parted[below]) + int(parted[above])) / 2


@dataclass(frozen=True, slots=True)
class Silence:
    """Seconds without data from the worker silent for longest; workers that stopped do not count."""

    starts_ns: Whole
    """Starts of all workers, ascending."""
    running: Sequence[WorkerLife]
    """Workers without a recorded stop, by the end of their data and then by name in reverse."""
    ticks: Ticks
    first_bucket: int
    end_ns: int | None
    """After it no data is due; None while the run is in progress."""

    @classmethod
    def of(cls, workers: Sequence[WorkerLife], ticks: Ticks, first_bucket: int, end_ns: int | None) -> "Silence":
        """The silence of some workers."""
        running = sorted((life for life in workers if not life.has_end), key=lambda life: life.worker_id, reverse=True)
        return cls(starts_ns_of(workers), sorted(running, key=lambda life: life.last_ns), ticks, first_bucket, end_ns)

    def reading(self, first: int, after: int) -> MetricReading:
        """Silence starts at the last known flush or row: a gap before a later one does not count."""
        at_ns = self.ticks.at_ns(after + self.first_bucket)
        now_ns = at_ns if self.end_ns is None else min(at_ns, self.end_ns)
        begun = int(np.searchsorted(self.starts_ns, now_ns, side="right"))
        if not begun:
            return NOTHING
        longest = next((life for life in self.running if life.start_ns <= now_ns), None)
        if longest is None or longest.last_ns >= now_ns:
            return MetricReading(0.0, begun)
        return MetricReading((now_ns - longest.last_ns) / 1e9, begun, longest.worker_id)


def starts_ns_of(workers: Sequence[WorkerLife]) -> Whole:
    """When each worker started, ascending, UTC epoch."""
    return np.sort(np.array([worker.start_ns for worker in workers], dtype=np.int64))


@dataclass(frozen=True, slots=True)
class LongestStretch:
    """The longest unbroken stretch of any worker within the window, in seconds, from stretches of any number."""

    starts_ns: Whole
    """Ascending."""
    ends_ns: Whole
    worker_ids: Sequence[str]
    """One per stretch."""
    begins_ns: Whole
    """When each worker started, ascending."""
    ticks: Ticks
    first_bucket: int

    def reading(self, first: int, after: int) -> MetricReading:
        """Return the longest idle interval, clipped to the window. 0 if every worker always worked."""
        from_ns, to_ns = (self.ticks.at_ns(place + self.first_bucket) for place in (first, after))
        begun = int(np.searchsorted(self.begins_ns, to_ns))
        last = int(np.searchsorted(self.starts_ns, to_ns))
        # No stretch before the first one whose predecessors and itself end in the window reaches into it.
        reach_ns = np.maximum.accumulate(self.ends_ns[:last])
        some = slice(int(np.searchsorted(reach_ns, from_ns, side="right")), last)
        lengths_ns = np.minimum(self.ends_ns[some], to_ns) - np.maximum(self.starts_ns[some], from_ns)
        if not begun:
            return NOTHING
        if not len(lengths_ns):
            return MetricReading(0.0, begun)
        place = int(lengths_ns.argmax())
        return MetricReading(int(lengths_ns[place]) / 1e9, begun, self.worker_ids[some.start + place])


@dataclass(frozen=True, slots=True)
class Constant:
    """A value of the whole run, the same in every window."""

    value: float | None
    evidence: float

    def reading(self, first: int, after: int) -> MetricReading:
        """See Series."""
        return MetricReading(self.value, self.evidence)


@dataclass(frozen=True, slots=True)
class OwnValues:
    """The rows of a rule's SQL, by bucket, ordered by time."""

    values: Mapping[int, Sequence[float]]
    reduction: Reduction

    def reading(self, first: int, after: int) -> MetricReading:
        """See Series."""
        seen = [value for bucket in range(first, after) for value in self.values.get(bucket, ())]
        if not seen:
            return NOTHING
        match self.reduction:
            case "mean":
                return MetricReading(math.fsum(seen) / len(seen), len(seen))
            case "sum":
                return MetricReading(math.fsum(seen), len(seen))
            case "min":
                return MetricReading(min(seen), len(seen))
            case "max":
                return MetricReading(max(seen), len(seen))
            case "last":
                return MetricReading(seen[-1], len(seen))


@dataclass(frozen=True, slots=True)
class Timeline:
    """Parts of a run, laid out as arrays over the buckets [first_bucket, first_bucket + buckets)."""

    parts: Parts
    first_bucket: int
    buckets: int
    step_ends_ns: tuple[int, ...] = field(default=())
    """Known ends of optimizer steps, ascending."""
    warm_up_end_ns: int | None = None
    """The end of warm-up; None if not known yet."""
    residual_ratio: float | None = None
    """The share of the trained rate that the model does not explain; None if no rule needs it."""

    @property
    def ticks(self) -> Ticks:
        """The ticks of the run."""
        return self.parts.ticks

    @property
    def start_ns(self) -> int:
        """Start of the first worker, UTC epoch; the origin of the ticks without workers."""
        return min((worker.start_ns for worker in self.parts.workers), default=self.ticks.origin_ns)

    def rows(self, family: Family, *conditions: pl.Expr) -> pl.DataFrame:
        """The family's rows in these buckets, with `place` counted from the first one; without columns if missing."""
        frame = self.parts.frames.get(family)
        if frame is None or frame.is_empty():
            return pl.DataFrame()
        place = pl.col("bucket") - self.first_bucket
        inside = pl.col("place").is_between(0, self.buckets - 1)
        return frame.with_columns(place.alias("place")).filter(inside, *conditions)

    def sums(self, rows: pl.DataFrame, column: str) -> Whole:
        """The sum of an integer column, by bucket."""
        sums = np.zeros(self.buckets, dtype=np.int64)
        if len(rows):
            np.add.at(sums, rows["place"].to_numpy(), rows[column].fill_null(0).to_numpy())
        return sums

    def counts(self, rows: pl.DataFrame) -> Whole:
        """The number of rows, by bucket."""
        counts = np.zeros(self.buckets, dtype=np.int64)
        if len(rows):
            np.add.at(counts, rows["place"].to_numpy(), 1)
        return counts

    def exact_sums(self, rows: pl.DataFrame, column: str) -> list[float]:
        """The sum of a float column, by bucket, exactly rounded."""
        if not len(rows):
            return [0.0] * self.buckets
        places, values = rows["place"].to_numpy(), rows[column].cast(pl.Float64).to_numpy()
        order = np.argsort(places, kind="stable")
        edges = np.searchsorted(places[order], np.arange(1, self.buckets))
        return [math.fsum(some.tolist()) for some in np.split(values[order], edges)]

    def greatest(self, rows: pl.DataFrame, column: str) -> NDArray[np.float64]:
        """The highest value of a column, by bucket; minus infinity without rows."""
        greatest = np.full(self.buckets, -np.inf)
        if len(rows):
            np.maximum.at(greatest, rows["place"].to_numpy(), rows[column].cast(pl.Float64).to_numpy())
        return greatest

    def by_level(self, rows: pl.DataFrame, level: str, weight: str) -> tuple[tuple[int, ...], Whole]:
        """The distinct values of a column, ascending, and the sum of another column by bucket and value."""
        if rows.is_empty():
            return (), np.zeros((self.buckets, 0), dtype=np.int64)
        levels = rows[level].unique().sort()
        weights = np.zeros((self.buckets, len(levels)), dtype=np.int64)
        columns = np.searchsorted(levels.to_numpy(), rows[level].to_numpy())
        np.add.at(weights, (rows["place"].to_numpy(), columns), rows[weight].to_numpy())
        return tuple(levels.to_list()), weights


def merged(old: pl.DataFrame | None, new: pl.DataFrame, replaced: Iterable[int], keep_from: int) -> pl.DataFrame:
    """Rows with the replaced buckets taken from new, and buckets before keep_from removed."""
    buckets = list(replaced)
    fresh = new.filter(pl.col("bucket").is_in(buckets)) if len(new) else new
    if old is None or old.is_empty():
        return fresh
    kept = old.filter(~pl.col("bucket").is_in(buckets) & (pl.col("bucket") >= keep_from))
    # Rechunk: one chunk per poll would make every poll slower than the one before.
    return pl.concat([kept, fresh], how="vertical_relaxed", rechunk=True) if len(fresh) else kept
