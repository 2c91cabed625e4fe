"""The last stable stretch of a run: where its rates can be quoted as one number.

Warm-up, drift of the response lengths and the final drain make a mean over the whole run meaningless. The stretch is
found by binary segmentation of the log step period into pieces of constant level, with the penalty of the Schwarz
criterion (Scott and Knott 1974 for the splits; Yao 1988 for the penalty); the noise level is taken from the median
absolute first difference, which a change of level does not inflate. Not covered: slow drifts that never step, and
seasonal effects.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

LEAST_STEPS: Final = 10
"""Fewer steps cannot tell a level from noise: the standard error of the noise level alone is then above 25 %."""
_PENALTY: Final = 3.0
"""Multiples of log(n) noise variances that a split must explain: 2 is the Schwarz criterion, 3 forgives outliers."""
_MAD_TO_SIGMA: Final = 1.4826
"""Standard deviation over median absolute deviation, for normal noise."""
_SMALLEST_SIGMA: Final = 0.02
"""Changes of level within about 2 % are not worth a cut, however quiet the run."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps [first, last] of the sequence given, both included."""

    first: int
    last: int


def last_stable_stretch(periods_s: Sequence[float]) -> Stretch | None:
    """The last stretch of at least LEAST_STEPS steps over which the period keeps one level; None when there is none.

    periods_s: one positive period per step, in order, seconds.
    """
    if len(periods_s) < LEAST_STEPS:
        return None
    levels = [math.log(max(period_s, 1e-9)) for period_s in periods_s]
    edges = [0, *sorted(_cuts(levels, 0, len(levels), _noise(levels) ** 2)), len(levels)]
    stretches = [Stretch(first, after - 1) for first, after in pairwise(edges)]
    long_enough = [stretch for stretch in stretches if stretch.last - stretch.first + 1 >= LEAST_STEPS]
    return long_enough[-1] if long_enough else None


def _noise(levels: Sequence[float]) -> float:
    """Standard deviation of the noise, from first differences (their deviation is sqrt(2) times it)."""
    differences = [abs(after - before) for before, after in pairwise(levels)]
    return max(_MAD_TO_SIGMA * median(differences) / math.sqrt(2), _SMALLEST_SIGMA)


def _cuts(levels: Sequence[float], first: int, after: int, variance: float) -> list[int]:
    sums = [0.0]
    for level in levels:
        sums.append(sums[-1] + level)
    threshold = _PENALTY * math.log(len(levels)) * variance
    cuts: list[int] = []
    pending = [(first, after)]
    while pending:
        start, end = pending.pop()
        cut = _best_cut(sums, start, end, threshold)
        if cut is not None:
            cuts.append(cut)
            pending += [(start, cut), (cut, end)]
    return cuts


def _best_cut(sums: Sequence[float], start: int, end: int, threshold: float) -> int | None:
    """Where two levels explain most more than one, above the threshold. Pieces keep LEAST_STEPS / 2 steps."""
    total, count = sums[end] - sums[start], end - start
    best, best_gain = None, threshold
    shortest = LEAST_STEPS // 2
    for cut in range(start + shortest, end - shortest + 1):
        left, left_count = sums[cut] - sums[start], cut - start
        right, right_count = total - left, count - left_count
        gain = left * left / left_count + right * right / right_count - total * total / count
        if gain > best_gain:
            best, best_gain = cut, gain
    return best
