"""Rewards in words: how they changed over the run, and what staleness and truncation make of them within a step."""

from collections.abc import Iterator, Mapping
from typing import Final

from rlscope import format as fmt
from rlscope.analysis.learning import Inseparable, Learning, RewardDifference
from rlscope.analysis.result import AnalysisResult
from rlscope.diagnose.evidence import END_STEPS, ends_of

TITLE: Final = "Learning, whole run"

_INSEPARABLE: Final[Mapping[Inseparable, str]] = {
    "one_staleness": "the samples of a step all have the same staleness.",
    "few_steps": "too few steps hold samples of different staleness.",
    "old_is_long": "the longer a response, the staler it is.",
}


def run_sentences(analysis: AnalysisResult) -> Iterator[str]:
    """Yield how reward and finished responses changed from the first to the last steps; nothing without a reward."""
    rewards, cut = ends_of(analysis.answers["training_steps"], "reward_mean"), analysis.answers["truncation_by_step"]
    if rewards is None:
        return
    run, gpu_s, number = analysis.run, analysis.ledger.total_gpu_s, fmt.count(END_STEPS)
    cost = fmt.money(gpu_s, run.gpu_hour_price, run.currency)
    before, after = map(fmt.significant, rewards.means("reward_mean"))
    spent = f"{fmt.gpu_time(gpu_s)}{f' and {cost}' if cost else ''}"
    yield f"Mean reward: {before} in the first {number} steps, {after} in the last {number}. The run took {spent}."
    shares = ends_of(cut, "truncated_ratio")
    if shares is None or not any(shares.means("truncated_ratio")):
        return
    before, after = (fmt.percent(1.0 - each) for each in shares.means("truncated_ratio"))
    yield f"Responses that were not truncated: {before} in the first {number} steps, {after} in the last {number}."
    if finished := ends_of(cut, "finished_reward_mean"):
        before, after = map(fmt.significant, finished.means("finished_reward_mean"))
        yield f"Their mean reward: {before} and {after}, in the first and last {number} steps that have one."


def all_sentences(analysis: AnalysisResult) -> list[str]:
    """Return the sentences on the run, then those on the samples of one step."""
    return [*run_sentences(analysis), *(learning_sentences(analysis.learning) if analysis.learning else ())]


def learning_sentences(learning: Learning) -> Iterator[str]:
    """Yield a sentence on stale samples, and one on truncated ones if there are any."""
    if learning.inseparable is not None:
        yield f"Stale and fresh samples cannot be told apart by their reward: {_INSEPARABLE[learning.inseparable]}"
    if learning.per_version is not None:
        yield _compared(learning.per_version, *_STALE)
    if learning.truncated is not None:
        yield _compared(learning.truncated, *_TRUNCATED)


_STALE: Final = (
    "A sample that is one version staler has a reward {}, compared with samples of similar length in the same step. "
    "This is how older policies score, not how much a sample teaches.",
    "Within a step, stale and fresh samples of similar length {}.",
    " per version of staleness",
)
_TRUNCATED: Final = (
    "Truncated responses have a reward {}, compared with finished ones of equal staleness in the same step.",
    "Within a step, truncated and finished responses of equal staleness {}.",
    "",
)


def _compared(found: RewardDifference, if_clear: str, if_unclear: str, per: str) -> str:
    """Write a difference; both ends of the interval of a clear one have the sign of its value."""
    if not found.is_clear:
        if not any(found.reward):
            return if_unclear.format("have the same reward")
        value, low, high = map(fmt.signed(lambda reward: fmt.significant(reward, 2)), found.reward)
        differ = "do not clearly differ" if found.reward.low <= 0.0 <= found.reward.high else "may differ"
        return if_unclear.format(f"{differ} in reward: {value} (90% interval {low} to {high}){per}")
    value, *ends = (abs(each) for each in found.reward)
    low, high = (fmt.significant(each, 2) for each in sorted(ends))
    side = "lower" if found.reward.value < 0.0 else "higher"
    return if_clear.format(f"{fmt.significant(value, 2)} {side} (90% interval {low} to {high})")
