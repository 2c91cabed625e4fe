"""A law of response lengths from the two or three figures that are known of it before a run.

All figures are of responses as they come out, cut at the cap. Not covered: laws that are not lognormal below their
cap, such as short refusals beside long solutions; record a run, and its own law is used.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from scipy.special import ndtr, ndtri

from rlscope.model.lengths import LengthLaw

_HALVINGS: Final = 60
_LEAST_SIGMA: Final = 1e-3
_MOST_SIGMA: Final = 6.0
"""Of the log length: one response in six is then more than 400 times the median."""


@dataclass(frozen=True, slots=True)
class _Moments:
    mean_tokens: float
    cv_ratio: float


def law_of_mean(mean_tokens: float, cv_ratio: float, cap_tokens: int | None) -> LengthLaw:
    """The lognormal law that has this mean and coefficient of variation (deviation over mean) after the cap cuts it.

    Without a cap sigma^2 = ln(1 + cv^2) and the median is mean / sqrt(1 + cv^2); with one, both by halving intervals
    of E[min(X, M)^r] = e^(r m + r^2 sigma^2 / 2) Phi((ln M - m) / sigma - r sigma) + M^r (1 - Phi((ln M - m) / sigma)).
    ValueError: lengths between 0 and the cap cannot have such a mean and deviation.
    """
    if cap_tokens is None:
        spread = 1.0 + cv_ratio**2
        return LengthLaw.lognormal(mean_tokens / math.sqrt(spread), math.sqrt(math.log(spread)))
    if mean_tokens >= cap_tokens:
        raise ValueError(f"a mean of {mean_tokens:g} tokens is not below the cap of {cap_tokens}")
    low, high = _LEAST_SIGMA, _MOST_SIGMA
    if _cut(_log_median(mean_tokens, high, cap_tokens), high, cap_tokens).cv_ratio < cv_ratio:
        most = math.sqrt(cap_tokens / mean_tokens - 1.0)
        raise ValueError(f"a mean of {mean_tokens:g} tokens under a cap of {cap_tokens} varies by less than {most:.2f}")
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        varies_less = _cut(_log_median(mean_tokens, middle, cap_tokens), middle, cap_tokens).cv_ratio < cv_ratio
        low, high = (middle, high) if varies_less else (low, middle)
    return LengthLaw.lognormal(math.exp(_log_median(mean_tokens, high, cap_tokens)), high, cap_tokens)


def law_of_percentiles(percentiles: Mapping[float, float], cap_tokens: int | None) -> LengthLaw:
    """The lognormal law through two percentiles, tokens by per cent, or nearest to more of them in log length.

    ValueError: fewer than two, per cents that are not between 0 and 100, lengths that do not grow with them, or a
    length that is not below the cap, where all that is known of it is that it was cut.
    """
    ordered = sorted(percentiles.items())
    lengths = [tokens for _, tokens in ordered]
    if len(ordered) < 2 or ordered[0][0] <= 0.0 or ordered[-1][0] >= 100.0:
        raise ValueError("it takes at least two percentiles, above 0 and below 100")
    if any(later <= earlier for earlier, later in pairwise(lengths)):
        raise ValueError("lengths must grow with their percentile")
    if cap_tokens is not None and lengths[-1] >= cap_tokens:
        raise ValueError(f"a percentile of {lengths[-1]:g} tokens is not below the cap of {cap_tokens}")
    deviations = ndtri(np.array([percent for percent, _ in ordered]) / 100.0)
    sigma, log_median = np.polyfit(deviations, np.log(lengths), 1)
    return LengthLaw.lognormal(math.exp(log_median), float(sigma), cap_tokens)


def _log_median(mean_tokens: float, sigma: float, cap_tokens: int) -> float:
    """Of the lognormal law of this sigma whose mean is this after the cut, which lengthens with the median."""
    low, high = math.log(mean_tokens) - sigma**2, math.log(cap_tokens) + _MOST_SIGMA * sigma
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _cut(middle, sigma, cap_tokens).mean_tokens < mean_tokens else (low, middle)
    return high


def _cut(log_median: float, sigma: float, cap_tokens: int) -> _Moments:
    ahead = (math.log(cap_tokens) - log_median) / sigma

    def moment(power: int) -> float:
        below = math.exp(power * log_median + (power * sigma) ** 2 / 2.0) * float(ndtr(ahead - power * sigma))
        return below + cap_tokens**power * float(ndtr(-ahead))

    mean = moment(1)
    return _Moments(mean, math.sqrt(max(moment(2) / mean**2 - 1.0, 0.0)))
