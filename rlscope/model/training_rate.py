"""How fast the trainers train, how that scales with their number, and how sure both are: fitted to the train steps.

Given the seconds of forward and backward passes alone: waits, log-probabilities, publications and checkpoints are
phases of their own (`TrainerPhase`). Not covered: how the rate changes with the lengths of a batch's sequences, which
the attention's share makes it do, and stragglers among the trainers, which are in the seconds.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rlscope.model.blocks import block_draws, block_steps, few_blocks_factor
from rlscope.model.scaling_exponent import (
    Elasticity,
    Heard,
    Line,
    StepsElsewhere,
    heard_exponents,
    likely_exponents,
)
from rlscope.model.system import Reals, Trainer, TrainerPhase

_SURE_RATIO: Final = 0.99
"""Share of the draws in which overhead and rate must be positive for the overhead to count as identified."""
_WIDEST_SLOPE: Final = 0.15
"""Relative standard deviation of the seconds per token beyond which line and overhead say nothing."""


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
    """False: the steps do not tell overhead from rate. All their time is then in the rate, or, where steps at other
    numbers of GPUs were seen, each draw has an overhead that goes with its exponent."""
    scaling_seen_at: tuple[int, ...]
    """Other numbers of trainer GPUs that steps were seen at, least first; where there are none, the exponent is the
    prior's, as far as the tokens of the steps do not speak of it."""
    scaling_contradicted: bool
    """Whether no exponent explains what was seen there."""
    least_tokens: float
    most_tokens: float
    """Range of the tokens of a step: beyond it, the overhead matters."""
    rate_draws: Reals
    overhead_draws: Reals
    exponent_draws: Reals

    def has_seen(self, gpus: int) -> bool:
        """Whether training with so many trainer GPUs lies between numbers that steps were seen at."""
        seen = (self.seen_gpus, *self.scaling_seen_at)
        return min(seen) <= gpus <= max(seen)

    def trainer(self, phases: tuple[TrainerPhase, ...] = ()) -> Trainer:
        """The trainer as it is most likely to be."""
        return Trainer(self.tokens_per_gpu_s, self.seen_gpus, self.scaling_exponent, self.overhead_s, phases)

    def trainer_draws(self, phases: tuple[TrainerPhase, ...] = ()) -> tuple[Trainer, ...]:
        """The trainer as it could as well be; away from the GPUs that were seen the draws fan out with the exponent."""
        draws = zip(self.rate_draws.tolist(), self.exponent_draws.tolist(), self.overhead_draws.tolist(), strict=True)
        return tuple(
            Trainer(rate, self.seen_gpus, exponent, overhead_s, phases) for rate, exponent, overhead_s in draws
        )


