"""Whether two runs differ: a difference with its interval, and the smallest one that would have been detected.

A quantity of a run is a sum over its steps divided by another sum. How far that could be off is found by resampling
stretches of neighbouring steps (`model/numerics/bootstrap.py`), because steps that share samples are related; runs are
resampled independently of each other. Blocks are a few steps long and miss what varies more slowly, so the quarters of
each run are compared too (batch means, Conway 1963), and the larger variance of the two counts. Few stretches widen the
interval by Student's t with Welch's degrees of freedom.
Where samplers set the pace, a step that takes long for its tokens is made up for by the next: the samples in flight
belong to both. Every block then has the noise of its two ends, which cancels over the run. Such steps show by the
variance of blocks, which is less than that of as many independent steps (Lo and MacKinlay 1988); their variance is read
from their slowest waves instead (cosine transforms, Müller 2007).
Not covered: what differs between two starts of one run and stays constant within each, such as another node of the
same kind. What a run shows of that is the difference between its own halves: no smaller one is called significant.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, Literal

import numpy as np
from scipy.special import stdtr, stdtrit

from rlscope.model.arrays import Reals
from rlscope.model.numerics.bootstrap import block_draws, block_steps

LEVEL: Final = 0.05
"""Of every test: the share of pairs of one setting that may be called different."""
INTERVAL_RATIO: Final = 0.95
"""Coverage of every interval of a comparison."""
LEAST_STEPS: Final = 8
"""Fewer steps say nothing about how they are related."""
LEAST_BLOCKS: Final = 4
"""Fewer stretches have no spread to speak of: with four, Student's t is already half as wide again."""
_POWER_RATIO: Final = 0.8
"""A difference counts as detectable if it would have been found in four of five pairs of runs."""
_ROUNDING: Final = 1e-24
"""Of the squared value: a smaller variance is that of sums in floating point."""
_PARTS: Final = 4
"""Quarters: fewer have no spread to speak of, and more are shorter than what they are to show."""
_EVENED_OUT: Final = -1.645
"""Standard errors below 1 of the variance ratio of blocks: independent steps have it by chance in 5% of runs."""
_WAVES: Final = 0.41
"""Waves per steps^(2/3): the mean square error is then least (Lazarus, Lewis, Stock and Watson 2018)."""
_LEAST_WAVES: Final = 3
"""The slowest of all: they see what varies as slowly as quarters do."""
_DRAWS: Final = 1000
_SEED: Final = 20_261_122

Scale = Literal["ratio", "absolute"]
"""ratio: B over A, less 1. absolute: B less A, in the unit of the quantity."""


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One quantity of one run, step by step: the value is the sum of the numerators over that of the denominators."""

    numerators: Reals
    denominators: Reals

    @property
    def value(self) -> float | None:
        """The quantity over the whole stretch; None where the denominators sum to 0."""
        below = math.fsum(self.denominators)
        return math.fsum(self.numerators) / below if below else None

    def part(self, which: slice) -> "Series":
        """The quantity over a part of the steps."""
        return Series(self.numerators[which], self.denominators[which])


@dataclass(frozen=True, slots=True)
class Interval:
    """A difference and the interval that holds it with a probability of 95%."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Difference:
    """One quantity of two runs. No data is None."""

    before: float | None
    after: float | None
    scale: Scale
    change: float | None
    """On the scale."""
    interval: Interval | None = None
    """None where a run has too few steps, or only a total."""
    p_value: float | None = None
    """Probability of a difference at least as large between two runs of one setting, as far as their steps show it."""
    detectable: float | None = None
    """The smallest difference that would have been detected in 80% of pairs like this one, on the scale."""
    own_change: float | None = None
    """The larger difference between the two halves of one run, on the scale, without its sign; None without halves."""
    is_significant: bool = False
    """Whether the difference is more than noise: the interval excludes 0, also after correction where several
    quantities are tested, and neither run's own halves differ by more."""

    @property
    def low(self) -> float | None:
        """Low end of the interval."""
        return None if self.interval is None else self.interval.low

    @property
    def high(self) -> float | None:
        """High end of the interval."""
        return None if self.interval is None else self.interval.high

    @property
    def is_noisy(self) -> bool:
        """Whether the halves of one run differ by more than the runs do."""
        return self.change is not None and self.own_change is not None and abs(self.change) <= self.own_change


@dataclass(frozen=True, slots=True)
class _Spread:
    """What the resampling of one run says."""

    variance: float
    freedom: float


def difference(before: Series | None, after: Series | None, scale: Scale) -> Difference:
    """Compare one quantity of two runs; significance is that of a quantity that is tested alone."""
    first, then = (None if each is None else each.value for each in (before, after))
    change = changed(first, then, scale)
    if before is None or after is None or change is None:
        return Difference(first, then, scale, change)
    plain = Difference(first, then, scale, change, own_change=_own_change(before, after, scale))
    spreads = [_spread(each, scale, stream) for stream, each in enumerate((before, after))]
    if spreads[0] is None or spreads[1] is None:
        return plain
    return _judged(plain, spreads[0], spreads[1])


def changed(before: float | None, after: float | None, scale: Scale) -> float | None:
    """The difference of two values on a scale; None where one is missing, or the ratio is to nothing."""
    if before is None or after is None:
        return None
    if scale == "absolute":
        return after - before
    return after / before - 1.0 if before > 0 and after > 0 else None


