"""How fast the trainers train, how that scales with their number, and how sure both are: fitted to the train steps.

Given the seconds of forward and backward passes alone: waits, log-probabilities, publications and checkpoints are
phases of their own (`TrainerPhase`). Not covered: how the rate changes with the lengths of a batch's sequences, which
the attention's share makes it do, and stragglers among the trainers, which are in the seconds.
"""

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, ndtr, ndtri

from rlscope.model.blocks import Indices, block_draws, block_steps, few_blocks_factor
from rlscope.model.system import Reals, Trainer, TrainerPhase

PRIOR_EXPONENT: Final = 0.8
PRIOR_EXPONENT_SD: Final = 0.2
"""Prior of the scaling exponent, cut to 0..MOST_EXPONENT. The update times in verl's documentation of fully
asynchronous training fall with exponents of 1.0 to 0.2 as 16 to 128 trainers double."""
_UNSEEN_LOSS_SD: Final = 0.15
"""Scale of a half-normal loss of exponent beyond what the tokens of a step show: ranks that wait for the one with the
longest sequences. The largest of D sums of k lengths is about 1 + cv sqrt(2 ln D / k) times their mean; from 4 to 8
ranks with 16 to 32 samples each that costs 0.1 to 0.2 where nobody balances the ranks, and nothing where somebody does.
"""
MOST_EXPONENT: Final = 1.05
"""Perfect scaling must lie inside the 90 % interval and not on its edge; 1.02 has been published."""
LEAST_COUNTS: Final = 3
"""Numbers of trainer GPUs that a fitted exponent needs: two cannot tell it from the overhead."""
_SURE_RATIO: Final = 0.99
"""Share of the draws in which overhead and rate must be positive for the overhead to count as identified."""
_WIDEST_SLOPE: Final = 0.15
"""Relative standard deviation of the seconds per token beyond which line and overhead say nothing."""
_EXPONENTS: Final = np.linspace(0.05, 1.0, 96)
"""Exponents that a fit tries."""
_GRID: Final = np.linspace(0.0, MOST_EXPONENT, 1051)
"""Exponents that are weighed where none is fitted."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainingRate:
    """What the train steps show; the draws are equally likely alternatives, taken together by position."""

    seen_gpus: int
    """Trainer GPUs of most steps: at this number nothing is carried over."""
    tokens_per_gpu_s: float
    overhead_s: float
    scaling_exponent: float
    """Median of its draws."""
    overhead_identified: bool
    """False: the steps do not tell overhead from rate, and all their time is in the rate."""
    exponent_fitted: bool
    """False: the exponent is the prior's, as far as the tokens of the steps do not speak of it."""
    least_tokens: float
    most_tokens: float
    """Range of the tokens of a step: beyond it, the overhead matters."""
    rate_draws: Reals
    overhead_draws: Reals
    exponent_draws: Reals

    def trainer(self, phases: tuple[TrainerPhase, ...] = ()) -> Trainer:
        """The trainer as it is most likely to be."""
        return Trainer(self.tokens_per_gpu_s, self.seen_gpus, self.scaling_exponent, self.overhead_s, phases)

    def trainer_draws(self, phases: tuple[TrainerPhase, ...] = ()) -> tuple[Trainer, ...]:
        """The trainer as it could as well be; away from the GPUs that were seen the draws fan out with the exponent."""
        draws = zip(self.rate_draws.tolist(), self.exponent_draws.tolist(), self.overhead_draws.tolist(), strict=True)
        return tuple(
            Trainer(rate, self.seen_gpus, exponent, overhead_s, phases) for rate, exponent, overhead_s in draws
        )


class _Line(NamedTuple):
    """Seconds of a step = overhead + per_token * tokens, one entry per draw."""

    overhead_s: Reals
    token_s: Reals


