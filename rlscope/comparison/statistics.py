"""Tests whether two runs differ: a difference with its interval, and the smallest difference that would be detected.

A quantity of a run is a sum over its steps divided by another sum. Its variance comes from the slowest cosine waves of
the steps (Müller 2007): neighboring steps depend on each other, because samples in flight span several of them, and
slow waves have both what adds up over steps and what cancels between them. Student's t with Welch's degrees of freedom
allows for the small number of waves.

Not covered: anything that differs between two starts of one run and stays constant within each, such as a different
node of the same kind. The only sign of this within a run is the difference between its halves, so no smaller difference
is called significant.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from scipy.special import stdtr, stdtrit

from rlscope.model.arrays import Reals
from rlscope.model.numerics.bootstrap import block_steps

LEVEL: Final = 0.05
"""Significance level of every test: the share of identical pairs that may be called different."""
INTERVAL_RATIO: Final = 0.95
"""Coverage of every interval of a comparison."""
LEAST_STEPS: Final = 8
"""Minimum number of steps: fewer carry no information about their correlation."""
LEAST_BLOCKS: Final = 4
"""Minimum number of stretches of two autocorrelation times: with fewer, slow variation cannot be told from a level."""
_POWER_RATIO: Final = 0.8
"""Share of pairs of runs in which a detectable difference would be detected."""
_ROUNDING: Final = 1e-24
"""Maximum variance, relative to the squared value, that is only floating-point error."""
_WAVES: Final = 0.41
"""Waves per steps^(2/3), which minimizes the mean squared error (Lazarus, Lewis, Stock and Watson 2018)."""
_LEAST_WAVES: Final = 6
"""Minimum number of waves: with fewer, a short run often has too little spread by chance."""
_SLOW_WAVES: Final = 3
"""Number of the slowest waves, which show slow changes best."""

Scale = Literal["ratio", "absolute"]
"""ratio: B / A - 1. absolute: B - A, in the unit of the quantity."""


@dataclass(frozen=True, slots=True, eq=False)
class StepSeries:
    """A quantity of a run, step by step: its value is the sum of numerators divided by the sum of denominators."""

    numerators: Reals
    denominators: Reals

    @property
    def value(self) -> float | None:
        """The quantity over all steps; None if the denominators add up to 0."""
        below = math.fsum(self.denominators)
        return math.fsum(self.numerators) / below if below else None

    def part(self, which: slice) -> "StepSeries":
        """Return the quantity over some of the steps."""
        return StepSeries(self.numerators[which], self.denominators[which])


Measure = StepSeries | float | None
"""A quantity of a run: step by step, only as a total, or unknown."""


def value_of(measure: Measure) -> float | None:
    """Return the quantity over the whole run; None if it is unknown."""
    return measure.value if isinstance(measure, StepSeries) else measure


@dataclass(frozen=True, slots=True)
class Difference:
    """A quantity of two runs, and their difference; None means no data."""

    before: float | None
    """Value in A."""
    after: float | None
    """Value in the other run."""
    scale: Scale
    """Whether `change` is a ratio or a difference."""
    change: float | None
    """Difference on the scale."""
    low: float | None = None
    """Low end of its 95% interval; None, as the high end, if a run has too few steps, or only a total."""
    high: float | None = None
    """High end of its 95% interval."""
    p_value: float | None = None
    """Probability, 0 to 1, of a difference at least this large between two runs with the same settings, before
    correction; None if it was not tested because a run has too few steps."""
    detectable: float | None = None
    """The smallest difference that would be detected in 80% of such pairs, on the scale."""
    own_change: float | None = None
    """The larger of the two runs' absolute differences between their halves, on the scale; None with too few steps."""
    is_significant: bool = False
    """Whether the difference is more than noise: the interval excludes 0 (after correction, if several quantities are
    tested), and the halves of neither run differ by more."""

    @property
    def is_noisy(self) -> bool:
        """Whether the halves of one run differ by at least as much as the runs do."""
        return self.change is not None and self.own_change is not None and abs(self.change) <= self.own_change


@dataclass(frozen=True, slots=True)
class _Spread:
    """The variance of a quantity within one run, and its degrees of freedom."""

    variance: float
    freedom: float


def difference(before: Measure, after: Measure, scale: Scale) -> Difference:
    """Compare a quantity of two runs, without correction for multiple tests; totals alone are not tested."""
    first, then = map(value_of, (before, after))
    change = changed(first, then, scale)
    if not isinstance(before, StepSeries) or not isinstance(after, StepSeries) or change is None:
        return Difference(first, then, scale, change)
    plain = Difference(first, then, scale, change, own_change=_own_change(before, after, scale))
    spreads = [_spread(each, scale) for each in (before, after)]
    if spreads[0] is None or spreads[1] is None:
        return plain
    return _judged(plain, spreads[0], spreads[1])


