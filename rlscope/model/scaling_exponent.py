"""How the trainers' rate grows with their number: the exponent's prior, and what steps at other numbers say of it.

The rate of n GPUs is that of the n0 seen times (n / n0)^g. Nothing is said here of rate and overhead but how they bear
on g. Not covered: an exponent that itself changes with the number of GPUs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from scipy.special import chdtri, log_ndtr, logsumexp, ndtr, ndtri

from rlscope.model.blocks import block_draws, block_steps, few_blocks_factor
from rlscope.model.system import Reals

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
RUN_ERROR: Final = 0.02
"""Log deviation of the seconds of a run's steps from what its tokens and GPUs make them: other nodes, other lengths in
the same number of tokens, other neighbours. Assumed: two runs then differ by 3 %, and from one number of GPUs to twice
as many the exponent is known to 0.04 at best."""
_SOFT_EDGE: Final = 0.02
"""Least error of the elasticity that bounds the exponent: a rank with less to hold may be that much faster."""
_LEAST_ERROR: Final = 1e-3
"""Of the seconds of steps, as a log deviation: what the grid of exponents resolves."""
_UNLIKELY: Final = 0.01
"""Other runs contradict the model where they are so rarely as far from every exponent."""
_BOOTSTRAPS: Final = 200
_SEED: Final = 3
_GRID: Final = np.linspace(0.0, MOST_EXPONENT, 1051)
"""Exponents that are weighed."""
_COARSE: Final = slice(None, None, 5)
"""Of the grid, where only sums over it are wanted."""
_SHARES: Final = np.arange(0.0, 0.99, 0.02)
"""Shares of a step that may be overhead, where its steps do not tell."""
_USUAL_SHARE: Final = 0.1
"""Mean of the exponential law of those shares before anything is seen. Assumed: a tenth of a step is optimizer,
launches and first messages. Were all shares as likely, most of what scaling loses would be put down to overhead."""


@dataclass(frozen=True, slots=True, eq=False)
class StepsElsewhere:
    """Train steps on another number of GPUs."""

    gpus: int
    tokens: Reals
    seconds: Reals
    is_other_run: bool = True
    """False: of the run that is calibrated, so that no difference between runs is in them."""


class Elasticity(NamedTuple):
    """d log seconds / d log tokens of the part of a step that is not overhead, and its standard error."""

    value: float
    error: float


class Line(NamedTuple):
    """Seconds of a step = overhead + per_token * tokens, one entry per draw; the first is the best estimate."""

    overhead_s: Reals
    token_s: Reals


class Heard(NamedTuple):
    """What steps elsewhere leave possible; one entry per draw, the first with medians."""

    exponents: Reals
    line: Line
    """As it was, or with the overhead that goes with each exponent where the run itself does not tell it."""
    is_contradicted: bool
    """Whether no exponent explains the steps: the interval is then widened until one does."""


def prior_exponents(rng: np.random.Generator, draws: int) -> Reals:
    """The prior's median, and then so many draws of it: a normal law cut to 0..MOST_EXPONENT."""
    low, high = ndtr((np.array([0.0, MOST_EXPONENT]) - PRIOR_EXPONENT) / PRIOR_EXPONENT_SD)
    return PRIOR_EXPONENT + PRIOR_EXPONENT_SD * ndtri(low + (high - low) * _uniform(rng, draws))


def likely_exponents(rng: np.random.Generator, draws: int, elasticity: Elasticity | None) -> Reals:
    """The median, and then so many draws, of the exponent that the prior and the tokens of the steps leave possible.

    Twice the ranks have half of the tokens each, as they have in a step of half the tokens: with e the elasticity of a
    step's seconds in its tokens, g = e - d, where d >= 0 is what only more ranks show. With e measured as x with error
    s and d half-normal of scale t, x - g has the density exp(-z^2 / 2 (s^2 + t^2)) Phi(z t / (s sqrt(s^2 + t^2))) at z
    (skew normal, Azzalini 1985). Own use. Without an elasticity: the prior.
    """
    if elasticity is None:
        return prior_exponents(rng, draws)
    return _drawn(_log_density(elasticity)[None], _GRID, _uniform(rng, draws))


