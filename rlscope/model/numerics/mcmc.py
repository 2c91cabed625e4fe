"""Maximum and random sample of a log density of a few parameters, evaluated for many parameter vectors at a time.

Seeded by the generator that the caller passes in. Only `anneal` visits separate modes in the right proportion; `draw`
continues from where it starts. Not covered: more than about ten parameters.
"""

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from rlscope.model.arrays import Reals

LogDensity = Callable[[Reals], Reals]
"""Vectors as rows in, one log density per row out; -inf if undefined."""

_STRETCH: Final = 2.0
"""The sampler's only setting, at the value that its authors advise."""
_DEGREES: Final = 5.0
"""Degrees of freedom of the Student t that an integral is bridged to: heavier tails than a density of a few logs
has."""
_JITTER: Final = 1e-9
_KEPT_RATIO: Final = 0.5
"""Effective share of the vectors that one cooling step leaves: the usual choice."""
_HALVINGS: Final = 40
_NUDGE: Final = 1e-5
"""Step of the numerical gradient; parameters are logs or of size 1."""
_STEPS: Final = 2.0 ** np.arange(1, -15, -1)
"""Step lengths tried along a direction, all at once."""
_LONGEST: Final = 2.0
"""Maximum change of a parameter per step."""
_ITERATIONS: Final = 300
_GAIN: Final = 1e-5
"""Minimum gain in log density per step: a smaller gain ends the search."""


def maximise(log_density: LogDensity, starts: Reals, least: Reals) -> Reals:
    """Return the best vector that a quasi-Newton search finds from any of the starts.

    least: the smallest value of each parameter, -inf for none. BFGS (Nocedal and Wright 2006, chapter 6) with steps cut
    at the bounds. It is written out here because scipy's searches call a threaded BLAS for vectors of six numbers,
    which on a busy machine takes a hundred times as long as the search. Products use einsum, which adds up in the same
    order on every processor; a BLAS does not.
    """
    # All starts climb side by side: a density of a few vectors costs as much as that of one.
    points = np.maximum(starts, least)
    slopes = _slopes(log_density, points, least)
    climbs = [_Climb(*each, least) for each in zip(points, log_density(points).tolist(), slopes, strict=True)]
    for _ in range(_ITERATIONS):
        climbing = [each for each in climbs if not each.ended]
        if not climbing:
            break
        tried = np.concatenate([each.tried() for each in climbing])
        values = np.split(log_density(tried), len(climbing))
        moved = [each for each, found in zip(climbing, values, strict=True) if each.moves(found)]
        if moved:
            slopes = _slopes(log_density, np.array([each.ahead for each in moved]), least)
            for each, slope in zip(moved, slopes, strict=True):
                each.arrive(slope)
    ends = np.array([each.at for each in climbs])
    return ends[int(np.argmax(log_density(ends)))]


class _Climb:
    """Search from one start."""

    def __init__(self, at: Reals, value: float, slope: Reals, least: Reals) -> None:
        self.at = self.ahead = at
        """Current point, and the next one."""
        self.ended = False
        self._value, self._slope, self._least = value, slope, least
        self._tried = at[None, :]
        self._forget()

    def _forget(self) -> None:
        self._curvature, self._is_fresh = np.eye(len(self.at)), True

    def tried(self) -> Reals:
        """Points that the next step chooses from."""
        bound = (self.at <= self._least) & (self._slope < 0)
        direction = np.where(bound, 0.0, np.einsum("ij,j->i", self._curvature, np.where(bound, 0.0, self._slope)))
        direction = direction * min(1.0, _LONGEST / max(float(np.abs(direction).max()), 1e-300))
        self._tried = np.maximum(self.at + _STEPS[:, None] * direction, self._least)
        return self._tried

    def moves(self, values: Reals) -> bool:
        """Whether one of them is better; if none is, the search restarts once, and then ends."""
        best = int(np.argmax(values))
        if not values[best] > self._value + _GAIN:
            self.ended = self._is_fresh
            self._forget()
            return False
        self.ahead, self._value = self._tried[best], float(values[best])
        return True

    def arrive(self, slope: Reals) -> None:
        """Go there, with the slope found there."""
        step = self.ahead - self.at
        # Parameters at a bound carry no information about the others: their slope would bend the search directions.
        self._curvature = _updated(self._curvature, step, np.where(step == 0.0, 0.0, self._slope - slope))
        self.at, self._slope, self._is_fresh = self.ahead, slope, False


def _slopes(log_density: LogDensity, points: Reals, least: Reals) -> Reals:
    """Central differences at each point, one-sided at a bound."""
    count, size = points.shape
    nudges = np.eye(size) * _NUDGE
    up, down = points[:, None] + nudges, np.maximum(points[:, None] - nudges, least)
    values = log_density(np.concatenate([up, down]).reshape(-1, size)).reshape(2, count, size)
    slopes = (values[0] - values[1]) / np.diagonal(up - down, axis1=1, axis2=2)
    return np.where(np.isfinite(slopes), slopes, 0.0)


