"""Trainers wait for samples.

Symptom: trainer GPUs stand still with an empty queue between steps.
Evidence: the trainers' GPU-seconds in `waiting_for_samples`, and the longest single wait.
Threshold: 10 % of the trainers' GPU-seconds, since below that moving a GPU costs as much as it brings on most
clusters (one GPU in ten); critical from 30 %, where every third trainer could have sampled instead.
Remedy: more sampler GPUs or fuller engines; a shorter response tail; fewer trainer GPUs if none can be had.
When it is wrong: in a synchronous run the trainers wait by design while samples are generated; the long tail and the
split of the same GPUs are the question there. The first fill of the queue counts too: look at a short run's timeline.
"""

from typing import Final

from rlscope.analysis.result import Finding
from rlscope.diagnose.evidence import Evidence

# One GPU in ten: the smallest share that a change of layout can win back.
WARNING_SHARE_RATIO: Final = 0.10
# Every third trainer could have sampled instead.
CRITICAL_SHARE_RATIO: Final = 0.30


def find(evidence: Evidence) -> Finding | None:
    """The finding, or None below the threshold."""
    roles = ("trainer", "colocated")
    waiting_gpu_s = evidence.state_gpu_s("waiting_for_samples", roles=roles)
    trainer_gpu_s = evidence.role_gpu_s(*roles)
    if not trainer_gpu_s or waiting_gpu_s < WARNING_SHARE_RATIO * trainer_gpu_s:
        return None
    share_ratio = waiting_gpu_s / trainer_gpu_s
    waits = evidence.answers["step_waits"]
    return Finding(
        rule="starved_trainer",
        severity="critical" if share_ratio >= CRITICAL_SHARE_RATIO else "warning",
        cost_gpu_s=waiting_gpu_s,
        evidence={
            "waiting_gpu_s": waiting_gpu_s,
            "waiting_share_ratio": share_ratio,
            "longest_wait_s": waits["longest_wait_s"].max() if len(waits) else None,  # type: ignore[dict-item]
        },
        start_ns=evidence.run.started_ns,
        end_ns=evidence.end_ns,
    )
