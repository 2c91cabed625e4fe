"""Trainers wait for samples.

Symptom: trainer GPUs are idle between steps, with an empty queue.
Evidence: the trainers' GPU-seconds in `waiting_for_samples`, and the longest single wait.
Threshold: 10% of the trainers' GPU-seconds, about one GPU in ten: on most clusters, moving a GPU gains nothing below
that. Critical from 30%: every third trainer could have been a sampler.
Remedy: more sampler GPUs or larger decode batches; a shorter response tail; fewer trainer GPUs if no sampler can be
added.
Limits: waits while both sides alternate belong to the finding `lockstep` and are not counted. The first fill of the
queue is counted: check the timeline of a short run.
"""

from typing import Final

from rlscope.analysis.ledger import TRAINER_ROLES
from rlscope.analysis.result import Finding
from rlscope.diagnose.evidence import Evidence, FindingRule
from rlscope.diagnose.lockstep import turns_ratio

# One GPU in ten: the smallest share that a different layout can recover.
WARNING_SHARE_RATIO: Final = 0.10
# Every third trainer could have been a sampler.
CRITICAL_SHARE_RATIO: Final = 0.30


def find(evidence: Evidence) -> Finding | None:
    """Return the finding, or None below the threshold."""
    trainer_gpu_s = evidence.role_gpu_s(*TRAINER_ROLES)
    in_turns_gpu_s = turns_ratio(evidence) * evidence.role_gpu_s("trainer")
    waiting_gpu_s = evidence.state_gpu_s("waiting_for_samples", roles=TRAINER_ROLES) - in_turns_gpu_s
    if not trainer_gpu_s or waiting_gpu_s < WARNING_SHARE_RATIO * trainer_gpu_s:
        return None
    share_ratio = waiting_gpu_s / trainer_gpu_s
    waits = evidence.answers["step_waits"]
    return evidence.finding(
        "starved_trainer",
        severity="critical" if share_ratio >= CRITICAL_SHARE_RATIO else "warning",
        cost_gpu_s=waiting_gpu_s,
        facts={
            "waiting_gpu_s": waiting_gpu_s,
            "waiting_share_ratio": share_ratio,
            "longest_wait_s": waits["longest_wait_s"].max() if len(waits) else None,  # type: ignore[dict-item]
        },
    )


RULE = FindingRule(
    title="Starved trainer",
    sentences=(
        "Over the whole run, trainers spent {waiting_gpu_s} waiting for samples ({waiting_share_ratio} of their GPU "
        "time). The longest wait took {longest_wait_s}.",
        "Over the whole run, trainers spent {waiting_gpu_s} waiting for samples ({waiting_share_ratio} of their GPU "
        "time).",
    ),
    remedy="Make samples arrive faster: run larger decode batches, let samplers run further ahead if the staleness "
    "cap allows it, or, if the recommended layout agrees, move GPUs from trainers to samplers.",
    find=find,
    is_ranked=True,
)
