"""Stratified draws: the middle of each of many equally likely parts of a distribution, in random order.

Their median and quantiles are those of the distribution whatever the seed is, so that intervals depend less on the seed
than with as many independent draws (stratified sampling, Cochran 1977, chapter 5).
"""

import numpy as np
from scipy.special import ndtri

from rlscope.model.arrays import Reals


def uniforms(rng: np.random.Generator, count: int) -> Reals:
    """Draw `count` numbers from 0 to 1; their median is 0.5."""
    return (rng.permutation(count) + 0.5) / count


def normals(rng: np.random.Generator, count: int) -> Reals:
    """Draw `count` standard normal numbers; their median is 0."""
    return ndtri(uniforms(rng, count))


def sorted_normals(count: int) -> Reals:
    """Return `count` standard normal numbers, the smallest first."""
    return ndtri((np.arange(count) + 0.5) / count)