def difference_of_runs(before: Sequence[Measure], after: Sequence[Measure], scale: Scale) -> Difference:
    """Compare the means of two groups of runs by Student's t-test, in which each run counts once.

    The spread between runs is assumed to be the same in both groups, so that one run can be compared with several.
    Ratios are compared as logarithms. A mean is None if a value of its group is. The difference is not tested without
    a group of two runs, or if the runs of each group are equal: they then show no spread to test it against.
    """
    groups = [_on_scale([*map(value_of, each)], scale) for each in (before, after)]
    means = [None if each is None else float(each.mean()) for each in groups]
    if scale == "ratio":
        means = [None if mean is None else math.exp(mean) for mean in means]
    plain = Difference(means[0], means[1], scale, changed(means[0], means[1], scale))
    freedom = len(before) + len(after) - 2
    known = [each for each in groups if each is not None]
    if len(known) < 2 or not freedom:
        return plain
    variance = math.fsum(float(((each - each.mean()) ** 2).sum()) for each in known) / freedom
    if variance <= _ROUNDING * max(1.0, *(float((each**2).mean()) for each in known)):
        return plain
    of_means = variance * (1.0 / len(before) + 1.0 / len(after))
    return _judged(plain, _Spread(of_means, float(freedom)), _Spread(0.0, 1.0))


def _on_scale(values: Sequence[float | None], scale: Scale) -> Reals | None:
    """Return the values, or their logarithms for a ratio; None if one is unknown, or not positive for a ratio."""
    known = np.array([each for each in values if each is not None and (scale == "absolute" or each > 0.0)])
    if known.size < len(values):
        return None
    return np.log(known) if scale == "ratio" else known


def changed(before: float | None, after: float | None, scale: Scale) -> float | None:
    """Return the difference of two values on a scale; None if one is missing, or not positive for a ratio."""
    if before is None or after is None:
        return None
    if scale == "absolute":
        return after - before
    return after / before - 1.0 if before > 0 and after > 0 else None


def _judged(plain: Difference, before: _Spread, after: _Spread) -> Difference:
    """Add the interval of Welch's test (Welch 1947).

    Ratios are tested as logarithms, so that swapping A and B does not matter.
    """
    assert plain.change is not None
    variance, is_ratio = before.variance + after.variance, plain.scale == "ratio"
    error, center = math.sqrt(variance), math.log1p(plain.change) if is_ratio else plain.change
    # If both runs are constant, any difference is significant.
    freedom, p_value = 1.0, float(not center)
    if error:
        freedom = variance**2 / math.fsum(each.variance**2 / each.freedom for each in (before, after))
        p_value = 2.0 * float(stdtr(freedom, -abs(center) / error))
    reach = float(stdtrit(freedom, (1.0 + INTERVAL_RATIO) / 2.0)) * error
    power = float(stdtrit(freedom, _POWER_RATIO)) * error
    on_scale = math.expm1 if is_ratio else float
    return replace(
        plain,
        low=on_scale(center - reach),
        high=on_scale(center + reach),
        p_value=p_value,
        detectable=on_scale(reach + power),
        is_significant=p_value < LEVEL and not plain.is_noisy,
    )


def corrected(differences: Sequence[Difference]) -> tuple[Difference, ...]:
    """Correct the significance of the differences for testing all of them (Holm 1979)."""
    p_values = {index: each.p_value for index, each in enumerate(differences) if each.p_value is not None}
    passed = set[int]()
    for rank, index in enumerate(sorted(p_values, key=p_values.__getitem__)):
        if p_values[index] >= LEVEL / (len(p_values) - rank):
            break
        passed.add(index)
    return tuple(
        replace(each, is_significant=each.is_significant and index in passed) for index, each in enumerate(differences)
    )


def _own_change(before: StepSeries, after: StepSeries, scale: Scale) -> float | None:
    halves = [_between_halves(each, scale) for each in (before, after)]
    known = [abs(each) for each in halves if each is not None]
    return max(known, default=None)


def _between_halves(series: StepSeries, scale: Scale) -> float | None:
    """Compare the second half of a run with the first: this varies as between two runs as long as a half."""
    steps = series.numerators.size
    if steps < LEAST_STEPS:
        return None
    return changed(series.part(slice(0, steps // 2)).value, series.part(slice(steps // 2, steps)).value, scale)


def _spread(series: StepSeries, scale: Scale) -> _Spread | None:
    """Return the variance of the quantity, or of its logarithm for a ratio; None if there are too few steps.

    The larger of two estimates is used: one from the number of waves with the least error, one from the three slowest
    waves. Each wave is one degree of freedom.
    """
    steps, value = series.numerators.size, series.value
    if steps < LEAST_STEPS or value is None or (scale == "ratio" and value <= 0):
        return None
    residuals = series.numerators - value * series.denominators
    if steps < LEAST_BLOCKS * block_steps(residuals):
        return None
    total = float(series.denominators.sum()) * (value if scale == "ratio" else 1.0)
    most = max(_LEAST_WAVES, round(_WAVES * steps ** (2.0 / 3.0)))
    phases = np.pi / steps * np.outer(np.arange(1, most + 1), np.arange(steps) + 0.5)
    powers = 2.0 * (np.cos(phases) @ residuals) ** 2 / total**2
    variances = {waves: float(powers[:waves].mean()) for waves in (most, _SLOW_WAVES)}
    waves = max(variances, key=lambda waves: variances[waves])
    size = 1.0 if scale == "ratio" else value**2
    return _Spread(variances[waves] if variances[waves] > _ROUNDING * max(1.0, size) else 0.0, float(waves))
