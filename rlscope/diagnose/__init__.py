"""Known performance problems in a run, one module per finding. Pure: evidence in, findings out.

Each module documents its finding, holds its thresholds and its texts, and ends with its `RULE`. The reports format the
numbers.
"""

import math
from typing import Final

from rlscope.analysis.result import Finding
from rlscope.diagnose import (
    capped_staleness,
    checkpoint_cost,
    data_quality_gaps,
    drifting_lengths,
    full_kv_cache,
    gpu_disagreement,
    hollow_reward,
    idle_auxiliary,
    lockstep,
    long_tail,
    overproduction,
    rising_truncation,
    shared_gpu,
    stale_reward,
    stalled,
    starved_trainer,
    straggling_engine,
    straggling_trainer,
    underfilled_engines,
    weight_update_cost,
    weights_not_applied,
)
from rlscope.diagnose.evidence import Evidence, FindingRule

RULES: Final[tuple[FindingRule, ...]] = (
    stalled.RULE,
    weights_not_applied.RULE,
    starved_trainer.RULE,
    capped_staleness.RULE,
    overproduction.RULE,
    underfilled_engines.RULE,
    full_kv_cache.RULE,
    lockstep.RULE,
    long_tail.RULE,
    weight_update_cost.RULE,
    checkpoint_cost.RULE,
    idle_auxiliary.RULE,
    straggling_engine.RULE,
    straggling_trainer.RULE,
    rising_truncation.RULE,
    hollow_reward.RULE,
    drifting_lengths.RULE,
    stale_reward.RULE,
    data_quality_gaps.RULE,
    gpu_disagreement.RULE,
    shared_gpu.RULE,
)
"""Every rule, in the order of the documentation."""


def find_all(evidence: Evidence) -> tuple[Finding, ...]:
    """Return every finding of a run, the most expensive first.

    Findings without a cost come last, except critical ones, which come first because they cast doubt on the run or on
    its numbers.
    """
    found = [finding for rule in RULES if (finding := rule.find(evidence)) is not None]
    return tuple(sorted(found, key=lambda finding: (-_weight(finding), finding.rule)))


def _weight(finding: Finding) -> float:
    if finding.cost_gpu_s is None:
        return math.inf if finding.severity == "critical" else 0.0
    return finding.cost_gpu_s
