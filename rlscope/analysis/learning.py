"""Rewards of samples that one optimizer step trained on: stale against fresh ones, truncated against finished ones.

A comparison within a step leaves out what changes from step to step, such as the policy's progress. Stale samples tend
to be long ones, so staleness is compared among responses of similar length: in quarters of all lengths, with the length
itself as a second variable (ordinary least squares on two variables, each less its mean in the step and quarter).
Intervals are those of the jackknife over steps (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, ch. 11).
"""

import math
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import polars as pl

from rlscope.model.arrays import Reals
from rlscope.model.estimate import Estimate

_LEAST_STEPS: Final = 8
"""Steps below which the jackknife does not tell how far off a difference is."""
_INTERVAL_SIGMAS: Final = 1.645
"""Half-width of a 90% interval, in standard errors."""
_CLEAR_SIGMAS: Final = 2.576
"""Distance from zero of a difference that is called clear: chance alone exceeds it in 1 of 100 runs."""
_LEAST_OWN_RATIO: Final = 0.01
"""Share of the variance of staleness that length must leave: below it, the two cannot be told apart."""
_ROUNDING_RATIO: Final = 1e-9
"""Share of the largest mean reward below which a difference is an error of rounding."""
Inseparable = Literal["one_staleness", "few_steps", "old_is_long"]
"""one_staleness: the samples of a step, at similar length, all have the same staleness. few_steps: fewer than eight
steps have samples of several. old_is_long: staleness and length rise together."""


@dataclass(frozen=True, slots=True)
class RewardDifference:
    """A difference in reward between samples of the same step."""

    reward: Estimate
    """The difference, with its 90% interval over steps."""
    is_clear: bool
    """Whether chance would make it this large in fewer than 1 of 100 runs."""
    steps: int
    """Steps that have samples of both kinds."""


@dataclass(frozen=True, slots=True)
class Learning:
    """Rewards within a step. They tell which policy is better, not how much a sample teaches."""

    per_version: RewardDifference | None
    """Reward of a sample that is one version staler, at similar length; None if the run cannot tell."""
    inseparable: Inseparable | None
    """Reason that the run cannot tell stale from fresh samples; None if it can."""
    truncated: RewardDifference | None
    """Reward of truncated less that of finished responses of equal staleness; None if too few steps have both."""


def learning_of(moments: pl.DataFrame) -> Learning | None:
    """Return the differences in reward from the answer of reward_moments; None if no sample has a reward."""
    if moments.is_empty():
        return None
    products = moments.group_by("step").agg(*_PRODUCTS).sort("step")
    several = products.filter(pl.col("staleness2") > 0.0).drop("step").to_numpy()
    truncated = _of_truncated(moments, products)
    if not len(several):
        return Learning(None, "one_staleness", truncated)
    if len(several) < _LEAST_STEPS:
        return Learning(None, "few_steps", truncated)
    per_version = _jackknifed(_slopes(_with_each_left_out(several)), moments)
    return Learning(per_version, None if per_version else "old_is_long", truncated)


def _centered(whole: str, one: str, other: str) -> pl.Expr:
    """Add up products over the length bands of a step, less those of the bands' means."""
    return (pl.col(whole) - pl.col(one) * (pl.col(other) / pl.col("samples"))).sum()


_PRODUCTS: Final = (
    _centered("staleness_sum2", "staleness_sum", "staleness_sum").alias("staleness2"),
    _centered("tokens_sum2", "tokens_sum", "tokens_sum").alias("tokens2"),
    _centered("staleness_tokens", "staleness_sum", "tokens_sum").alias("staleness_tokens"),
    _centered("staleness_reward", "staleness_sum", "reward_sum").alias("staleness_reward"),
    _centered("tokens_reward", "tokens_sum", "reward_sum").alias("tokens_reward"),
)


def _with_each_left_out(steps: Reals) -> Reals:
    """Return the sum of all rows, then the sums without each of them."""
    total = steps.sum(axis=0)
    return np.vstack((total, total - steps))


def _slopes(products: Reals) -> Reals:
    """Return the reward per version at equal length, from a row of products each; NaN if length explains staleness."""
    staleness2, tokens2, both, by_staleness, by_tokens = products.T
    with np.errstate(divide="ignore", invalid="ignore"):
        of_length = np.where(tokens2 > 0.0, both / tokens2, 0.0)
        own = staleness2 - both * of_length
        return np.where(own > _LEAST_OWN_RATIO * staleness2, (by_staleness - by_tokens * of_length) / own, np.nan)


def _of_truncated(moments: pl.DataFrame, products: pl.DataFrame) -> RewardDifference | None:
    """Compare truncated with finished samples of each step; what staleness explains of the difference is taken off."""
    is_cut = pl.col("length_band") == 0
    pairs = _means(moments.filter(is_cut)).join(_means(moments.filter(~is_cut)), on="step", suffix="_finished")
    pairs = pairs.join(products, on="step").sort("step")
    if pairs.height < _LEAST_STEPS:
        return None
    weight = pl.col("samples") * pl.col("samples_finished") / (pl.col("samples") + pl.col("samples_finished"))
    changes = pairs.select(
        weight,
        reward=weight * (pl.col("reward") - pl.col("reward_finished")),
        staleness=weight * (pl.col("staleness") - pl.col("staleness_finished")),
    ).to_numpy()
    weights, reward, staleness = _with_each_left_out(changes).T
    slopes = _slopes(_with_each_left_out(pairs.select(products.columns[1:]).to_numpy()))
    return _jackknifed((reward - np.nan_to_num(slopes) * staleness) / weights, moments)


def _means(bands: pl.DataFrame) -> pl.DataFrame:
    """Return the samples of each step, and the mean of their rewards and of their staleness."""
    sums = bands.group_by("step").agg(pl.col("samples", "reward_sum", "staleness_sum").sum())
    reward, staleness = (pl.col(f"{name}_sum") / pl.col("samples") for name in ("reward", "staleness"))
    return sums.select("step", "samples", reward=reward, staleness=staleness)


def _jackknifed(values: Reals, moments: pl.DataFrame) -> RewardDifference | None:
    """Return a difference with its interval, from its value over all steps and those without each; None if unknown."""
    if not np.isfinite(values).all():
        return None
    largest = float(moments.select((pl.col("reward_sum") / pl.col("samples")).abs().max()).item())
    values = np.where(np.abs(values) > _ROUNDING_RATIO * largest, values, 0.0)
    value, without = float(values[0]), values[1:]
    error = math.sqrt((without.size - 1) * float(np.mean((without - without.mean()) ** 2)))
    reward = Estimate(value, value - _INTERVAL_SIGMAS * error, value + _INTERVAL_SIGMAS * error)
    return RewardDifference(reward, abs(value) > _CLEAR_SIGMAS * error, without.size)