def heard_exponents(
    rng: np.random.Generator,
    line: Line,
    tokens: Reals,
    elasticity: Elasticity | None,
    elsewhere: Sequence[tuple[float, StepsElsewhere]],
    *,
    overhead_known: bool,
) -> Heard:
    """Exponents drawn from their posterior: the prior times the likelihood of the mean step at other numbers of GPUs.

    With x times the GPUs and w tokens a step takes overhead + token_s w x^-g. Its logarithm is off by the blocks of
    the other steps, by RUN_ERROR of their run, and by RUN_ERROR of the calibrated one, which all others share; each
    draw is compared with its own line. Where the overhead is not known, line has none, and it is any share of a step
    that the elasticity allows, small ones sooner; what is left is in proportion to the tokens. Where every exponent is
    further off than those errors have it, they are widened to what fits (Birge 1932). Own use.
    line, tokens: one entry per draw, tokens of its mean step; elsewhere: GPUs over those seen, and the steps.
    """
    evidence, freedom, draws = _evidence(elsewhere), len(elsewhere), line.token_s.size - 1
    uniform = _uniform(rng, draws)
    best = Line(line.overhead_s[:1], line.token_s[:1])
    shares = _SHARES[:1] if overhead_known else _SHARES
    misfit = min(float(_misfit(evidence, _split(best, tokens[:1], share), _GRID).min()) for share in shares)
    evidence = evidence._replace(precision=evidence.precision / max(misfit / freedom, 1.0))
    if not overhead_known:
        chosen = _drawn(_log_shares(evidence, line, tokens, elasticity), _SHARES, _uniform(rng, draws))
        line, elasticity = _split(line, tokens, chosen), None
    rest = Elasticity(1.0, max(elasticity.error if elasticity else 0.0, _SOFT_EDGE))
    log_density = _log_density(rest) - _misfit(evidence, line, _GRID) / 2.0
    return Heard(_drawn(log_density, _GRID, uniform), line, misfit > float(chdtri(freedom, _UNLIKELY)))


class _Evidence(NamedTuple):
    """Mean steps elsewhere, one entry each."""

    log_gpus: Reals
    """Of their number over the one seen."""
    tokens: Reals
    log_seconds: Reals
    precision: Reals
    """Inverse of the covariance of the logarithms."""


def _evidence(elsewhere: Sequence[tuple[float, StepsElsewhere]]) -> _Evidence:
    ratios, steps = zip(*elsewhere, strict=True)
    errors = np.array([_error(each) for each in steps])
    of_runs = np.array([RUN_ERROR if each.is_other_run else 0.0 for each in steps])
    covariance = np.diag(errors**2 + of_runs**2) + np.outer(of_runs, of_runs)
    return _Evidence(
        log_gpus=np.log(ratios),
        tokens=np.array([each.tokens.mean() for each in steps]),
        log_seconds=np.log([each.seconds.mean() for each in steps]),
        precision=np.linalg.inv(covariance),
    )


def _error(steps: StepsElsewhere) -> float:
    """Log deviation of seconds per token, from resampled blocks of steps."""
    block = block_steps(steps.seconds)
    drawn = block_draws(np.random.default_rng(_SEED), steps.seconds.size, block, _BOOTSTRAPS)
    ratios = steps.seconds[drawn].sum(axis=1) / steps.tokens[drawn].sum(axis=1)
    return max(float(np.log(ratios).std()) * few_blocks_factor(steps.seconds.size, block), _LEAST_ERROR)


def _misfit(evidence: _Evidence, line: Line, grid: Reals) -> Reals:
    """Squared distance of the evidence from what each draw and exponent make of it, (draws, exponents)."""
    slowness = np.exp(-grid[:, None] * evidence.log_gpus)
    seconds = line.overhead_s[:, None, None] + line.token_s[:, None, None] * evidence.tokens * slowness
    away = evidence.log_seconds - np.log(seconds)
    return ((away @ evidence.precision) * away).sum(axis=-1)


def _split(full: Line, tokens: Reals, share: Reals | float) -> Line:
    """The same mean steps with so much of them overhead."""
    return Line(full.overhead_s + share * full.token_s * tokens, (1.0 - share) * full.token_s)


def _log_shares(evidence: _Evidence, full: Line, tokens: Reals, elasticity: Elasticity | None) -> Reals:
    """Log density of each share of overhead, (draws, shares), whatever the exponent."""
    grid = _GRID[_COARSE]
    log_prior = _log_density(Elasticity(1.0, _SOFT_EDGE))[_COARSE]
    columns = [
        logsumexp(log_prior - _misfit(evidence, _split(full, tokens, share), grid) / 2.0, axis=1) for share in _SHARES
    ]
    log_weight = np.stack(columns, axis=1) - _SHARES / _USUAL_SHARE
    if elasticity is None:
        return log_weight
    return log_weight - ((elasticity.value - 1.0 + _SHARES) / max(elasticity.error, _SOFT_EDGE)) ** 2 / 2.0


def _log_density(elasticity: Elasticity) -> Reals:
    """Of the exponents of the grid, by `likely_exponents`."""
    away, error = elasticity.value - _GRID, max(elasticity.error, 1e-6)
    width = math.hypot(error, _UNSEEN_LOSS_SD)
    log_density = -(((_GRID - PRIOR_EXPONENT) / PRIOR_EXPONENT_SD) ** 2 + (away / width) ** 2) / 2
    return log_density + log_ndtr(away * _UNSEEN_LOSS_SD / (error * width))


def _uniform(rng: np.random.Generator, draws: int) -> Reals:
    """A half, for the median, and then so many draws from 0 to 1."""
    return np.append(0.5, rng.random(draws))


def _drawn(log_density: Reals, grid: Reals, uniform: Reals) -> Reals:
    """The quantiles of laws over a grid: one law for all, or one each."""
    below = np.cumsum(np.exp(log_density - log_density.max(axis=1, keepdims=True)), axis=1)
    below /= below[:, -1:]
    if len(below) == 1:
        return np.interp(uniform, below[0], grid)
    return np.array([np.interp(asked, row, grid) for asked, row in zip(uniform, below, strict=True)])
