"""Training rate and its scaling with the number of trainers, with uncertainty, fitted to the train steps.

The rate of n GPUs is that of the n0 seen times (n / n0)^g. The exponent g has a prior, narrowed by the dependence of a
step's time on its tokens and by steps at other numbers of GPUs. Only forward and backward passes count: waits,
log-probabilities, publications and checkpoints are separate phases (`TrainerPhase`). Not covered: an exponent that
changes with the number of GPUs, and the dependence of the rate on sequence lengths through attention.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

from rlscope.model.arrays import Reals
from rlscope.model.estimate import Estimate
from rlscope.model.numerics.bootstrap import block_draws, block_steps, few_blocks_factor
from rlscope.model.numerics.stratified import uniforms
from rlscope.model.system import Trainer

PRIOR_EXPONENT: Final = 0.8
PRIOR_EXPONENT_SD: Final = 0.2
"""Prior of the scaling exponent, cut to 0..MOST_EXPONENT. The update times in verl's documentation of fully
asynchronous training fall with exponents of 1.0 to 0.2 as 16 to 128 trainers double."""
_UNSEEN_LOSS_SD: Final = 0.15
"""Scale of a half-normal loss of exponent beyond what the tokens of a step show, from ranks that wait for the one with
the longest sequences. The largest of D sums of k lengths is about 1 + cv sqrt(2 ln D / k) times their mean; from 4 to 8
ranks with 16 to 32 samples each, that costs 0.1 to 0.2 if ranks are not balanced, and nothing if they are."""
MOST_EXPONENT: Final = 1.05
"""Perfect scaling must lie inside the 90% interval and not on its edge; 1.02 has been published."""
RUN_ERROR: Final = 0.02
"""Log deviation of the seconds of a run's steps from those that its tokens and GPUs imply: other nodes, other lengths
in the same number of tokens, other neighbors. Assumed: two runs then differ by 3%, and from one number of GPUs to twice
as many the exponent is known to 0.04 at best."""
_SOFT_EDGE: Final = 0.02
"""Minimum error of the elasticity that bounds the exponent: a rank with less to hold may be faster by this much."""
_LEAST_ERROR: Final = 1e-3
"""Minimum log deviation of the seconds of steps: the resolution of the grid of exponents."""
_UNLIKELY: Final = 0.01
"""Other runs contradict the model if they are this rarely as far from every exponent."""
_BOOTSTRAPS: Final = 200
_SEED: Final = 3
_GRID: Final = np.linspace(0.0, MOST_EXPONENT, 1051)
"""Exponents that are weighted."""
_COARSE: Final = slice(None, None, 5)
"""Coarser grid for sums over it."""
_SHARES: Final = np.arange(0.0, 0.99, 0.02)
"""Shares of a step that may be overhead, if its steps do not show it."""
_USUAL_SHARE: Final = 0.1
"""Mean of the exponential prior of those shares. Assumed: 10% of a step is optimizer, launches and first messages. If
all shares were equally likely, most of the scaling loss would be attributed to overhead."""
_SURE_RATIO: Final = 0.99
"""Share of the draws in which overhead and rate must be positive for the overhead to count as identified."""
_LEAST_ELASTICITY: Final = 0.1
"""Elasticity below which seconds do not grow with tokens: steps padded to one shape, or limited by something else."""
_GROWS_ERRORS: Final = 2.0
"""Standard errors that the elasticity of a step must be above 0 to conclude that its seconds grow with its tokens."""
_FLAT_ELASTICITY: Final = 0.5
"""Elasticity that the seconds of flat steps surely stay below: most of their time is not in proportion to tokens."""
_WIDEST_SLOPE: Final = 0.15
"""Relative standard deviation of the seconds per token beyond which line and overhead carry no information."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainingRate:
    """Trainer that the train steps show."""

    trainer: Trainer
    """Most likely trainer, without phases. If the steps do not separate overhead from rate, all their time is in the
    rate, or, if steps at other numbers of GPUs were seen, each draw has an overhead that goes with its exponent."""
    draws: tuple[Trainer, ...]
    """Equally likely trainers; away from the recorded GPUs they fan out with the exponent."""
    scaling_seen_at: tuple[int, ...] = ()
    """Other numbers of trainer GPUs of recorded steps, ascending. If empty, the exponent has its prior, narrowed by the
    dependence of the seconds of steps on their tokens if there is one."""
    scaling_contradicted: bool = False
    """Whether no exponent explains the steps seen there."""
    is_flat: bool = False
    """Whether the seconds of steps hardly grow with their tokens, although the draws have them grow in proportion."""

    @property
    def scaling_exponent(self) -> Estimate:
        """Exponent of the most likely trainer, with the interval of the draws."""
        _, low, high = Estimate.of(np.array([each.scaling_exponent for each in self.draws]))
        return Estimate(self.trainer.scaling_exponent, low, high)

    def has_seen(self, gpus: int) -> bool:
        """Whether `gpus` trainer GPUs lie within the range of recorded numbers."""
        seen = (self.trainer.seen_gpus, *self.scaling_seen_at)
        return min(seen) <= gpus <= max(seen)


