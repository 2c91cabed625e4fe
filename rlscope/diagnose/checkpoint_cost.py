"""Checkpoints and evaluation take a visible share of the trainers' time.

Symptom: trainers save or evaluate between steps, and no step begins meanwhile.
Evidence: the trainers' GPU-seconds in `checkpoint` and in `eval`.
Threshold: 10% of the trainers' GPU-seconds, as for waits; critical from 30%.
Remedy: save and evaluate less often, save in the background, or evaluate on GPUs that do not train.
Limits: saving in the background or evaluating on samplers costs the trainers nothing and is not counted. How
much work a crash would lose is not weighed against it.
"""

from typing import Final

from rlscope.analysis.ledger import TRAINER_ROLES
from rlscope.analysis.result import Finding
from rlscope.diagnose.evidence import Evidence, FindingRule

# One GPU in ten, as for waits.
WARNING_SHARE_RATIO: Final = 0.10
# Every third trainer only saves and evaluates.
CRITICAL_SHARE_RATIO: Final = 0.30


def find(evidence: Evidence) -> Finding | None:
    """Return the finding, or None below the threshold."""
    trainer_gpu_s = evidence.role_gpu_s(*TRAINER_ROLES)
    checkpoint_gpu_s = evidence.state_gpu_s("checkpoint", roles=TRAINER_ROLES)
    eval_gpu_s = evidence.state_gpu_s("eval", roles=TRAINER_ROLES)
    cost_gpu_s = checkpoint_gpu_s + eval_gpu_s
    if not trainer_gpu_s or cost_gpu_s < WARNING_SHARE_RATIO * trainer_gpu_s:
        return None
    share_ratio = cost_gpu_s / trainer_gpu_s
    return evidence.finding(
        "checkpoint_cost",
        severity="critical" if share_ratio >= CRITICAL_SHARE_RATIO else "warning",
        cost_gpu_s=cost_gpu_s,
        facts={
            "checkpoint_gpu_s": checkpoint_gpu_s,
            "eval_gpu_s": eval_gpu_s,
            "trainer_share_ratio": share_ratio,
        },
    )


RULE = FindingRule(
    title="Checkpoint and evaluation cost",
    sentences=(),
    counts={
        "checkpoint_gpu_s": "Trainers spent {} saving checkpoints.",
        "eval_gpu_s": "Trainers spent {} evaluating.",
        "trainer_share_ratio": "That is {} of their GPU time over the whole run.",
    },
    remedy="Save and evaluate less often, save in the background, or evaluate on GPUs that do not train.",
    find=find,
)
