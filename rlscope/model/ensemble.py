"""Maximum and sample of a log density of a few parameters, for many parameter vectors at a time.

Seeded by the generator that the caller passes in. Not covered: densities with separate modes, which the sampler would
not visit in their right proportion, and more than some ten parameters.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
from scipy.optimize import minimize

from rlscope.model.system import Reals

LogDensity = Callable[[Reals], Reals]
"""Vectors as rows in, one log density a row out; -inf where it is not defined."""

_STRETCH: Final = 2.0
"""The sampler's one setting, at the value that its authors advise."""
_WORST: Final = 1e12
"""What stands for an infinite value where a number is needed."""
_STEP: Final = 1e-5
"""Of the numerical gradient; parameters are logarithms or seconds scaled to about 1."""


def maximise(log_density: LogDensity, starts: Reals, least: Reals) -> Reals:
    """The best vector that a bounded quasi-Newton search (L-BFGS-B; Byrd et al. 1995) finds from any of the starts.

    least: the smallest value of each parameter, -inf for none.
    """
    size = starts.shape[1]
    nudges = np.vstack([np.zeros(size), np.eye(size) * _STEP, np.eye(size) * -_STEP])

    def cost_and_slope(at: Reals) -> tuple[float, Reals]:
        tried = np.maximum(at + nudges, least)
        cost = np.clip(-np.nan_to_num(log_density(tried), nan=-_WORST), -_WORST, _WORST)
        width = np.diagonal(tried[1 : size + 1] - tried[size + 1 :])
        return float(cost[0]), (cost[1 : size + 1] - cost[size + 1 :]) / width

    bounds = [(low if np.isfinite(low) else None, None) for low in least]
    ends = [minimize(cost_and_slope, start, jac=True, method="L-BFGS-B", bounds=bounds).x for start in starts]
    return ends[int(np.argmax(log_density(np.array(ends))))]


def draw(
    log_density: LogDensity, start: Reals, rng: np.random.Generator, *, settle: int, thin: int, count: int
) -> Reals:
    """At least `count` vectors from the density, by stretch moves of an ensemble (Goodman and Weare 2010).

    start: one vector a row, an even number of rows and at least twice as many as parameters, not all on a line.
    settle: steps before the first vectors are kept; thin: steps between those kept.
    """
    walkers, densities = start.copy(), log_density(start)
    kept: list[Reals] = []
    step = 0
    while len(kept) * len(walkers) < count:
        _stretch(log_density, walkers, densities, rng)
        step += 1
        if step >= settle and (step - settle) % thin == 0:
            kept.append(walkers.copy())
    return np.concatenate(kept)


def _stretch(log_density: LogDensity, walkers: Reals, densities: Reals, rng: np.random.Generator) -> None:
    """One step of every walker, half against half, in place."""
    halves = np.split(rng.permutation(len(walkers)), 2)
    for moving, others in (halves, halves[::-1]):
        count, size = len(moving), walkers.shape[1]
        factor = ((_STRETCH - 1) * rng.random(count) + 1) ** 2 / _STRETCH
        partner = walkers[rng.choice(others, count)]
        tried = partner + factor[:, None] * (walkers[moving] - partner)
        tried_densities = log_density(tried)
        log_ratio = (size - 1) * np.log(factor) + tried_densities - densities[moving]
        accepted = np.log(rng.random(count)) < log_ratio
        walkers[moving[accepted]] = tried[accepted]
        densities[moving[accepted]] = tried_densities[accepted]
