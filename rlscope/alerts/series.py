"""A metric over any window of a run, from arrays with one entry per bucket. Pure.

A `Timeline` holds the rows of a run by bucket; a series is built from it once and then answers for any window.
Sums are integers or exactly rounded, so a window's value does not depend on what else is known.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from rlscope.alerts.buckets import Family, Ticks, WorkerLife, trained_until_ns
from rlscope.analysis.staleness import token_staleness

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


Series = Callable[[int, int], MetricReading]
"""A metric over buckets [first, after), counted from the first bucket of a timeline."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """A run, or a part of it, as the buckets [first_bucket, first_bucket + buckets), and facts that have no bucket."""

    ticks: Ticks
    first_bucket: int
    buckets: int
    frames: Mapping[Family, pl.DataFrame]
    """Rows by family, each with a column `bucket`; families that no rule needs are missing."""
    workers: tuple[WorkerLife, ...]
    kv_capacity_tokens: Mapping[str, int]
    """By engine; missing if not recorded."""
    dropped_rows: int
    stored_rows: int
    max_staleness: int | None
    step_ends_ns: tuple[int, ...]
    """Known ends of optimizer steps, ascending."""
    warm_up_end_ns: int | None
    """The end of warm-up; None if not known yet."""
    missing_rows: int | None = None
    """Rows that the workers wrote and that are missing. None while this is unknown."""
    end_ns: int | None = None
    """End of the run; None while it is in progress."""

    @property
    def start_ns(self) -> int:
        """Start of the first worker, UTC epoch; the origin of the ticks without workers."""
        return min((worker.start_ns for worker in self.workers), default=self.ticks.origin_ns)

    @property
    def due_until_ns(self) -> int | None:
        """The end of the last trainer: after it, no step, weight update or sign of life is due. None while unknown."""
        ends_ns = (trained_until_ns(self.workers), self.end_ns)
        return min((end_ns for end_ns in ends_ns if end_ns is not None), default=None)

    def at_ns(self, place: int) -> int:
        """Return the start of a bucket, counted from the first one, UTC epoch."""
        return self.ticks.at_ns(self.first_bucket + place)

    def rows(self, family: Family, *conditions: pl.Expr) -> pl.DataFrame:
        """The family's rows in these buckets, with `place` counted from the first one; without columns if missing."""
        frame = self.frames.get(family)
        if frame is None:
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

    def by_level(self, rows: pl.DataFrame, level: str, weight: str) -> tuple[tuple[int, ...], Whole]:
        """The distinct values of a column, ascending, and the sum of another column by bucket and value."""
        if rows.is_empty():
            return (), np.zeros((self.buckets, 0), dtype=np.int64)
        levels = rows[level].unique().sort()
        weights = np.zeros((self.buckets, len(levels)), dtype=np.int64)
        columns = np.searchsorted(levels.to_numpy(), rows[level].to_numpy())
        np.add.at(weights, (rows["place"].to_numpy(), columns), rows[weight].to_numpy())
        return tuple(levels.to_list()), weights


def ratio(
    upper: Whole | Sequence[float], lower: Whole | Sequence[float], evidence: Whole, evidence_unit: float = 1
) -> Series:
    """Return sum over sum; no value if the lower sum is 0. Sums of floats are exactly rounded: order has no effect."""

    def over(first: int, after: int) -> MetricReading:
        above, below = (_total(values[first:after]) for values in (upper, lower))
        return MetricReading(above / below, int(evidence[first:after].sum()) * evidence_unit) if below else NOTHING

    return over


def _total(values: Whole | Sequence[float]) -> float:
    return int(values.sum()) if isinstance(values, np.ndarray) else math.fsum(values)


def histogram(levels: tuple[int, ...], weights: Whole, statistic: Statistic) -> Series:
    """Return a statistic of weighted integers. levels: ascending. weights: by bucket and level."""

    def over(first: int, after: int) -> MetricReading:
        """Read the statistic of all weights in the window."""
        sums = weights[first:after].sum(axis=0).tolist()
        seen = tuple((level, weight) for level, weight in zip(levels, sums, strict=True) if weight)
        ages = token_staleness(seen)
        return NOTHING if ages is None else MetricReading(getattr(ages, statistic), sum(weight for _, weight in seen))

    return over


def highest(parts: Sequence[Series]) -> Series:
    """Return the highest of several series, such as the share of the fullest queue."""

    def over(first: int, after: int) -> MetricReading:
        known = [reading for part in parts if (reading := part(first, after)).value is not None]
        return max(known, key=lambda reading: reading.value or 0.0, default=NOTHING)

    return over


