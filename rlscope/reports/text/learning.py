"""Rewards of the samples of one step in words: what staleness and truncation make of them, and how sure that is."""

from collections.abc import Iterator, Mapping
from typing import Final

from rlscope import format as fmt
from rlscope.analysis.learning import Inseparable, Learning, RewardDifference

_INSEPARABLE: Final[Mapping[Inseparable, str]] = {
    "one_staleness": "the samples of a step all have the same staleness.",
    "few_steps": "too few steps hold samples of different staleness.",
    "old_is_long": "the longer a response, the staler it is.",
}


def learning_sentences(learning: Learning) -> Iterator[str]:
    """Yield a sentence on stale samples, and one on truncated ones if there are any."""
    if learning.inseparable is not None:
        yield f"Stale and fresh samples cannot be told apart by their reward: {_INSEPARABLE[learning.inseparable]}"
    if learning.per_version is not None:
        yield _stale(learning.per_version)
    if learning.truncated is not None:
        yield _truncated(learning.truncated)


def _stale(found: RewardDifference) -> str:
    if not found.is_clear:
        return f"Within a step, stale and fresh samples of similar length {_unclear(found)} per version of staleness."
    return (
        f"A sample that is one version staler has a reward {_clear(found)}, compared with samples of similar length in "
        "the same step. This is how older policies score, not how much a sample teaches."
    )


def _truncated(found: RewardDifference) -> str:
    if not found.is_clear:
        return f"Within a step, truncated and finished responses of equal staleness {_unclear(found)}."
    return (
        f"Truncated responses have a reward {_clear(found)}, compared with finished ones of equal staleness in the "
        "same step."
    )


def _clear(found: RewardDifference) -> str:
    """Both ends of the interval have the sign of the value."""
    value, *ends = (abs(each) for each in found.reward)
    low, high = map(_plain, sorted(ends))
    return f"{_plain(value)} {'lower' if found.reward.value < 0.0 else 'higher'} (90% interval {low} to {high})"


def _unclear(found: RewardDifference) -> str:
    value, low, high = map(_signed, found.reward)
    differ = "do not clearly differ" if found.reward.low <= 0.0 <= found.reward.high else "may differ"
    return f"{differ} in reward: {value} (90% interval {low} to {high})"


def _plain(reward: float) -> str:
    return fmt.significant(reward, 2)


def _signed(reward: float) -> str:
    return f"{'−' if reward < 0.0 else '+'}{_plain(abs(reward))}"
