"""Stale samples have a lower reward than fresh ones.

Symptom: among samples of one step and of similar length, staler ones have a lower reward.
Evidence: the reward that one version of staleness costs, with its 90% interval; the mean staleness of the samples; the
share of the mean reward that they lack together.
Threshold: a difference that chance makes in fewer than 1 of 100 runs, and 5% of the mean reward at the mean staleness.
Remedy: fresher samples: a lower cap or limit on samples in flight.
Limits: this is how older policies score, as in any run that improves, not how much a sample teaches. Nothing is said
if the samples of a step have one staleness, or if stale samples are always the long ones.
Cost: none is given, because the samples are trained like others.
"""

from typing import Final

from rlscope.analysis.learning import learning_of
from rlscope.analysis.result import Finding
from rlscope.diagnose.evidence import Evidence, FindingRule, column_total

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
    if lost * samples < LOST_SHARE_RATIO * abs(reward_sum):
        return None
    return Finding(
        rule="stale_reward",
        severity="info",
        cost_gpu_s=None,
        evidence={
            "lost_per_version": -per_version.reward.value,
            "least_lost": -per_version.reward.high,
            "most_lost": -per_version.reward.low,
            "mean_staleness": staleness,
            "mean_reward": reward_sum / samples,
        },
        start_ns=evidence.run.started_ns,
        end_ns=evidence.end_ns,
    )


RULE = FindingRule(
    name="stale_reward",
    title="Stale samples score lower",
    sentences=(
        "A sample that is one version staler has a reward {lost_per_version} lower (90% interval {least_lost} to "
        "{most_lost}) than samples of similar length in the same step. The mean staleness is {mean_staleness} "
        "versions, the mean reward {mean_reward}.",
    ),
    remedy="Make samples fresher, with a lower staleness cap or limit on samples in flight. How much less a stale "
    "sample teaches is not known from its reward.",
    find=find,
    towards="fresher",
)