def _judged(plain: Difference, before: _Spread, after: _Spread) -> Difference:
    """With the interval of Welch's test (Welch 1947); ratios are tested as logarithms: A and B may be swapped."""
    assert plain.change is not None
    variance = before.variance + after.variance
    if not variance:
        # Both runs are constant: any difference is one.
        sure = plain.change != 0.0
        return replace(plain, interval=Interval(plain.change, plain.change), p_value=float(not sure), detectable=0.0,
                       is_significant=sure and not plain.is_noisy)  # fmt: skip
    freedom = variance**2 / math.fsum(each.variance**2 / each.freedom for each in (before, after))
    error, is_ratio = math.sqrt(variance), plain.scale == "ratio"
    centre = math.log1p(plain.change) if is_ratio else plain.change
    reach = float(stdtrit(freedom, (1.0 + INTERVAL_RATIO) / 2.0)) * error
    power = float(stdtrit(freedom, _POWER_RATIO)) * error

    def on_scale(value: float) -> float:
        return math.expm1(value) if is_ratio else value

    p_value = 2.0 * float(stdtr(freedom, -abs(centre) / error))
    return replace(
        plain,
        interval=Interval(on_scale(centre - reach), on_scale(centre + reach)),
        p_value=p_value,
        detectable=on_scale(reach + power),
        is_significant=p_value < LEVEL and not plain.is_noisy,
    )


def corrected(differences: Sequence[Difference]) -> tuple[Difference, ...]:
    """The same differences, significant only where that holds although all of them were tested (Holm 1979)."""
    tested = sorted(
        (index for index, each in enumerate(differences) if each.p_value is not None),
        key=lambda index: differences[index].p_value or 0.0,
    )
    passed = set[int]()
    for rank, index in enumerate(tested):
        if (differences[index].p_value or 0.0) >= LEVEL / (len(tested) - rank):
            break
        passed.add(index)
    return tuple(
        replace(each, is_significant=each.is_significant and index in passed) for index, each in enumerate(differences)
    )


def _own_change(before: Series, after: Series, scale: Scale) -> float | None:
    halves = [_between_halves(each, scale) for each in (before, after)]
    known = [abs(each) for each in halves if each is not None]
    return max(known, default=None)


def _between_halves(series: Series, scale: Scale) -> float | None:
    """Second half against the first of one run; of two runs with as many steps the difference has the same spread."""
    steps = series.numerators.size
    if steps < LEAST_STEPS:
        return None
    return changed(series.part(slice(0, steps // 2)).value, series.part(slice(steps // 2, steps)).value, scale)


def _spread(series: Series, scale: Scale, stream: int) -> _Spread | None:
    """The variance of the quantity over resampled stretches of steps; None where there are too few.

    n blocks give n - 1 degrees of freedom, and n / (n - 1) of the variance.
    """
    steps, value = series.numerators.size, series.value
    if steps < LEAST_STEPS or value is None:
        return None
    residuals = series.numerators - value * series.denominators
    block = block_steps(residuals)
    blocks = steps / block
    if blocks < LEAST_BLOCKS:
        return None
    if _evens_out(residuals, block):
        return _of_waves(residuals, float(series.denominators.sum()) * (value if scale == "ratio" else 1.0))
    chosen = block_draws(np.random.default_rng([_SEED, stream]), steps, block, _DRAWS)
    below = series.denominators[chosen].sum(axis=1)
    drawn = series.numerators[chosen].sum(axis=1)[below > 0] / below[below > 0]
    if scale == "ratio":
        if (drawn <= 0).any():
            return None
        drawn = np.log(drawn)
    if drawn.size < 2:
        return None
    variance = float(drawn.var(ddof=1))
    if variance <= _ROUNDING * max(1.0, float((drawn**2).mean())):
        variance = 0.0
    quick = _Spread(variance * blocks / (blocks - 1.0), blocks - 1.0)
    slow = _between_quarters(series, scale)
    return quick if slow is None or slow.variance <= quick.variance else slow


def _evens_out(residuals: Reals, block: int) -> bool:
    """Whether blocks of steps vary less than as many independent steps would: what one has too much the next lacks."""
    steps, variance = residuals.size, float((residuals**2).mean())
    if block < 2 or not variance:
        return False
    sums = np.lib.stride_tricks.sliding_window_view(residuals, block).sum(axis=1)
    ratio = float((sums**2).mean()) / (block * variance)
    error = math.sqrt(2.0 * (2 * block - 1) * (block - 1) / (3.0 * block * steps))
    # The mean of the run is taken from its own steps, which makes blocks of independent ones as much smaller.
    return ratio - 1.0 + (block - 1) / steps < _EVENED_OUT * error


def _of_waves(residuals: Reals, total: float) -> _Spread:
    """The variance of the sum over the square of the total, from the slowest cosine waves of the steps.

    Noise at the ends of each step grows with the frequency of a wave, so the slowest have little of it. The larger
    variance of two choices counts: as many waves as have the least error, and the three that see most of a slow change.
    """
    steps = residuals.size
    most = max(_LEAST_WAVES, round(_WAVES * steps ** (2.0 / 3.0)))
    phases = np.pi / steps * np.outer(np.arange(1, most + 1), np.arange(steps) + 0.5)
    powers = 2.0 * (np.cos(phases) @ residuals) ** 2 / total**2
    spreads = [_Spread(float(powers[:waves].mean()), float(waves)) for waves in (most, _LEAST_WAVES)]
    return max(spreads, key=lambda spread: spread.variance)


def _between_quarters(series: Series, scale: Scale) -> _Spread | None:
    """The variance of the quantity as the spread of the quarters of the run has it."""
    edges = np.linspace(0, series.numerators.size, _PARTS + 1).astype(int)
    values = [series.part(slice(first, last)).value for first, last in pairwise(edges)]
    known = [each for each in values if each is not None and (scale == "absolute" or each > 0)]
    if len(known) < _PARTS:
        return None
    spread = np.log(known) if scale == "ratio" else np.array(known)
    return _Spread(float(spread.var(ddof=1)) / _PARTS, _PARTS - 1.0)