@dataclass(frozen=True, slots=True, eq=False)
class RunSteps:
    """Train steps of a run, in order."""

    gpus: int
    """Trainer GPUs."""
    tokens: Reals
    """Tokens of each step as the trainer counts them, above 0."""
    seconds: Reals
    """Wall time of its passes, above 0."""


def fit_training_rate(
    steps: RunSteps, rng: np.random.Generator, draws: int = 200, others: Sequence[RunSteps] = ()
) -> TrainingRate:
    """Fit rate and overhead of a step, and the scaling of the rate.

    The overhead is the intercept of a least-squares line if it is positive and certain; else all seconds are in the
    rate, which is then a ratio of sums. The draws resample blocks of steps. Other runs at other numbers of GPUs narrow
    the exponent (`posterior_exponents`); without any it is drawn by `exponents_from_steps`.
    """
    gpus = steps.gpus
    elsewhere = [(each.gpus / gpus, each) for each in others if each.gpus != gpus]
    own = _own_steps(steps.tokens, steps.seconds, rng, draws)
    line, is_contradicted = own.line, False
    if elsewhere:
        exponents, line, is_contradicted = posterior_exponents(rng, own, elsewhere)
    else:
        exponents = exponents_from_steps(rng, draws, own.elasticity)
    rates = 1.0 / (line.token_s * gpus)
    rows = zip(rates.tolist(), exponents.tolist(), line.overhead_s.tolist(), strict=True)
    best, *drawn = (Trainer(rate, gpus, exponent, overhead_s) for rate, exponent, overhead_s in rows)
    seen_at = tuple(sorted({each.gpus for _, each in elsewhere}))
    return TrainingRate(best, tuple(drawn), seen_at, is_contradicted, own.is_flat)


class StepTimeLine(NamedTuple):
    """Seconds of a step = overhead + per_token * tokens, one entry per draw; the first is the best estimate."""

    overhead_s: Reals
    token_s: Reals


class Elasticity(NamedTuple):
    """d log seconds / d log tokens of the part of a step that is not overhead, and its standard error."""

    value: float
    error: float


class OwnSteps(NamedTuple):
    """Steps of the calibrated run; arrays have one entry per draw, the first for the steps as recorded."""

    line: StepTimeLine
    is_identified: bool
    """Whether they separate overhead from rate."""
    mean_tokens: Reals
    elasticity: Elasticity | None
    is_flat: bool
    """As in `TrainingRate`."""


def _own_steps(work: Reals, times: Reals, rng: np.random.Generator, draws: int) -> OwnSteps:
    block = block_steps(times)
    indices = np.vstack((np.arange(work.size), block_draws(rng, work.size, block, draws)))
    work, times = work[indices], times[indices]
    line = _line(work, times)
    positive = (line.overhead_s > 0.0) & (line.token_s > 0.0)
    sure = bool(positive.mean() >= _SURE_RATIO and line.token_s.std() < _WIDEST_SLOPE * line.token_s[0])
    overhead_s = np.where(positive & sure, line.overhead_s, 0.0)
    token_s = np.where(positive & sure, line.token_s, times.sum(axis=1) / work.sum(axis=1))
    outwards = few_blocks_factor(work.shape[1], block)
    overhead_s = np.maximum(overhead_s[0] + outwards * (overhead_s - overhead_s[0]), 0.0)
    token_s = token_s[0] * (token_s / token_s[0]) ** outwards
    seen = _seen_elasticity(work, times, line)
    is_flat = not sure and seen is not None and seen.value + _GROWS_ERRORS * seen.error < _FLAT_ELASTICITY
    return OwnSteps(StepTimeLine(overhead_s, token_s), sure, work.mean(axis=1), _elasticity(seen, sure), is_flat)


