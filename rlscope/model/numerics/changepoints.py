"""The levels of a series of steps: where they change, the last stretch of one level, and whether it drifts.

Warm-up, drift and the end of a run make a mean over the whole run meaningless. Levels are found by binary segmentation
of the log step time with a multiple of the Schwarz penalty (Scott and Knott 1974 for the splits; Yao 1988 for the
penalty); the noise level is the median absolute first difference, which a change of level does not inflate. Outliers
are replaced by the running median before the segmentation (Hampel 1974), so that a checkpoint or an evaluation, which
slows down a few steps, does not count as a level. A drift is a line through the logarithm. Not covered: seasonal
effects, and several drifts in a row.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from statistics import median, median_low
from typing import Final

import numpy as np
import numpy.typing as npt

LEAST_STEPS_TO_SETTLE: Final = 10
"""Minimum steps to tell a level from noise: with fewer, the standard error of the noise level alone exceeds 25%."""
_LEAST_LEVEL_STEPS: Final = LEAST_STEPS_TO_SETTLE // 2
"""Minimum steps of a level; anything shorter is an outlier."""
_MEDIAN_STEPS: Final = 2 * _LEAST_LEVEL_STEPS - 1
"""Steps of the running median: the largest window in which every level has the majority at each of its steps."""
_OUTLIER_SIGMAS: Final = 3.0
"""Distance from the running median that makes an outlier: the customary bound of Hampel's filter."""
_PENALTY: Final = 3.0
"""Multiples of log(n) noise variances that a split must explain: 2 is the Schwarz criterion, 3 allows for dependent
steps."""
MAD_TO_SIGMA: Final = 1.4826
"""Standard deviation over median absolute deviation, for normal noise."""
_SMALLEST_SIGMA: Final = 0.02
"""Changes of level within about 2% are not worth a cut, however quiet the run."""
_LEAST_WORTH: Final = 6.0
"""Least distance between two levels in standard errors: many places of several series are tried."""
_AT_ONCE_RATIO: Final = 0.6
"""Least share of a change that is left of it beside a drift: nothing is left of a drift that was taken for a change."""
_CONFIDENCE_RATIO: Final = 0.99
"""Two-sided confidence. Of steady series of 30 to 100 steps, dependent ones too, 2 to 3% are reported as drifting: the
autocorrelation itself is estimated, slightly too low."""
_WORTH_RATIO: Final = 0.05
"""Minimum drift from end to end: a smaller one changes no decision, however certain it is."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps [first, last] of the given sequence, both included."""

    first: int
    last: int


def last_stable_stretch(periods_s: Sequence[float]) -> Stretch | None:
    """Return the last stretch over which the period keeps one level; None without one.

    It has at least LEAST_STEPS_TO_SETTLE steps. Outliers cut nothing, but a stretch neither begins nor ends with one.
    periods_s: one positive period per step, in order, seconds.
    """
    if len(periods_s) < LEAST_STEPS_TO_SETTLE:
        return None
    levels = [math.log(max(period_s, 1e-9)) for period_s in periods_s]
    sigma = _noise(levels)
    bound = _OUTLIER_SIGMAS * sigma
    edges = _edges(_without_outliers(levels, bound), sigma**2)
    stretches = [_trimmed(levels, first, after, bound) for first, after in pairwise(edges)]
    long_enough = [stretch for stretch in stretches if stretch.last - stretch.first + 1 >= LEAST_STEPS_TO_SETTLE]
    return long_enough[-1] if long_enough else None