def fit_training_rate(
    tokens: npt.ArrayLike, seconds: npt.ArrayLike, gpus: npt.ArrayLike, rng: np.random.Generator, draws: int = 200
) -> TrainingRate:
    """Rate and overhead of a step, from one entry per step in order.

    tokens: as the trainer counts them; seconds: of its passes, wall time; gpus: trainer GPUs, one number or one per
    step. The overhead is the intercept of a least-squares line, where it is positive and sure; else all seconds are
    in the rate, which is then a ratio of sums. The draws resample blocks of steps within each number of GPUs. With
    three numbers or more the exponent is fitted, seconds = overhead + tokens / (rate n0 (n / n0)^g); else drawn as
    `likely_exponents` says. ValueError: no steps, or tokens and seconds that are not positive.
    """
    work, times = np.asarray(tokens, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
    if work.size == 0 or work.shape != times.shape or work.min() <= 0.0 or times.min() <= 0.0:
        raise ValueError("a training rate needs positive tokens and seconds, one each per step")
    numbers = np.broadcast_to(np.asarray(gpus, dtype=np.int64), work.shape)
    counts, occurrences = np.unique(numbers, return_counts=True)
    seen = int(counts[occurrences.argmax()])
    fitted = counts.size >= LEAST_COUNTS
    kept = np.ones_like(numbers, dtype=np.bool_) if fitted else numbers == seen
    work, times, numbers = work[kept], times[kept], numbers[kept]
    indices = np.vstack((np.arange(work.size), _resampled(rng, times, numbers, draws)))
    exponents = (
        _fit_exponents(work, times, numbers / seen, indices)
        if fitted
        else likely_exponents(rng, draws, _elasticity(work[indices], times[indices]))
    )
    return _summed_up(seen, work, times, numbers / seen, indices, exponents, fitted)


def prior_exponents(rng: np.random.Generator, draws: int) -> Reals:
    """The prior's median, and then so many draws of it: a normal law cut to 0..MOST_EXPONENT."""
    low, high = ndtr((np.array([0.0, MOST_EXPONENT]) - PRIOR_EXPONENT) / PRIOR_EXPONENT_SD)
    uniform = np.append(0.5, rng.random(draws))
    return PRIOR_EXPONENT + PRIOR_EXPONENT_SD * ndtri(low + (high - low) * uniform)


class Elasticity(NamedTuple):
    """d log seconds / d log tokens of the part of a step that is not overhead, and its standard error."""

    value: float
    error: float


def likely_exponents(rng: np.random.Generator, draws: int, elasticity: Elasticity | None) -> Reals:
    """The median, and then so many draws, of the exponent that the prior and the tokens of the steps leave possible.

    Twice the ranks have half of the tokens each, as they have in a step of half the tokens: with e the elasticity of a
    step's seconds in its tokens, g = e - d, where d >= 0 is what only more ranks show. With e measured as x with error
    s and d half-normal of scale t, x - g has the density exp(-z^2 / 2 (s^2 + t^2)) Phi(z t / (s sqrt(s^2 + t^2))) at z
    (skew normal, Azzalini 1985). Own use. Without an elasticity: the prior.
    """
    if elasticity is None:
        return prior_exponents(rng, draws)
    away, error = elasticity.value - _GRID, max(elasticity.error, 1e-6)
    width = math.hypot(error, _UNSEEN_LOSS_SD)
    log_density = -(((_GRID - PRIOR_EXPONENT) / PRIOR_EXPONENT_SD) ** 2 + (away / width) ** 2) / 2
    log_density += log_ndtr(away * _UNSEEN_LOSS_SD / (error * width))
    below = np.cumsum(np.exp(log_density - log_density.max()))
    return np.interp(np.append(0.5, rng.random(draws)), below / below[-1], _GRID)


def _elasticity(work: Reals, times: Reals) -> Elasticity | None:
    """Of the steps and of their resamples, rows of tokens and seconds; None where the tokens do not vary.

    Where the overhead is told apart, the rest is in proportion to the tokens: 1, with the error of the slope.
    """
    line = _line(work, times)
    values = line.token_s * work.mean(axis=1) / times.mean(axis=1)
    if not np.isfinite(values).all():
        return None
    error = float(values[1:].std())
    return Elasticity(1.0, error / float(values[0])) if _is_identified(line) else Elasticity(float(values[0]), error)


def _is_identified(line: _Line) -> bool:
    """Whether the overhead is positive, and the seconds per token are known well, in the draws."""
    positive = (line.overhead_s > 0.0) & (line.token_s > 0.0)
    return bool(positive.mean() >= _SURE_RATIO and line.token_s.std() < _WIDEST_SLOPE * line.token_s[0])


def _resampled(rng: np.random.Generator, seconds: Reals, numbers: Indices, draws: int) -> Indices:
    """Indices of resampled steps, (draws, steps): blocks within each number of GPUs."""
    parts: list[Indices] = []
    for number in np.unique(numbers):
        steps = np.flatnonzero(numbers == number)
        parts.append(steps[block_draws(rng, steps.size, block_steps(seconds[steps]), draws)])
    return np.concatenate(parts, axis=1)


def _line(work: Reals, times: Reals) -> _Line:
    """Least squares along the last axis. Work that does not vary has no line: NaN."""
    mean_work, mean_time = work.mean(axis=-1), times.mean(axis=-1)
    spread = work - mean_work[..., None]
    variance = (spread**2).sum(axis=-1)
    flat = variance <= 1e-12 * (work**2).sum(axis=-1)
    slope = (spread * times).sum(axis=-1) / np.where(flat, np.nan, variance)
    return _Line(mean_time - slope * mean_work, slope)


def _fit_exponents(work: Reals, times: Reals, ratios: Reals, indices: Indices) -> Reals:
    """The exponent that leaves the least squares, each for the steps and for their resamples."""
    best = np.full(len(indices), np.inf)
    exponents = np.ones(len(indices))
    for exponent in _EXPONENTS:
        shares = work / ratios**exponent
        line = _line(shares[indices], times[indices])
        proportional = times[indices].sum(axis=1) / shares[indices].sum(axis=1)
        positive = (line.overhead_s >= 0.0) & (line.token_s > 0.0)
        overhead = np.where(positive, line.overhead_s, 0.0)[:, None]
        token = np.where(positive, line.token_s, proportional)[:, None]
        squares = ((times[indices] - overhead - token * shares[indices]) ** 2).sum(axis=1)
        better = squares < best
        best, exponents = np.where(better, squares, best), np.where(better, exponent, exponents)
    return exponents


def _summed_up(
    seen: int, work: Reals, times: Reals, ratios: Reals, indices: Indices, exponents: Reals, fitted: bool
) -> TrainingRate:
    """The first row of indices is the steps as they were, the others are resamples."""
    shares = (work / ratios ** exponents[:, None])[np.arange(len(indices))[:, None], indices]
    seconds = times[indices]
    line = _line(shares, seconds)
    positive = (line.overhead_s > 0.0) & (line.token_s > 0.0)
    sure = _is_identified(line)
    overhead_s = np.where(positive & sure, line.overhead_s, 0.0)
    token_s = np.where(positive & sure, line.token_s, seconds.sum(axis=1) / shares.sum(axis=1))
    outwards = few_blocks_factor(times.size, block_steps(times))
    overhead_s = np.maximum(overhead_s[0] + outwards * (overhead_s - overhead_s[0]), 0.0)
    rates = 1.0 / (token_s[0] * (token_s / token_s[0]) ** outwards * seen)
    return TrainingRate(
        seen_gpus=seen,
        tokens_per_gpu_s=float(rates[0]),
        overhead_s=float(overhead_s[0]),
        scaling_exponent=float(exponents[0]),
        overhead_identified=sure,
        exponent_fitted=fitted,
        least_tokens=float(work.min()),
        most_tokens=float(work.max()),
        rate_draws=rates[1:],
        overhead_draws=overhead_s[1:],
        exponent_draws=exponents[1:],
    )