def fit_training_rate(
    tokens: npt.ArrayLike,
    seconds: npt.ArrayLike,
    gpus: npt.ArrayLike,
    rng: np.random.Generator,
    draws: int = 200,
    others: Sequence[StepsElsewhere] = (),
) -> TrainingRate:
    """Rate and overhead of a step, from one entry per step in order, and how the rate scales.

    tokens: as the trainer counts them; seconds: of its passes, wall time; gpus: trainer GPUs, one number or one per
    step. Rate and overhead are those of the commonest number of GPUs. The overhead is the intercept of a least-squares
    line, where it is positive and sure; else all seconds are in the rate, which is then a ratio of sums. The draws
    resample blocks of steps. Steps at other numbers of GPUs, and others, which are of other runs, speak of the exponent
    as `heard_exponents` says; where there are none, it is drawn as `likely_exponents` says. ValueError: no steps, or
    tokens and seconds that are not positive.
    """
    work, times = np.asarray(tokens, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
    if work.size == 0 or work.shape != times.shape or work.min() <= 0.0 or times.min() <= 0.0:
        raise ValueError("a training rate needs positive tokens and seconds, one each per step")
    numbers = np.broadcast_to(np.asarray(gpus, dtype=np.int64), work.shape)
    counts, occurrences = np.unique(numbers, return_counts=True)
    seen = int(counts[occurrences.argmax()])
    within = [
        StepsElsewhere(int(count), work[numbers == count], times[numbers == count], is_other_run=False)
        for count in counts
    ]
    elsewhere = [(each.gpus / seen, each) for each in (*within, *others) if each.gpus != seen]
    own = _own_steps(work[numbers == seen], times[numbers == seen], rng, draws)
    if not elsewhere:
        heard = Heard(likely_exponents(rng, draws, own.elasticity), own.line, is_contradicted=False)
    else:
        heard = heard_exponents(
            rng, own.line, own.mean_tokens, own.elasticity, elsewhere, overhead_known=own.is_identified
        )
    return _summed_up(seen, work[numbers == seen], own, heard, {each.gpus for _, each in elsewhere})


class _OwnSteps(NamedTuple):
    """The steps at one number of GPUs; arrays have one entry per draw, the first of the steps as they were."""

    line: Line
    is_identified: bool
    mean_tokens: Reals
    elasticity: Elasticity | None


def _own_steps(work: Reals, times: Reals, rng: np.random.Generator, draws: int) -> _OwnSteps:
    block = block_steps(times)
    indices = np.vstack((np.arange(work.size), block_draws(rng, work.size, block, draws)))
    work, times = work[indices], times[indices]
    line = _line(work, times)
    sure, positive = _is_identified(line), (line.overhead_s > 0.0) & (line.token_s > 0.0)
    overhead_s = np.where(positive & sure, line.overhead_s, 0.0)
    token_s = np.where(positive & sure, line.token_s, times.sum(axis=1) / work.sum(axis=1))
    outwards = few_blocks_factor(work.shape[1], block)
    overhead_s = np.maximum(overhead_s[0] + outwards * (overhead_s - overhead_s[0]), 0.0)
    token_s = token_s[0] * (token_s / token_s[0]) ** outwards
    return _OwnSteps(Line(overhead_s, token_s), sure, work.mean(axis=1), _elasticity(work, times, line))


def _elasticity(work: Reals, times: Reals, line: Line) -> Elasticity | None:
    """Of the steps and of their resamples, rows of tokens and seconds; None where the tokens do not vary.

    Where the overhead is told apart, the rest is in proportion to the tokens: 1, with the error of the slope.
    """
    values = line.token_s * work.mean(axis=1) / times.mean(axis=1)
    if not np.isfinite(values).all():
        return None
    error = float(values[1:].std())
    return Elasticity(1.0, error / float(values[0])) if _is_identified(line) else Elasticity(float(values[0]), error)


def _is_identified(line: Line) -> bool:
    """Whether the overhead is positive, and the seconds per token are known well, in the draws."""
    positive = (line.overhead_s > 0.0) & (line.token_s > 0.0)
    return bool(positive.mean() >= _SURE_RATIO and line.token_s.std() < _WIDEST_SLOPE * line.token_s[0])


def _line(work: Reals, times: Reals) -> Line:
    """Least squares along the last axis. Work that does not vary has no line: NaN."""
    mean_work, mean_time = work.mean(axis=-1), times.mean(axis=-1)
    spread = work - mean_work[..., None]
    variance = (spread**2).sum(axis=-1)
    flat = variance <= 1e-12 * (work**2).sum(axis=-1)
    slope = (spread * times).sum(axis=-1) / np.where(flat, np.nan, variance)
    return Line(mean_time - slope * mean_work, slope)


def _summed_up(seen: int, work: Reals, own: _OwnSteps, heard: Heard, elsewhere: Set[int]) -> TrainingRate:
    rates = 1.0 / (heard.line.token_s * seen)
    return TrainingRate(
        seen_gpus=seen,
        tokens_per_gpu_s=float(rates[0]),
        overhead_s=float(heard.line.overhead_s[0]),
        scaling_exponent=float(heard.exponents[0]),
        overhead_identified=own.is_identified,
        scaling_seen_at=tuple(sorted(elsewhere)),
        scaling_contradicted=heard.is_contradicted,
        least_tokens=float(work.min()),
        most_tokens=float(work.max()),
        rate_draws=rates[1:],
        overhead_draws=heard.line.overhead_s[1:],
        exponent_draws=heard.exponents[1:],
    )