def _updated(curvature: Reals, step: Reals, change: Reals) -> Reals:
    """BFGS update of the inverse curvature; skipped if the density is not concave along the step."""
    along = float((step * change).sum())
    if along <= 1e-12:
        return curvature
    left = np.eye(len(step)) - np.outer(step, change) / along
    return np.einsum("ij,jk,lk->il", left, curvature, left) + np.outer(step, step) / along


def draw(
    log_density: LogDensity, start: Reals, rng: np.random.Generator, *, settle: int, thin: int, count: int
) -> Reals:
    """Draw at least `count` vectors from the density, by stretch moves of an ensemble (Goodman and Weare 2010).

    start: one vector per row, an even number of rows and at least twice as many as parameters, not all on a line.
    settle: steps of burn-in before the first vectors are kept. thin: steps between kept vectors.
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


def anneal(
    log_density: LogDensity, log_broad: LogDensity, start: Reals, rng: np.random.Generator, *, moves: int
) -> Reals:
    """Draw from a density with possibly separate modes, by cooling a broad distribution (Del Moral et al. 2006).

    start: vectors drawn from the broad distribution, whose log density log_broad is normalized; an even number of rows.
    In each step, vectors are redrawn by their weight and moved by `moves` stretch moves.
    """
    vectors, heat = start, 1.0
    while heat > 0.0:
        possible, broad = log_density(vectors), log_broad(vectors)
        gain = possible - broad
        step = _cooling(gain, heat)
        heat = 0.0 if step >= heat else heat - step
        weight = np.exp(step * (gain - gain.max()))
        places = (np.arange(len(vectors)) + rng.random()) / len(vectors)
        kept = np.searchsorted(np.cumsum(weight)[:-1] / weight.sum(), places)
        vectors, densities = vectors[kept], _tempered(possible[kept], broad[kept], heat)

        def tempered(tried: Reals, heat: float = heat) -> Reals:
            return _tempered(log_density(tried), log_broad(tried), heat)

        for _ in range(moves):
            _stretch(tempered, vectors, densities, rng)
    return vectors


def _tempered(possible: Reals, broad: Reals, heat: float) -> Reals:
    """Log densities between the target and the broad one; -inf if either is."""
    inside = np.isfinite(broad) & np.isfinite(possible)
    mixed = heat * np.where(inside, broad, 0.0) + (1.0 - heat) * np.where(inside, possible, 0.0)
    return np.where(inside, mixed, -np.inf)


def log_integral(log_density: LogDensity, vectors: Reals, rng: np.random.Generator) -> float:
    """Log of the integral of a density, from vectors drawn from it.

    Bridge sampling (Meng and Wong 1996), by the geometric bridge, between the density and a Student t with the mean and
    the covariance of the vectors.
    """
    (count, size), centre = vectors.shape, vectors.mean(axis=0)
    factor = np.linalg.cholesky(np.cov(vectors.T) + _JITTER * np.eye(size))
    constant = math.lgamma((_DEGREES + size) / 2) - math.lgamma(_DEGREES / 2) - size / 2 * np.log(_DEGREES * np.pi)
    constant -= np.log(np.diagonal(factor)).sum()

    def log_law(deviations: Reals) -> Reals:
        return constant - (_DEGREES + size) / 2 * np.log1p((deviations**2).sum(axis=1) / _DEGREES)

    deviations = rng.standard_normal((count, size)) / np.sqrt(rng.chisquare(_DEGREES, (count, 1)) / _DEGREES)
    up = (log_density(centre + deviations @ factor.T) - log_law(deviations)) / 2
    down = (log_law(np.linalg.solve(factor, (vectors - centre).T).T) - log_density(vectors)) / 2
    return float(np.logaddexp.reduce(up) - np.logaddexp.reduce(down))


def _cooling(gain: Reals, heat: float) -> float:
    """Largest step that leaves _KEPT_RATIO of the vectors effective (Kish 1965), at most `heat`."""

    def kept(step: float) -> bool:
        weight = np.exp(step * (gain - gain.max()))
        return float(weight.sum() ** 2 / (weight**2).sum()) >= _KEPT_RATIO * len(gain)

    low, high = 0.0, heat
    if kept(high):
        return high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if kept(middle) else (low, middle)
    return max(low, heat * 2.0**-_HALVINGS)


def _stretch(log_density: LogDensity, walkers: Reals, densities: Reals, rng: np.random.Generator) -> None:
    """Move every walker once, half against half, in place."""
    order, (walking, size) = rng.permutation(len(walkers)), walkers.shape
    count = walking // 2
    for moving, others in ((order[:count], order[count:]), (order[count:], order[:count])):
        factor = ((_STRETCH - 1) * rng.random(count) + 1) ** 2 / _STRETCH
        partner = walkers[others[rng.integers(count, size=count)]]
        tried = partner + factor[:, None] * (walkers[moving] - partner)
        tried_densities = log_density(tried)
        log_ratio = (size - 1) * np.log(factor) + tried_densities - densities[moving]
        accepted = np.log(rng.random(count)) < log_ratio
        walkers[moving[accepted]] = tried[accepted]
        densities[moving[accepted]] = tried_densities[accepted]
