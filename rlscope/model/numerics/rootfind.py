"""Root finding: of one function, and for many lines at once where along each a condition starts to hold.

For many lines one call on many points costs little more than a call on one, so an interval is divided into many parts
at a time instead of halved. Not covered: conditions that start to hold more than once; one of the places is then found.
"""

import sys
from collections.abc import Callable
from typing import Final

import numpy as np

from rlscope.model.arrays import Flags, Reals

Condition = Callable[[Reals], Flags]
"""Asked about points of any shape whose last axis is that of the lines."""

_PARTS: Final = 16
_DIVISIONS: Final = 10
"""So that 1e-12 of the interval is left."""
_ROUNDING: Final = 2.0 * sys.float_info.epsilon
"""Of a root, relative."""


def root(function: Callable[[float], float], low: float, high: float, *, tolerance: float) -> float:
    """Where a function between two points of opposite sign is zero, to within the tolerance and rounding.

    Chandrupatla's method (1997): inverse quadratic interpolation where the last three points are near a parabola, else
    a bisection. Written out because scipy's module of optimisers takes longer to import than a small run to analyse.
    Raises ValueError if the signs at the ends are the same.
    """
    at, other, value, opposite = low, high, function(low), function(high)
    if value == 0.0 or opposite == 0.0:
        return low if value == 0.0 else high
    if (value > 0.0) == (opposite > 0.0):
        raise ValueError(f"the function has one sign at both ends: {value:g} at {low:g} and {opposite:g} at {high:g}")
    share = 0.5
    while True:
        tried = at + share * (other - at)
        found = function(tried)
        if (found > 0.0) == (value > 0.0):
            before, value_before = at, value
        else:
            before, value_before, other, opposite = other, opposite, at, value
        at, value = tried, found
        best = at if abs(value) < abs(opposite) else other
        least_share = (tolerance / 2.0 + _ROUNDING * abs(best)) / abs(other - at)
        if value == 0.0 or least_share > 0.5:
            return best
        share = _next_share((at, other, before), (value, opposite, value_before))
        share = min(max(share, least_share), 1.0 - least_share)


def _next_share(points: tuple[float, float, float], values: tuple[float, float, float]) -> float:
    """How far from the first point to the second the next is tried; the third was given up last."""
    (at, other, before), (value, opposite, value_before) = points, values
    place, height = (at - other) / (before - other), (value - opposite) / (value_before - opposite)
    if not (height**2 < place and (1.0 - height) ** 2 < 1.0 - place):
        return 0.5
    near = value / (opposite - value) * value_before / (opposite - value_before)
    far = (before - at) / (other - at) * value / (value_before - value) * opposite / (value_before - opposite)
    return near + far


def bisect_condition(holds: Condition, low: Reals, high: Reals) -> tuple[Reals, Reals]:
    """The last point found at which the condition does not hold and the first at which it does, one of each per line.

    It is assumed to hold at `high`, whatever rounding makes of it there, and is evaluated at `low` as anywhere else.
    """
    parts = np.linspace(0.0, 1.0, _PARTS + 1)[:, None]
    for _ in range(_DIVISIONS):
        points = low + (high - low) * parts
        held = np.concatenate([holds(points[:-1]), np.ones((1, high.size), dtype=np.bool_)])
        low, high = first_bracket(points, held)
    return low, high


def first_bracket(points: Reals, held: Flags) -> tuple[Reals, Reals]:
    """The points before and at the first at which a condition holds, one per column; where none does, the first."""
    at, line = held.argmax(axis=0), np.arange(points.shape[1])
    return points[np.maximum(at - 1, 0), line], points[at, line]