def _line(work: Reals, times: Reals) -> StepTimeLine:
    """Least-squares line along the last axis. Work that does not vary has no line: NaN."""
    mean_work, mean_time = work.mean(axis=-1), times.mean(axis=-1)
    spread = work - mean_work[..., None]
    variance = (spread**2).sum(axis=-1)
    flat = variance <= 1e-12 * (work**2).sum(axis=-1)
    slope = (spread * times).sum(axis=-1) / np.where(flat, np.nan, variance)
    return StepTimeLine(mean_time - slope * mean_work, slope)


def _seen_elasticity(work: Reals, times: Reals, line: StepTimeLine) -> Elasticity | None:
    """Elasticity of steps and their resamples, rows of tokens and seconds; None if the tokens do not vary."""
    values = line.token_s * work.mean(axis=1) / times.mean(axis=1)
    return Elasticity(float(values[0]), float(values[1:].std())) if np.isfinite(values).all() else None


def _elasticity(seen: Elasticity | None, is_identified: bool) -> Elasticity | None:
    """Elasticity of the part of a step that is not overhead; None if uninformative of scaling.

    It is uninformative if the tokens do not vary, or if the seconds do not grow with them: halving the tokens of a rank
    then saves nothing only because something else sets the time, which may differ with other ranks. If the overhead is
    identified, the rest is in proportion to the tokens: 1, with the error of the slope.
    """
    if seen is None or seen.value < max(_LEAST_ELASTICITY, _GROWS_ERRORS * seen.error):
        return None
    return Elasticity(1.0, seen.error / seen.value) if is_identified else seen


def exponents_at(uniform: Reals | float, middle: float, sd: float) -> Reals:
    """Quantiles of a normal distribution cut to 0..MOST_EXPONENT."""
    low, high = ndtr((np.array([0.0, MOST_EXPONENT]) - middle) / sd)
    return middle + sd * ndtri(low + (high - low) * uniform)


def exponents_from_steps(rng: np.random.Generator, draws: int, elasticity: Elasticity | None) -> Reals:
    """Return the median, then `draws` draws, of the exponent given the prior and the tokens of the steps.

    Twice the ranks have half of the tokens each, as in a step of half the tokens: with e the elasticity of a step's
    seconds in its tokens, g = e - d, where d >= 0 is the loss that only more ranks show. With e measured as x with
    error s and d half-normal of scale t, x - g has the density exp(-z^2 / 2 (s^2 + t^2)) Phi(z t / (s sqrt(s^2 + t^2)))
    at z (skew normal, Azzalini 1985). Own use. Without an elasticity: the prior.
    """
    if elasticity is None:
        return exponents_at(_uniform(rng, draws), PRIOR_EXPONENT, PRIOR_EXPONENT_SD)
    return _drawn(_log_density(elasticity)[None], _GRID, _uniform(rng, draws))


def posterior_exponents(
    rng: np.random.Generator, own: OwnSteps, elsewhere: Sequence[tuple[float, RunSteps]]
) -> tuple[Reals, StepTimeLine, bool]:
    """Draw exponents from their posterior: the prior times the likelihood of the mean step at other numbers of GPUs.

    With x times the GPUs and w tokens a step takes overhead + token_s w x^-g. The error of its logarithm has three
    parts: the blocks of the other steps, RUN_ERROR of their run, and RUN_ERROR of the calibrated run, which all others
    share; each draw is compared with its own line. If the overhead is unknown, the line has none, and it is any share
    of a step that the elasticity allows, smaller ones being more likely; the rest is in proportion to the tokens. If
    every exponent is further off than those errors allow, they are widened until one fits (Birge 1932), and the third
    value is True. Own use. elsewhere: GPUs over those seen, and the steps. The line gets the overhead that goes with
    each exponent if the run itself does not show it.
    """
    # Slow to import, and only needed if a run is compared with others.
    from scipy.special import chdtri

    line, tokens, elasticity = own.line, own.mean_tokens, own.elasticity
    evidence, freedom, draws = _evidence(elsewhere), len(elsewhere), line.token_s.size - 1
    uniform = _uniform(rng, draws)
    best = StepTimeLine(line.overhead_s[:1], line.token_s[:1])
    shares = _SHARES[:1] if own.is_identified else _SHARES
    misfit = min(float(_misfit(evidence, _split(best, tokens[:1], share), _GRID).min()) for share in shares)
    evidence = evidence._replace(precision=evidence.precision / max(misfit / freedom, 1.0))
    if not own.is_identified:
        chosen = _drawn(_log_shares(evidence, line, tokens, elasticity), _SHARES, _uniform(rng, draws))
        line, elasticity = _split(line, tokens, chosen), None
    rest = Elasticity(1.0, max(elasticity.error if elasticity else 0.0, _SOFT_EDGE))
    log_density = _log_density(rest) - _misfit(evidence, line, _GRID) / 2.0
    return _drawn(log_density, _GRID, uniform), line, misfit > float(chdtri(freedom, _UNLIKELY))


