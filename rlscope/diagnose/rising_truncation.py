"""More and more responses are cut at the length limit.

Symptom: at the end of the run, far more of the trained samples reach the limit on output tokens than at its start.
Evidence: the share of truncated samples in the first and in the last five steps; the mean reward of all samples, if it
rose meanwhile.
Threshold: 10 points more, with a larger share in each of the last five steps than in any of the first; critical if half
of the samples are truncated at the end. Two sets of five steps of one run are apart that far in 1 of 252 cases.
Remedy: a truncated response has no answer to reward. Raise the limit, or let the reward count length.
Limits: a sample whose end was not recorded is left out. Whether a longer limit would let it finish is not known.
Cost: none is given, because truncated samples are trained like others.
"""

from typing import Final

import polars as pl

from rlscope.analysis.result import Finding
from rlscope.diagnose.evidence import Evidence, FindingRule, separate_ends

# In percent of the samples: below it, the answers that are lost hardly change a batch.
GROWTH_PERCENT: Final = 10
# Most of a batch then has no answer to learn from.
CRITICAL_PERCENT: Final = 50


def find(evidence: Evidence) -> Finding | None:
    """Return the finding, or None below the threshold or with fewer than ten steps."""
    ends = separate_ends(evidence.answers["truncation_by_step"], "truncated_ratio")
    if ends is None:
        return None
    before_ratio, after_ratio = ends.means("truncated_ratio")
    if after_ratio - before_ratio < GROWTH_PERCENT / 100.0:
        return None
    return evidence.finding(
        "rising_truncation",
        severity="critical" if after_ratio >= CRITICAL_PERCENT / 100.0 else "warning",
        facts={
            "before_ratio": before_ratio,
            "after_ratio": after_ratio,
            **_rewards(evidence.answers["training_steps"], *ends),
        },
    )


def _rewards(all_steps: pl.DataFrame, first: pl.DataFrame, last: pl.DataFrame) -> dict[str, float]:
    """Return the mean reward at both ends, if it rose; empty otherwise."""
    before, after = (
        all_steps.join(steps, on="step", how="semi")["reward_mean"].drop_nulls().mean() for steps in (first, last)
    )
    if not isinstance(before, float) or not isinstance(after, float) or after <= before:
        return {}
    return {"reward_before": before, "reward_after": after}


RULE = FindingRule(
    title="Rising truncation",
    sentences=(
        "{after_ratio} of the samples of the last five steps reached the limit on output tokens, against "
        "{before_ratio} of the first five. The mean reward rose from {reward_before} to {reward_after} meanwhile, "
        "although fewer responses have an answer.",
        "{after_ratio} of the samples of the last five steps reached the limit on output tokens, against "
        "{before_ratio} of the first five.",
    ),
    remedy="Raise the limit on output tokens, or let the reward count length: a truncated response has no answer.",
    find=find,
)