def _without_outliers(levels: Sequence[float], bound: float) -> list[float]:
    """Replace levels that are further than the bound from the running median by that median.

    At the ends, the running median is that of the first or the last _MEDIAN_STEPS levels.
    """
    given, last = np.asarray(levels), len(levels) - _MEDIAN_STEPS
    medians = np.median(np.lib.stride_tricks.sliding_window_view(given, _MEDIAN_STEPS), axis=1)
    typical = medians[np.clip(np.arange(len(levels)) - _MEDIAN_STEPS // 2, 0, last)]
    return np.where(np.abs(given - typical) <= bound, given, typical).tolist()


def _trimmed(levels: Sequence[float], first: int, after: int, bound: float) -> Stretch:
    """Return steps [first, after) without the outliers at their ends."""
    usual = median_low(levels[first : min(first + _MEDIAN_STEPS, after)])
    while abs(levels[first] - usual) > bound:
        first += 1
    usual = median_low(levels[max(after - _MEDIAN_STEPS, first) : after])
    while abs(levels[after - 1] - usual) > bound:
        after -= 1
    return Stretch(first, after - 1)


def _noise(levels: Sequence[float]) -> float:
    """Standard deviation of the noise, from first differences (their deviation is sqrt(2) times it)."""
    differences = [abs(after - before) for before, after in pairwise(levels)]
    return max(MAD_TO_SIGMA * median(differences) / math.sqrt(2), _SMALLEST_SIGMA)


def _edges(levels: Sequence[float], variance: float) -> list[int]:
    """Return where each level begins, and the end of the last one."""
    sums = [0.0, *accumulate(levels)]
    threshold = _PENALTY * math.log(len(levels)) * variance
    edges, pending = [0, len(levels)], [(0, len(levels))]
    while pending:
        start, end = pending.pop()
        cut = _best_cut(sums, start, end, threshold)
        if cut is not None:
            edges.append(cut)
            pending += [(start, cut), (cut, end)]
    return sorted(edges)


def _best_cut(sums: Sequence[float], start: int, end: int, threshold: float) -> int | None:
    """Cut at which two levels explain most more than one, above the threshold; parts keep _LEAST_LEVEL_STEPS steps."""
    total, count = sums[end] - sums[start], end - start
    best, best_gain = None, threshold
    for cut in range(start + _LEAST_LEVEL_STEPS, end - _LEAST_LEVEL_STEPS + 1):
        left, left_count = sums[cut] - sums[start], cut - start
        right, right_count = total - left, count - left_count
        gain = left * left / left_count + right * right / right_count - total * total / count
        if gain > best_gain:
            best, best_gain = cut, gain
    return best


@dataclass(frozen=True, slots=True)
class LevelChange:
    """A change of level at one place of a series."""

    place: int
    """Index of the first value of the new level."""
    before: float
    """Median of the level before."""
    after: float
    """Median of the level after."""
    worth: float
    """Distance between the levels in standard errors."""


def level_changes(values: Sequence[float], least: float) -> list[LevelChange]:
    """Return the changes of level of a series, in order: steps that last, not outliers and not a drift.

    A change is at least `least`, in the unit of the values; it is far outside the error of both levels, widened by the
    autocorrelation of what is left; most of it happens at once; and both levels last for LEAST_STEPS_TO_SETTLE steps,
    so that swings are none. A warm-up shorter than that is left out, however far it is from what follows.
    """
    if len(values) < 2 * LEAST_STEPS_TO_SETTLE:
        return []
    sigma = _noise(values)
    cleaned = _without_outliers(values, _OUTLIER_SIGMAS * sigma)
    edges = _edges(cleaned, sigma**2)
    if edges[1] < LEAST_STEPS_TO_SETTLE:
        return [replace(each, place=each.place + edges[1]) for each in level_changes(values[edges[1] :], least)]
    while len(edges) > 2:
        edges = _moved(cleaned, edges)
        found = _changes(cleaned, edges)
        strengths = [_strength(change, cleaned, edges, place, least) for place, change in enumerate(found)]
        if min(strengths) >= _LEAST_WORTH:
            is_drift = _line_error(cleaned) <= _level_error(cleaned, edges)
            return [] if is_drift else _placed(values, edges, found)
        del edges[strengths.index(min(strengths)) + 1]
    return []


def _moved(values: Sequence[float], edges: Sequence[int]) -> list[int]:
    """Move each cut to the best place between its neighbors."""
    sums = [0.0, *accumulate(values)]
    moved = list(edges)
    for place in range(1, len(edges) - 1):
        moved[place] = _best_cut(sums, moved[place - 1], moved[place + 1], 0.0) or moved[place]
    return moved


def _placed(values: Sequence[float], edges: Sequence[int], changes: Sequence[LevelChange]) -> list[LevelChange]:
    """Move each change to the place near it that leaves the least distance to the levels of both sides.

    The given values count, and not the cleaned ones: where one side is much noisier than the other, cleaning takes the
    noise of that side for outliers, and mixes both sides near the change.
    """
    placed: list[LevelChange] = []
    for (first, _, after), change in zip(zip(edges, edges[1:], edges[2:], strict=False), changes, strict=True):
        near = range(max(first, change.place - LEAST_STEPS_TO_SETTLE), min(after, change.place + LEAST_STEPS_TO_SETTLE))
        given = np.asarray(values[near.start : near.stop])
        farther = np.abs(given - change.before) - np.abs(given - change.after)
        left = np.concatenate([[0.0], np.cumsum(farther)])
        best = int(np.argmin(left))
        placed.append(replace(change, place=near.start + best))
    return placed


def _changes(values: Sequence[float], edges: Sequence[int]) -> list[LevelChange]:
    # Slow to import, and `check` looks for findings without it.
    from rlscope.model.numerics.bootstrap import autocorrelation_time

    levels = [median(values[first:after]) for first, after in pairwise(edges)]
    left = np.concatenate(
        [np.asarray(values[first:after]) - level for (first, after), level in zip(pairwise(edges), levels, strict=True)]
    )
    sigma = max(MAD_TO_SIGMA * float(np.median(np.abs(left))), 1e-9)
    variance = sigma**2 * autocorrelation_time(left)
    changes: list[LevelChange] = []
    for place, (before, after) in enumerate(pairwise(levels)):
        counts = edges[place + 1] - edges[place], edges[place + 2] - edges[place + 1]
        error = math.sqrt(variance * (1.0 / counts[0] + 1.0 / counts[1]))
        changes.append(LevelChange(edges[place + 1], before, after, abs(after - before) / error))
    return changes


def _strength(change: LevelChange, values: Sequence[float], edges: Sequence[int], place: int, least: float) -> float:
    """Return the worth of a change; 0 if it or a level is too short, or if the series drifts between the levels."""
    first, cut, after = edges[place : place + 3]
    if min(cut - first, after - cut) < LEAST_STEPS_TO_SETTLE:
        return 0.0
    jump, at_once = change.after - change.before, _jump_beside_drift(values[first:after], cut - first)
    return change.worth if abs(jump) >= least and at_once * jump >= _AT_ONCE_RATIO * jump * jump else 0.0


def _jump_beside_drift(values: Sequence[float], place: int) -> float:
    """Return the jump of a series at a place if it also drifts along one line on both sides (least squares)."""
    times = np.arange(len(values)) - (len(values) - 1) / 2.0
    columns = np.column_stack([np.ones(len(values)), times, np.arange(len(values)) >= place])
    return float(np.linalg.lstsq(columns, np.asarray(values), rcond=None)[0][2])


def _level_error(values: Sequence[float], edges: Sequence[int]) -> float:
    """Return the sum of squares around the mean of each level."""
    return sum(float(np.var(values[first:after])) * (after - first) for first, after in pairwise(edges))


def _line_error(values: Sequence[float]) -> float:
    """Return the sum of squares around a straight line."""
    times = np.arange(len(values)) - (len(values) - 1) / 2.0
    centered = np.asarray(values) - np.mean(values)
    return float((centered**2).sum() - (times * centered).sum() ** 2 / (times**2).sum())


@dataclass(frozen=True, slots=True)
class Drift:
    """A line through the logarithm of a series."""

    change_ratio: float
    """Growth of the quantity over the series: last over first value of the line, minus 1."""
    drifts: bool
    """Whether the drift is certain, and large enough to matter."""


def drift(values: npt.ArrayLike) -> Drift | None:
    """Fit a drift to a positive series: a least-squares line through its logarithm.

    The line's error is widened by the autocorrelation of the residuals. None with fewer than LEAST_STEPS_TO_SETTLE
    steps, or if a value is not positive.
    """
    # Slow to import, and `check` looks for findings without it.
    from scipy.special import stdtrit

    from rlscope.model.numerics.bootstrap import autocorrelation_time

    series = np.asarray(values, dtype=np.float64)
    if series.size < LEAST_STEPS_TO_SETTLE or series.min() <= 0.0:
        return None
    logs, times = np.log(series), np.arange(series.size) - (series.size - 1) / 2.0
    slope = float((times * logs).sum() / (times**2).sum())
    left = logs - logs.mean() - slope * times
    worth = autocorrelation_time(left)
    freedom = max(series.size / worth - 2.0, 1.0)
    error = math.sqrt(worth * float((left**2).sum()) / max(series.size - 2, 1) / float((times**2).sum()))
    change = slope * (series.size - 1)
    margin = stdtrit(freedom, (1.0 + _CONFIDENCE_RATIO) / 2.0) * error * (series.size - 1)
    change_ratio = math.expm1(change)
    return Drift(change_ratio, drifts=abs(change) > margin and abs(change_ratio) > _WORTH_RATIO)
