"""How fast the trainers train, how that scales with their number, and how sure both are: fitted to the train steps.

Given the seconds of forward and backward passes alone: waits, log-probabilities, publications and checkpoints are
phases of their own (`TrainerPhase`). Not covered: how the rate changes with the lengths of a batch's sequences, which
the attention's share makes it do, and stragglers among the trainers, which are in the seconds.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from rlscope.model.blocks import Indices, block_draws, block_steps, few_blocks_factor
from rlscope.model.system import Reals, Trainer, TrainerPhase

PRIOR_EXPONENT: Final = 0.8
PRIOR_EXPONENT_SD: Final = 0.2
"""Prior of the scaling exponent, cut to 0..MOST_EXPONENT. The update times in verl's documentation of fully
asynchronous training fall with exponents of 1.0 to 0.2 as 16 to 128 trainers double."""
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
    """False: the exponent is the prior's."""
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
    three numbers or more the exponent is fitted, seconds = overhead + tokens / (rate n0 (n / n0)^g); else drawn
    from the prior. ValueError: no steps, or tokens and seconds that are not positive.
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
    exponents = _fit_exponents(work, times, numbers / seen, indices) if fitted else prior_exponents(rng, draws)
    return _summed_up(seen, work, times, numbers / seen, indices, exponents, fitted)


def prior_exponents(rng: np.random.Generator, draws: int) -> Reals:
    """The prior's median, and then so many draws of it: a normal law cut to 0..MOST_EXPONENT."""
    low, high = ndtr((np.array([0.0, MOST_EXPONENT]) - PRIOR_EXPONENT) / PRIOR_EXPONENT_SD)
    uniform = np.append(0.5, rng.random(draws))
    return PRIOR_EXPONENT + PRIOR_EXPONENT_SD * ndtri(low + (high - low) * uniform)


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
    sure = bool(positive.mean() >= _SURE_RATIO and line.token_s.std() < _WIDEST_SLOPE * line.token_s[0])
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
