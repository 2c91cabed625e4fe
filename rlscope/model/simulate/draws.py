"""All that is random: lengths of groups, which groups are kept, waits, how long steps take. One generator, in blocks.

Members of a group are alike as far as it was measured: a Gaussian copula whose correlation gives the measured mean of
the longest member. Not covered: any other dependence, such as prompts that are hard in every epoch.
"""

import math
from typing import Final

import numpy as np
from scipy.special import ndtr, ndtri

from rlscope.model.lengths import LengthLaw
from rlscope.model.system import Reals, Workload

_QUANTILES: Final = 1024
"""Points of the length law on which the longest of a group is averaged."""
_NODES: Final = 32
"""Gauss-Hermite nodes of the part that members share."""
_MOST_ALIKE: Final = 0.999
"""A correlation of 1 has no density."""
_BISECTIONS: Final = 20
_BLOCK_WAITS: Final = 1024


class Draws:
    """Endless groups of lengths, waits for environments, and factors of steps."""

    def __init__(self, workload: Workload, staggered_samples: int, step_noise: float, rng: np.random.Generator) -> None:
        self._law, self._group_size, self._rng = workload.lengths, workload.group_size, rng
        self._kept_ratio, self._step_noise = workload.kept_ratio, step_noise
        self._correlation = group_correlation(workload.lengths)
        self._staggered_samples = staggered_samples
        self._environment_s = workload.environment_s
        self._wait_factors = _factors(workload.environment_waits_s)
        self._waits_s: list[float] = []

    def groups(self, count: int) -> tuple[list[int], list[bool]]:
        """Lengths in tokens of so many groups' samples, group after group, and whether each group is kept."""
        lengths = self._lengths(count)
        if self._staggered_samples:
            first = min(self._staggered_samples, lengths.size)
            lengths[:first] = self._residual(first)
            self._staggered_samples -= first
        return lengths.tolist(), (self._rng.random(count) < self._kept_ratio).tolist()

    def step_factor(self) -> float:
        """Lognormal with mean 1."""
        if self._step_noise == 0.0:
            return 1.0
        return float(np.exp(self._step_noise * self._rng.standard_normal() - self._step_noise**2 / 2))

    def environment_s(self) -> float:
        """The next sample's wait outside its engine."""
        if self._wait_factors is None:
            return self._environment_s
        if not self._waits_s:
            self._waits_s = (self._environment_s * self._rng.choice(self._wait_factors, _BLOCK_WAITS)).tolist()
        return self._waits_s.pop()

    def _lengths(self, count: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        if self._correlation == 0.0:
            return self._law.draw(self._rng, count * self._group_size)
        own = self._rng.standard_normal((count, self._group_size)) * math.sqrt(1.0 - self._correlation)
        shared = self._rng.standard_normal((count, 1)) * math.sqrt(self._correlation)
        tokens = self._law.quantile(ndtr(own + shared).ravel())
        return np.maximum(np.rint(tokens), 1.0).astype(np.int64)

    def _residual(self, count: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        """What is left of requests seen at a random moment: a uniform share of a length-biased length (renewal theory).

        A run that starts with them starts spread out, as it is in steady state, and not in step.
        """
        biased = self._law.probabilities * self._law.support
        seen = self._rng.choice(self._law.support, count, p=biased / biased.sum())
        return np.maximum(np.ceil(seen * self._rng.random(count)), 1.0).astype(np.int64)


def _factors(waits_s: tuple[float, ...]) -> Reals | None:
    """Waits over their mean; None where they do not vary."""
    waits = np.array(waits_s, dtype=np.float64)
    return waits / waits.mean() if waits.size and waits.min() < waits.max() else None


def group_correlation(law: LengthLaw) -> float:
    """Correlation of the copula under which groups have the measured tail, 0..1; 0 where none was measured.

    P(longest <= x) = E[Phi((z_x - sqrt(r) Z) / sqrt(1 - r)) ** S] for equally correlated normals with correlation r
    (Dunnett and Sobel 1955); solved for the tail ratio by bisection. Own use.
    """
    if law.groups is None or law.groups.group_size < 2:
        return 0.0
    edges = np.arange(1, _QUANTILES + 1) / _QUANTILES
    tokens, z = law.quantile(edges - 0.5 / _QUANTILES), ndtri(np.minimum(edges, 1.0 - 1e-12))
    low, high = 0.0, _MOST_ALIKE
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        below = _longest_below(z, middle, law.groups.group_size)
        longest = float(np.diff(below, prepend=0.0) @ tokens) / float(tokens.mean())
        low, high = (middle, high) if longest > law.groups.tail_ratio else (low, middle)
    return 0.0 if high <= 2 * _MOST_ALIKE / 2**_BISECTIONS else high


def _longest_below(z: Reals, correlation: float, group_size: int) -> Reals:
    """P(the longest of a group is not above the quantile at each z); its last value is 1."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    spread = (z[:, None] - math.sqrt(correlation) * nodes) / math.sqrt(1.0 - correlation)
    below = ndtr(spread) ** group_size @ (weights / weights.sum())
    below[-1] = 1.0
    return below
