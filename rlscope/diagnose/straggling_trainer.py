"""One trainer computes longer per step than the others, which wait for it.

Symptom: all trainers but one wait at a barrier in each step.
Evidence: the mean compute per step of the slowest trainer, against the median of the others, and the waits at a
barrier.
Threshold: 20% above the median, and waits at a barrier for 10% of the trainers' GPU time.
Remedy: check its host, or give it fewer tokens.
Limits: a trainer that waits for the others inside of its compute, as in a collective, seems to be as slow as they are.
"""

from typing import Final

from rlscope.analysis.result import Finding
from rlscope.diagnose.evidence import Evidence, FindingRule

# As for engines: more than unequal batches explain.
SLOWDOWN_RATIO: Final = 0.20
# One GPU in ten, as for other waits.
WARNING_SHARE_RATIO: Final = 0.10


def find(evidence: Evidence) -> Finding | None:
    """Return the finding about the slowest trainer, or None."""
    trainers = evidence.answers["trainer_speed"].sort("compute_s", "worker_id", descending=[True, False])
    barrier_gpu_s = evidence.state_gpu_s("waiting", roles=("trainer",), reason="barrier")
    if len(trainers) < 2 or barrier_gpu_s < WARNING_SHARE_RATIO * evidence.role_gpu_s("trainer"):
        return None
    worker_id, compute_s = trainers.select("worker_id", "compute_s").row(0)
    median_s = float(trainers["compute_s"][1:].median() or 0)  # type: ignore[arg-type]
    if not median_s or compute_s < (1 + SLOWDOWN_RATIO) * median_s:
        return None
    return evidence.finding(
        "straggling_trainer",
        severity="warning",
        cost_gpu_s=barrier_gpu_s,
        facts={
            "worker_id": worker_id,
            "compute_s": compute_s,
            "median_compute_s": median_s,
            "barrier_gpu_s": barrier_gpu_s,
            "trainer_share_ratio": barrier_gpu_s / evidence.role_gpu_s("trainer"),
        },
    )


RULE = FindingRule(
    title="Straggling trainer",
    sentences=(
        "Trainer {worker_id} computes {compute_s} per step; the median of the others is {median_compute_s}. Trainers "
        "waited {barrier_gpu_s} at a barrier ({trainer_share_ratio} of their GPU time).",
    ),
    remedy="Check that trainer's host and GPU (clocks, neighbors, a faulty link), and whether it gets more tokens than "
    "the others.",
    find=find,
)
