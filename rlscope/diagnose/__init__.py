"""Every illness that is looked for, in one list. Pure: evidence in, findings out, no wording.

One illness per module; `rules` lists them. Pure: evidence in, findings out, no wording.
"""

import math
from collections.abc import Callable
from typing import Final

from rlscope.analysis.result import Finding
from rlscope.diagnose import (
    capped_staleness,
    data_quality_gaps,
    gpu_disagreement,
    lockstep,
    long_tail,
    overproduction,
    starved_trainer,
    straggling_engine,
    underfilled_engines,
    weight_update_cost,
    weights_not_applied,
)
from rlscope.diagnose.evidence import Evidence

Rule = Callable[[Evidence], Finding | None]

RULES: Final[dict[str, Rule]] = {
    "weights_not_applied": weights_not_applied.find,
    "starved_trainer": starved_trainer.find,
    "capped_staleness": capped_staleness.find,
    "overproduction": overproduction.find,
    "underfilled_engines": underfilled_engines.find,
    "lockstep": lockstep.find,
    "long_tail": long_tail.find,
    "weight_update_cost": weight_update_cost.find,
    "straggling_engine": straggling_engine.find,
    "data_quality_gaps": data_quality_gaps.find,
    "gpu_disagreement": gpu_disagreement.find,
}


def find_all(evidence: Evidence) -> tuple[Finding, ...]:
    """What every rule finds, dearest first; what has no price comes last, or first when it is critical.

    What is critical and costs no GPU-seconds puts the run itself, or every number about it, in doubt.
    """
    found = [finding for rule in RULES.values() if (finding := rule(evidence)) is not None]
    return tuple(sorted(found, key=lambda finding: (-_weight(finding), finding.rule)))


def _weight(finding: Finding) -> float:
    if finding.cost_gpu_s is None:
        return math.inf if finding.severity == "critical" else 0.0
    return finding.cost_gpu_s
