"""Responses get longer, or shorter, over the run.

Symptom: the mean response length at the end of the run is far from that at its start.
Evidence: the mean length over the first and over the last five steps.
Threshold: 25% more or less, with every one of the last five steps on the same side of all the first five.
Remedy: step time, memory and predictions belong to the lengths of the latest steps. Analyze again once they settle.
Limits: a step whose response tokens are not recorded is left out.
Cost: none is given, because longer responses are also more tokens to train on.
"""

from typing import Final

import polars as pl

from rlscope.analysis.result import Finding
from rlscope.diagnose.evidence import Evidence, FindingRule, separate_ends

# In percent of the length at the start: a change of step time as large as that is more than noise in any run.
CHANGE_PERCENT: Final = 25


def find(evidence: Evidence) -> Finding | None:
    """Return the finding, or None below the threshold or with fewer than ten steps."""
    steps = evidence.answers["training_steps"].filter(pl.col("response_tokens") > 0)
    ends = separate_ends(steps.with_columns(length=pl.col("response_tokens") / pl.col("samples")), "length")
    if ends is None:
        return None
    before_tokens, after_tokens = ends.means("length")
    change_ratio = after_tokens / before_tokens - 1.0
    if abs(change_ratio) < CHANGE_PERCENT / 100.0:
        return None
    return evidence.finding(
        "drifting_lengths",
        severity="info",
        facts={"before_tokens": before_tokens, "after_tokens": after_tokens},
    )


RULE = FindingRule(
    title="Drifting response lengths",
    sentences=(
        "The mean response length was {before_tokens} in the first five steps and {after_tokens} in the last five.",
    ),
    remedy="Analyze again once lengths settle: step time, memory and predictions belong to the latest ones.",
    find=find,
)
