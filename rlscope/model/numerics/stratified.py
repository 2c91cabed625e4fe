"""Stratified errors: one draw from each of many equally likely parts of the normal distribution, in random order.

Their median and quantiles are those of the distribution whatever the seed is, so that intervals depend less on the seed
than with as many independent draws (stratified sampling, Cochran 1977, chapter 5).
"""

import numpy as np
from scipy.special import ndtri

from rlscope.model.arrays import Reals


def normals(rng: np.random.Generator, count: int) -> Reals:
    """Draw `count` standard normal numbers, the middle of each of as many equally likely parts; their median is 0."""
    return ndtri((rng.permutation(count) + 0.5) / count)