class _Evidence(NamedTuple):
    """Mean steps elsewhere, one entry each."""

    log_gpus: Reals
    """Log of their number of GPUs over the one seen."""
    tokens: Reals
    log_seconds: Reals
    precision: Reals
    """Inverse of the covariance of the logs."""


def _evidence(elsewhere: Sequence[tuple[float, RunSteps]]) -> _Evidence:
    ratios, steps = zip(*elsewhere, strict=True)
    errors = np.array([_error(each) for each in steps])
    of_runs = np.full(errors.size, RUN_ERROR)
    covariance = np.diag(errors**2 + of_runs**2) + np.outer(of_runs, of_runs)
    return _Evidence(
        log_gpus=np.log(ratios),
        tokens=np.array([each.tokens.mean() for each in steps]),
        log_seconds=np.log([each.seconds.mean() for each in steps]),
        precision=np.linalg.inv(covariance),
    )


def _error(steps: RunSteps) -> float:
    """Log deviation of seconds per token, from resampled blocks of steps."""
    block = block_steps(steps.seconds)
    drawn = block_draws(np.random.default_rng(_SEED), steps.seconds.size, block, _BOOTSTRAPS)
    ratios = steps.seconds[drawn].sum(axis=1) / steps.tokens[drawn].sum(axis=1)
    return max(float(np.log(ratios).std()) * few_blocks_factor(steps.seconds.size, block), _LEAST_ERROR)


def _misfit(evidence: _Evidence, line: StepTimeLine, grid: Reals) -> Reals:
    """Squared distance of the evidence from the prediction of each draw and exponent, (draws, exponents)."""
    slowness = np.exp(-grid[:, None] * evidence.log_gpus)
    seconds = line.overhead_s[:, None, None] + line.token_s[:, None, None] * evidence.tokens * slowness
    away = evidence.log_seconds - np.log(seconds)
    return np.einsum("...i,ij,...j->...", away, evidence.precision, away)


def _split(full: StepTimeLine, tokens: Reals, share: Reals | float) -> StepTimeLine:
    """Turn a share of the same mean steps into overhead."""
    return StepTimeLine(full.overhead_s + share * full.token_s * tokens, (1.0 - share) * full.token_s)


def _log_shares(evidence: _Evidence, full: StepTimeLine, tokens: Reals, elasticity: Elasticity | None) -> Reals:
    """Log density of each share of overhead, (draws, shares), whatever the exponent."""
    grid = _GRID[_COARSE]
    log_prior = _log_density(Elasticity(1.0, _SOFT_EDGE))[_COARSE]
    columns = [
        np.logaddexp.reduce(log_prior - _misfit(evidence, _split(full, tokens, share), grid) / 2.0, axis=1)
        for share in _SHARES
    ]
    log_weight = np.stack(columns, axis=1) - _SHARES / _USUAL_SHARE
    if elasticity is None:
        return log_weight
    return log_weight - ((elasticity.value - 1.0 + _SHARES) / max(elasticity.error, _SOFT_EDGE)) ** 2 / 2.0


def _log_density(elasticity: Elasticity) -> Reals:
    """Log density of the exponents of the grid, by `exponents_from_steps`."""
    away, error = elasticity.value - _GRID, max(elasticity.error, 1e-6)
    width = math.hypot(error, _UNSEEN_LOSS_SD)
    log_density = -(((_GRID - PRIOR_EXPONENT) / PRIOR_EXPONENT_SD) ** 2 + (away / width) ** 2) / 2
    return log_density + log_ndtr(away * _UNSEEN_LOSS_SD / (error * width))


def _uniform(rng: np.random.Generator, draws: int) -> Reals:
    """Return 0.5, for the median, then `draws` draws from 0 to 1, spread evenly: their median depends on no seed."""
    return np.append(0.5, uniforms(rng, draws))


def _drawn(log_density: Reals, grid: Reals, uniform: Reals) -> Reals:
    """Quantiles of distributions over a grid: one distribution for all, or one each."""
    below = np.cumsum(np.exp(log_density - log_density.max(axis=1, keepdims=True)), axis=1)
    below /= below[:, -1:]
    if len(below) == 1:
        return np.interp(uniform, below[0], grid)
    return np.array([np.interp(asked, row, grid) for asked, row in zip(uniform, below, strict=True)])
