"""The normal law and what belongs to it: shares, quantiles, and Student's quantile.

Written out because scipy's module of special functions takes longer to import than a small run to simulate; they agree
with it to a few roundings. Not covered: Student's law of less than one degree of freedom.
"""

import math
from functools import lru_cache
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

from rlscope.model.arrays import Reals
from rlscope.model.numerics.rootfind import root

_MIDDLE: Final = 3.75
"""Where the variable of the polynomial is 0: the choice of Shepherd and Laframboise."""
_TAIL: Final = (
    1.2375126308378275,
    -0.14024059858554697,
    0.0035854154854790257,
    0.0822767384901452,
    -0.10880393014244462,
    0.09230432116037748,
    -0.05869339857664934,
    0.028362277418956406,
    -0.009746579683265262,
    0.0017556258528952954,
    0.000293714378044958,
    -0.0002901540805408417,
    5.164652974177416e-05,
    2.238423915508223e-05,
    -1.1438048033346894e-05,
    -9.73559896736775e-07,
    1.7419821586224816e-06,
    -5.7218230603224086e-08,
    -2.4857126248016745e-07,
    2.3263508708859124e-08,
    3.197926671666804e-08,
    -3.744210080962018e-09,
    -2.623107347133476e-09,
    3.111433380979925e-10,
)
"""(1 + 2 x) e^(x^2) erfc(x) for x of 0 or more, in powers of (x - k) / (x + k): own Chebyshev fit, exact to 5e-16."""
_NODES: Final = 64
"""Of the Gauss-Legendre rule, which is exact to rounding for the smooth density of Student's angle."""


def _scaled_tail(distance: Reals) -> Reals:
    """e^(x^2) erfc(x) for x of 0 or more, by one expansion for all x (form: Shepherd and Laframboise 1981)."""
    at = np.asarray((distance - _MIDDLE) / (distance + _MIDDLE))
    total = np.full_like(at, _TAIL[-1])
    for coefficient in _TAIL[-2::-1]:
        total *= at
        total += coefficient
    return total / (1.0 + 2.0 * distance)


def normal_share(deviations: npt.ArrayLike) -> Reals:
    """Share of the normal law, 0..1, below so many standard deviations; arrays give arrays."""
    at = np.asarray(deviations, dtype=np.float64)
    distance = np.minimum(np.abs(at), 40.0) * math.sqrt(0.5)
    beyond = 0.5 * _scaled_tail(distance) * np.exp(-distance * distance)
    return np.where(at > 0.0, 1.0 - beyond, beyond)


def log_normal_share(deviations: npt.ArrayLike) -> Reals:
    """Logarithm of `normal_share`, exact also where that is 0 to rounding."""
    at = np.asarray(deviations, dtype=np.float64)
    distance = np.abs(at) * math.sqrt(0.5)
    tail = 0.5 * _scaled_tail(distance)
    return np.where(at > 0.0, np.log1p(-tail * np.exp(-distance * distance)), np.log(tail) - distance * distance)


def normal_quantile(shares: npt.ArrayLike) -> Reals:
    """Standard deviations below which so much of the normal law lies; shares: 0..1, of which the ends are infinite."""
    inverse, flat = NormalDist().inv_cdf, np.asarray(shares, dtype=np.float64)
    found = [inverse(share) if 0.0 < share < 1.0 else math.inf * (share - 0.5) for share in flat.ravel().tolist()]
    return np.array(found).reshape(flat.shape)


@lru_cache(maxsize=256)
def student_quantile(freedom: float, share: float) -> float:
    """Where so much of Student's law lies below; freedom: degrees, 1 or more; share: between 0.5 and 1.

    With t = sqrt(n) tan(a) the density of the angle a is proportional to cos(a)^(n - 1), smooth up to any quantile; its
    integral from 0 is found by quadrature and inverted by `root`. Own use of that substitution.
    """
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    log_height = math.lgamma((freedom + 1.0) / 2.0) - math.lgamma(freedom / 2.0) - math.log(math.pi) / 2.0

    def missed(angle: float) -> float:
        density = np.exp((freedom - 1.0) * np.log(np.cos(angle * (1.0 + nodes) / 2.0)) + log_height)
        return float(density @ weights) * angle / 2.0 - (share - 0.5)

    normal = NormalDist().inv_cdf(share)
    # Cauchy's law has the heaviest tails of all; of many degrees Student's hardly differs from the normal one.
    most = min(1.01 * math.tan(math.pi * (share - 0.5)), normal * math.exp((normal * normal + 1.0) / freedom))
    return math.sqrt(freedom) * math.tan(root(missed, 0.0, math.atan(most / math.sqrt(freedom)), tolerance=1e-15))
