"""Confidence intervals for the mean of dependent steps: block bootstrap.

Steps are dependent by construction: a sample spans several of them. Not covered: series with a trend, which
`changepoints.py` finds first, and similarity of samples within a group.
"""

import math
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri, stdtrit

from rlscope.model.arrays import Counts, Reals
from rlscope.model.estimate import Estimate
from rlscope.model.numerics.stratified import normals

LEAST_BLOCKS: Final = 10
"""Minimum independent blocks: with fewer, the quantiles of a bootstrap mean nothing, and a range is given instead."""
_TWO_SIGMA_RATIO: Final = 0.9545
"""Coverage of two standard deviations to either side."""
_MOST_LOG_SD: Final = 1.0
"""Most log deviation of a sampling error: a ratio known to a factor of 2.7 is not known, and more would overflow."""
_BLOCK_TIMES: Final = 2.0
"""Length of a block in autocorrelation times: correlation between blocks is then small."""


def autocorrelation_time(values: npt.ArrayLike) -> float:
    """Steps that equal one independent step, at least 1: 1 + 2 * sum of autocorrelations.

    The sum stops once two neighbors no longer add up to something positive (initial positive sequence, Geyer 1992).
    Negative correlation is ignored. 1 for a constant series.
    """
    series = np.asarray(values, dtype=np.float64)
    centered = series - series.mean()
    variance = float((centered**2).sum())
    if series.size < 2 or variance <= 1e-24 * float((series**2).sum()):
        return 1.0
    padded = np.fft.rfft(centered, 2 * series.size)
    correlations = np.fft.irfft(padded * padded.conj(), 2 * series.size)[: series.size] / variance
    pairs = correlations[: series.size // 2 * 2].reshape(-1, 2).sum(axis=1)
    negative = np.flatnonzero(pairs <= 0.0)
    positive = pairs[: negative[0]] if negative.size else pairs
    return max(2.0 * float(positive.sum()) - 1.0, 1.0)


def block_steps(values: npt.ArrayLike) -> int:
    """Length of a block: two autocorrelation times, at least the cube root of the length, at most half of it."""
    count = np.asarray(values).size
    wanted = max(_BLOCK_TIMES * autocorrelation_time(values), count ** (1.0 / 3.0))
    return max(min(round(wanted), count // 2), 1)


def block_draws(rng: np.random.Generator, steps: int, block: int, draws: int) -> Counts:
    """Counts of resampled series, (draws, steps): neighbors stay together in blocks (moving blocks, Künsch 1989)."""
    starts = rng.integers(0, steps - block + 1, size=(draws, -(-steps // block)))
    return (starts[:, :, None] + np.arange(block)).reshape(draws, -1)[:, :steps]


def ratio_of_sums(
    numerators: npt.ArrayLike,
    denominators: npt.ArrayLike,
    rng: np.random.Generator,
    *,
    draws: int = 1000,
    coverage_ratio: float = 0.90,
) -> Estimate:
    """Rate over a series of steps with its confidence interval; never a mean of the steps' rates.

    The bootstrap's quantiles are moved outwards by `few_blocks_factor`; with fewer than LEAST_BLOCKS blocks, the ends
    are the minimum and maximum of single blocks. numerators, denominators: one each per step, in order; the sum of the
    denominators is above 0.
    """
    above, below = np.asarray(numerators, dtype=np.float64), np.asarray(denominators, dtype=np.float64)
    value = float(above.sum() / below.sum())
    residuals = above - value * below
    block = block_steps(residuals)
    if above.size < LEAST_BLOCKS * block:
        starts = np.arange(0, above.size - block + 1, block)
        parts = np.add.reduceat(above, starts) / np.add.reduceat(below, starts)
        return Estimate(value, float(parts.min()), float(parts.max()))
    indices = block_draws(rng, above.size, block, draws)
    ratios = above[indices].sum(axis=1) / below[indices].sum(axis=1)
    quantiles = np.array([(1.0 - coverage_ratio) / 2.0, (1.0 + coverage_ratio) / 2.0])
    outwards = few_blocks_factor(above.size, block, float(quantiles[1]))
    low, high = value + outwards * (np.quantile(ratios, quantiles) - value)
    return Estimate(value, float(low), float(high))


def drawn_factors(numerators: npt.ArrayLike, denominators: npt.ArrayLike, seed: int, draws: int) -> Reals:
    """Sampling error of a ratio of sums: factors about 1, one per draw.

    Their standard deviation is a quarter of the interval of two standard deviations to either side.
    """
    rng = np.random.default_rng(seed)
    ratio = ratio_of_sums(numerators, denominators, rng, coverage_ratio=_TWO_SIGMA_RATIO)
    log_sd = min((ratio.high - ratio.low) / (4.0 * ratio.value), _MOST_LOG_SD)
    return np.exp(log_sd * normals(rng, draws))


def few_blocks_factor(steps: int, block: int, quantile: float = 0.95) -> float:
    """Factor, at least 1, that widens a bootstrap from few blocks.

    It is Student's over the normal quantile, times n / (n - 1) of the variance for n blocks. Two blocks are the
    minimum.
    """
    blocks = max(steps / block, 2.0)
    heavier = stdtrit(blocks - 1.0, quantile) / float(ndtri(quantile))
    return heavier * math.sqrt(blocks / (blocks - 1.0))
