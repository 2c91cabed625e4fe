"""Robust nonlinear least squares for many similar problems side by side.

A fit and its draws are a few hundred problems of the same shape, each with a few parameters: solving them as one array
costs little more than solving one. Nothing depends on a last bit, in which processors differ, by more than the
tolerance. Not covered: bounds (use logarithms), and problems with many parameters.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from rlscope.model.arrays import Counts, Flags, Reals


class Linearized(NamedTuple):
    """Residuals of problems, and their slopes."""

    plain: Reals
    """Residuals that count by their square, (problems, residuals)."""
    robust: Reals
    """Residuals that count by a Student t, which large ones hardly pull (Lange, Little and Taylor 1989)."""
    plain_slopes: Reals
    """(parameters, problems, residuals)."""
    robust_slopes: Reals


Problems = Callable[[Reals, Counts], Linearized]
"""Linearizes problems at vectors, one row per problem; the second argument has the numbers of the problems."""

DEGREES: Final = 4.0
"""Degrees of freedom of the Student t: one residual of four deviations is outvoted by two of two."""
_LONGEST: Final = 1.0
"""Maximum change of a parameter per step; parameters are logs or of size 1."""
_TOLERANCE: Final = 2e-4
"""A problem is solved when no parameter moves by more: those that the evidence leaves open are the last to settle."""
_ITERATIONS: Final = 60
_SLIGHT: Final = 1e-3
"""Damping to start with, as a share of the curvature."""


def solve(problems: Problems, starts: Reals) -> tuple[Reals, Reals]:
    """Return the vectors that minimize the cost of each problem, one row each, and their costs.

    Levenberg-Marquardt (Nocedal and Wright 2006, chapter 10), with residuals weighted as their Student t asks.
    """
    at, open_ones = starts.copy(), np.arange(len(starts))
    here, damping = problems(at, open_ones), np.full(len(starts), _SLIGHT)
    cost = _cost(here)
    costs = cost.copy()
    for _ in range(_ITERATIONS):
        step = _steps(here, damping)
        there = problems(at[open_ones] + step, open_ones)
        there_cost = _cost(there)
        is_better = there_cost <= cost
        at[open_ones[is_better]] += step[is_better]
        cost = np.where(is_better, there_cost, cost)
        costs[open_ones] = cost
        here = Linearized(*(np.where(_along(is_better, new), new, old) for new, old in zip(there, here, strict=True)))
        damping = np.clip(damping * np.where(is_better, 0.1, 10.0), 1e-9, 1e9)
        left = np.abs(step).max(axis=1) > _TOLERANCE
        if not left.any():
            break
        open_ones, cost, damping = open_ones[left], cost[left], damping[left]
        here = Linearized(here[0][left], here[1][left], here[2][:, left], here[3][:, left])
    return at, costs


def _along(chosen: Flags, values: Reals) -> Flags:
    return chosen[:, None] if values.ndim == 2 else chosen[None, :, None]


def _cost(each: Linearized) -> Reals:
    robust = (DEGREES + 1.0) * np.log1p(each.robust**2 / DEGREES)
    cost = (each.plain**2).sum(axis=1) + robust.sum(axis=1)
    return np.where(np.isfinite(cost), cost, np.inf)


def _steps(each: Linearized, damping: Reals) -> Reals:
    """Damped Gauss-Newton step of each problem."""
    weighted = each.robust_slopes * ((DEGREES + 1.0) / (DEGREES + each.robust**2))
    curvature = np.einsum("inm,jnm->nij", each.plain_slopes, each.plain_slopes)
    curvature += np.einsum("inm,jnm->nij", weighted, each.robust_slopes)
    descent = -np.einsum("inm,nm->ni", each.plain_slopes, each.plain) - np.einsum("inm,nm->ni", weighted, each.robust)
    diagonal = np.einsum("nii->ni", curvature)
    # Writing to this view of the diagonal changes the matrix.
    diagonal += damping[:, None] * (diagonal + 1e-12)
    steps = np.linalg.solve(curvature, descent[:, :, None])[:, :, 0]
    return np.clip(np.nan_to_num(steps), -_LONGEST, _LONGEST)
