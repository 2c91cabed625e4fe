"""Root finding for many lines at once: where a condition starts to hold along each.

One call on many points costs little more than a call on one, so an interval is divided into many parts
at a time instead of halved. Not covered: conditions that start to hold more than once; one of the places is then found.
"""

from collections.abc import Callable
from typing import Final

import numpy as np

from rlscope.model.arrays import Flags, Reals

Condition = Callable[[Reals], Flags]
"""Evaluated at points of any shape whose last axis is that of the lines."""

_PARTS: Final = 16
_DIVISIONS: Final = 10
"""Number of divisions: 1e-12 of the interval is left."""


def bisect_condition(holds: Condition, low: Reals, high: Reals) -> tuple[Reals, Reals]:
    """Return the last point at which the condition does not hold and the first at which it does, one each per line.

    It is assumed to hold at `high`, despite rounding there, and is evaluated at `low` like anywhere else.
    """
    parts = np.linspace(0.0, 1.0, _PARTS + 1)[:, None]
    for _ in range(_DIVISIONS):
        points = low + (high - low) * parts
        held = np.concatenate([holds(points[:-1]), np.ones((1, high.size), dtype=np.bool_)])
        low, high = first_bracket(points, held)
    return low, high


def first_bracket(points: Reals, held: Flags) -> tuple[Reals, Reals]:
    """Points before and at the first at which a condition holds, one per column; the first ones if it never holds."""
    at, line = held.argmax(axis=0), np.arange(points.shape[1])
    return points[np.maximum(at - 1, 0), line], points[at, line]