def rate(timeline: Timeline, amounts: Whole, events: Whole) -> Series:
    """Return amounts per second of the window, clipped to the run."""
    start_ns, end_ns = timeline.start_ns, timeline.end_ns

    def over(first: int, after: int) -> MetricReading:
        length_ns = _until(timeline.at_ns(after), end_ns) - max(timeline.at_ns(first), start_ns)
        if length_ns <= 0:
            return NOTHING
        return MetricReading(int(amounts[first:after].sum()) / (length_ns / 1e9), int(events[first:after].sum()))

    return over


def _until(at_ns: int, end_ns: int | None) -> int:
    return at_ns if end_ns is None else min(at_ns, end_ns)


def overdue(timeline: Timeline, moments_ns: Whole) -> Series:
    """Return the time since the last event while one is due, in units of the median interval between events.

    Intervals from HISTORY_NS before the tick count; the window only gives the tick. moments_ns: ascending.
    """
    end_ns = timeline.due_until_ns

    def over(_first: int, after: int) -> MetricReading:
        """Read the delay at the end of the window."""
        at_ns = timeline.at_ns(after)
        begin, end = (int(np.searchsorted(moments_ns, edge_ns)) for edge_ns in (at_ns - HISTORY_NS, at_ns))
        intervals_ns = np.diff(moments_ns[begin:end])
        if len(intervals_ns) < LEAST_INTERVALS or not (usual_ns := float(np.median(intervals_ns))):
            return MetricReading(None, len(intervals_ns))
        late_ns = max(0, _until(at_ns, end_ns) - int(moments_ns[end - 1]))
        return MetricReading(late_ns / usual_ns, len(intervals_ns))

    return over


def silence(timeline: Timeline) -> Series:
    """Return the seconds without data from the worker silent for longest; one that stopped or was replaced is not.

    Silence starts at the last known flush or row: a gap before a later one does not count.
    """
    starts_ns, end_ns = _starts_ns(timeline), timeline.due_until_ns
    # By the end of their data and then by name in reverse.
    left = [life for life in timeline.workers if not life.is_over]
    running = sorted(left, key=lambda life: life.worker_id, reverse=True)
    running.sort(key=lambda life: life.last_ns)

    def over(_first: int, after: int) -> MetricReading:
        """Read the longest silence at the end of the window."""
        now_ns = _until(timeline.at_ns(after), end_ns)
        begun = int(np.searchsorted(starts_ns, now_ns, side="right"))
        if not begun:
            return NOTHING
        longest = next((life for life in running if life.start_ns <= now_ns), None)
        if longest is None or longest.last_ns >= now_ns:
            return MetricReading(0.0, begun)
        return MetricReading((now_ns - longest.last_ns) / 1e9, begun, longest.worker_id)

    return over


def _starts_ns(timeline: Timeline) -> Whole:
    """When each worker started, ascending, UTC epoch."""
    return np.sort(np.array([worker.start_ns for worker in timeline.workers], dtype=np.int64))


def longest_stretch(timeline: Timeline, starts_ns: Whole, ends_ns: Whole, worker_ids: Sequence[str]) -> Series:
    """Return the longest of any number of stretches within the window, in seconds; 0 if there is none.

    Each is clipped to the window. starts_ns: ascending. worker_ids: one per stretch.
    """
    begins_ns = _starts_ns(timeline)

    def over(first: int, after: int) -> MetricReading:
        """Read the longest stretch, clipped to the window."""
        from_ns, to_ns = timeline.at_ns(first), timeline.at_ns(after)
        begun = int(np.searchsorted(begins_ns, to_ns))
        last = int(np.searchsorted(starts_ns, to_ns))
        # No stretch before the first one whose predecessors and itself end in the window reaches into it.
        reach_ns = np.maximum.accumulate(ends_ns[:last])
        some = slice(int(np.searchsorted(reach_ns, from_ns, side="right")), last)
        lengths_ns = np.minimum(ends_ns[some], to_ns) - np.maximum(starts_ns[some], from_ns)
        if not begun:
            return NOTHING
        if not len(lengths_ns):
            return MetricReading(0.0, begun)
        place = int(lengths_ns.argmax())
        return MetricReading(int(lengths_ns[place]) / 1e9, begun, worker_ids[some.start + place])

    return over


def constant(value: float | None, evidence: float = 0) -> Series:
    """Return a value of the whole run, the same in every window."""
    return lambda _first, _after: MetricReading(value, evidence)


def merged(old: pl.DataFrame | None, new: pl.DataFrame, replaced: Iterable[int], keep_from: int) -> pl.DataFrame:
    """Rows with the replaced buckets taken from new, and buckets before keep_from removed."""
    buckets = list(replaced)
    fresh = new.filter(pl.col("bucket").is_in(buckets)) if len(new) else new
    if old is None or old.is_empty():
        return fresh
    kept = old.filter(~pl.col("bucket").is_in(buckets) & (pl.col("bucket") >= keep_from))
    # Rechunk: one chunk per poll would make every poll slower than the one before.
    return pl.concat([kept, fresh], how="vertical_relaxed", rechunk=True) if len(fresh) else kept
