"""A metric over a window of buckets: sums over sums, quantiles of histograms, the worst of a kind. Pure.

Every series is made once of the parts of a run, or of the last part of it, and answers for any window in it. Sums are
of whole numbers, or exact, so that the same window gives the same value whatever else is known.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rlscope.alerts.parts import Ticks, WorkerLife
from rlscope.alerts.rule import Reduction
from rlscope.staleness import weighted_quantile

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
