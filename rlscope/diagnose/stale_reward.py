"""Stale samples have a lower reward than fresh ones.

Symptom: among samples of one step and of similar length, staler ones have a lower reward, by more than the run gains
from one version to the next.
Evidence: the reward that one version of staleness costs, with its 90% interval; the mean reward gained per version,
from the first five steps to the last five; the mean staleness and the mean reward of the samples.
Threshold: a difference that chance makes in fewer than 1 of 100 runs, whose interval lies above the gain per version,
and 5% of the mean reward at the mean staleness.
Remedy: fresher samples: a lower cap or limit on samples in flight.
Limits: this is how older policies score, not how much a sample teaches. Nothing is said if the samples of a step have
one staleness, or if stale samples are always the long ones.
Cost: none is given, because the samples are trained like others.
"""

from typing import Final

import polars as pl

from rlscope.analysis.learning import learning_of
from rlscope.analysis.result import Finding
from rlscope.diagnose.evidence import Evidence, FindingRule, column_total, ends_of

# Of the mean reward. Less than that is within what two runs of the same settings differ by.
LOST_SHARE_RATIO: Final = 0.05


def find(evidence: Evidence) -> Finding | None:
    """Return the finding, or None below the threshold or if the run cannot tell."""
    moments = evidence.answers["reward_moments"]
    learning = learning_of(moments)
    per_version = None if learning is None else learning.per_version
    if per_version is None or not per_version.is_clear or per_version.reward.value > 0.0:
        return None
    samples, reward_sum = column_total(moments, "samples"), column_total(moments, "reward_sum")
    staleness = column_total(moments, "staleness_sum") / samples
    lost = -per_version.reward.value * staleness
    gained = _gained_per_version(evidence.answers["training_steps"])
    is_progress = gained is not None and -per_version.reward.high <= gained
    if is_progress or lost * samples < LOST_SHARE_RATIO * abs(reward_sum):
        return None
    return evidence.finding(
        "stale_reward",
        severity="info",
        facts={
            "lost_per_version": -per_version.reward.value,
            "least_lost": -per_version.reward.high,
            "most_lost": -per_version.reward.low,
            "mean_staleness": staleness,
            "mean_reward": reward_sum / samples,
            "gained_per_version": gained,
        },
    )


def _gained_per_version(steps: pl.DataFrame) -> float | None:
    """Return how much the mean reward rises from one version to the next; None with too few steps or one version."""
    ends = ends_of(steps, "reward_mean")
    if ends is None:
        return None
    (reward_before, reward_after), (first, last) = ends.means("reward_mean"), ends.means("version_in")
    return (reward_after - reward_before) / (last - first) if last > first else None


RULE = FindingRule(
    title="Stale samples score lower",
    sentences=(
        "Each version of staleness costs {lost_per_version} of reward (90% interval {least_lost} to {most_lost}), and "
        "the run gains {gained_per_version} per version. Mean reward {mean_reward}, mean staleness {mean_staleness}.",
        "Each version of staleness costs {lost_per_version} of reward (90% interval {least_lost} to {most_lost}). Mean "
        "reward {mean_reward}, mean staleness {mean_staleness}.",
    ),
    remedy="Lower the staleness cap or the limit on samples in flight, if older policies teach less here as well.",
    find=find,
)
