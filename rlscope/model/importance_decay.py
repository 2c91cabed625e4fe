"""How fast importance weights spread as tokens age: the effective sample size by staleness, and a law through it.

Weights are those before clipping. Not covered: the effect on learning, and clipped weights, whose effective size has
to be taken as it is.
"""

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from rlscope.model.system import Reals

DriftLaw = Literal["random_walk", "ballistic"]
"""Whether the variance of the log ratio grows with the staleness or with its square: steps that point anywhere, or
always the same way."""

_LAWS: Final[tuple[DriftLaw, DriftLaw]] = ("random_walk", "ballistic")


@dataclass(frozen=True, slots=True)
class ImportanceDecay:
    """Variance of the log ratio = version_variance * staleness, or * staleness squared."""

    law: DriftLaw
    version_variance: float
    """Of one version."""
    misfit_ratio: float
    """Squares left by this law over those left by the other, 0..1: near 1 the data do not choose."""

    def effective_ratio(self, staleness: npt.ArrayLike) -> Reals:
        """Effective over actual samples at a staleness: exp(-variance), the log ratio being normal (own derivation)."""
        return np.exp(-self.version_variance * _growth(self.law, np.asarray(staleness, dtype=np.float64)))

    def mixed_effective_ratio(self, staleness: npt.ArrayLike, weights: npt.ArrayLike) -> float:
        """Effective over actual samples of a batch that mixes ages: 1 / mean of exp(variance)."""
        shares = np.asarray(weights, dtype=np.float64)
        return float(shares.sum() / (shares / self.effective_ratio(staleness)).sum())


def effective_sample_ratio(tokens: npt.ArrayLike, sum_w: npt.ArrayLike, sum_w2: npt.ArrayLike) -> Reals:
    """(sum w)^2 / (n sum w^2) (Kish 1965), 0..1, by entry."""
    return np.asarray(sum_w, dtype=np.float64) ** 2 / (np.asarray(tokens) * np.asarray(sum_w2, dtype=np.float64))


def fit_importance_decay(
    staleness: npt.ArrayLike, tokens: npt.ArrayLike, sum_w: npt.ArrayLike, sum_w2: npt.ArrayLike
) -> ImportanceDecay | None:
    """The law that fits the effective sizes better, weighted by tokens; None without two ages above 0 that spread.

    One entry per staleness: tokens, and the sums of their weights and squared weights.
    """
    ages, weights = np.asarray(staleness, dtype=np.float64), np.asarray(tokens, dtype=np.float64)
    usable = (ages > 0.0) & (weights > 0.0)
    if np.unique(ages[usable]).size < 2:
        return None
    variances = -np.log(effective_sample_ratio(tokens, sum_w, sum_w2)[usable])
    ages, weights = ages[usable], weights[usable]
    walk, straight = (_through_origin(_growth(law, ages), variances, weights) for law in _LAWS)
    walks = walk.left <= straight.left
    law, best, other = (_LAWS[0], walk, straight) if walks else (_LAWS[1], straight, walk)
    if best.slope <= 0.0:
        return None
    return ImportanceDecay(law, best.slope, best.left / other.left if other.left > 0.0 else 1.0)


def _growth(law: DriftLaw, staleness: Reals) -> Reals:
    return staleness if law == "random_walk" else staleness**2


class _Line(NamedTuple):
    """Through the origin."""

    slope: float
    left: float
    """Weighted squares that it leaves."""


def _through_origin(growth: Reals, variances: Reals, weights: Reals) -> _Line:
    slope = float((weights * growth * variances).sum() / (weights * growth**2).sum())
    return _Line(slope, float((weights * (variances - slope * growth) ** 2).sum()))
