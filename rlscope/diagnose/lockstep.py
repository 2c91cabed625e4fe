"""Trainers and samplers take turns: each side waits while the other works.

Symptom: samplers wait at a barrier while the trainers train, and the trainers wait while the samplers generate.
Evidence: the samplers' GPU-seconds without requests for the reason `barrier`, the trainers' in `waiting_for_samples`.
Threshold: both at least 10% of their side's GPU time, one GPU in ten. Critical when both together reach half of all
GPU-seconds, which is what two equal sides without any overlap lose.
Remedy: let the samplers run one step ahead (asynchronous), or colocate both phases on the same GPUs.
Limits: a run that must stay on-policy accepts this cost; only colocation can reduce it.
Cost: the smaller share of the two waits, applied to both sides: what overlap recovers if samples take as long as now.
Batches that stay full recover more: a cap of 2 in simulated synchronous runs 1.8 times as much in the median.
"""

from typing import Final

from rlscope.analysis.result import Finding
from rlscope.diagnose.evidence import Evidence, FindingRule

# One GPU in ten on each side: below that, the two sides overlap nearly always.
WARNING_SHARE_RATIO: Final = 0.10
# The loss of two equal sides that never overlap.
CRITICAL_SHARE_RATIO: Final = 0.50


def turns_ratio(evidence: Evidence) -> float:
    """Share of each side's GPU time, 0..1, in which it waits while the other works; 0 below the threshold."""
    sampler_gpu_s, trainer_gpu_s = evidence.role_gpu_s("sampler"), evidence.role_gpu_s("trainer")
    if not sampler_gpu_s or not trainer_gpu_s:
        return 0.0
    barrier_gpu_s, waiting_gpu_s = _waits_gpu_s(evidence)
    both_ratio = min(barrier_gpu_s / sampler_gpu_s, waiting_gpu_s / trainer_gpu_s)
    return both_ratio if both_ratio >= WARNING_SHARE_RATIO else 0.0


def _waits_gpu_s(evidence: Evidence) -> tuple[float, float]:
    """Return the waits of the samplers at the barrier, and of the trainers for samples."""
    barrier_gpu_s = evidence.state_gpu_s("no_requests", reason="barrier", roles=("sampler",))
    return barrier_gpu_s, evidence.state_gpu_s("waiting_for_samples", roles=("trainer",))


def find(evidence: Evidence) -> Finding | None:
    """Return the finding, or None if either side hardly waits for the other."""
    overlap_ratio = turns_ratio(evidence)
    if not overlap_ratio:
        return None
    barrier_gpu_s, waiting_gpu_s = _waits_gpu_s(evidence)
    sampler_gpu_s, trainer_gpu_s = evidence.role_gpu_s("sampler"), evidence.role_gpu_s("trainer")
    barrier_share_ratio, waiting_share_ratio = barrier_gpu_s / sampler_gpu_s, waiting_gpu_s / trainer_gpu_s
    lost_ratio = (barrier_gpu_s + waiting_gpu_s) / evidence.ledger.total_gpu_s
    return evidence.finding(
        "lockstep",
        severity="critical" if lost_ratio >= CRITICAL_SHARE_RATIO else "warning",
        cost_gpu_s=overlap_ratio * (sampler_gpu_s + trainer_gpu_s),
        facts={
            "barrier_gpu_s": barrier_gpu_s,
            "barrier_share_ratio": barrier_share_ratio,
            "waiting_gpu_s": waiting_gpu_s,
            "waiting_share_ratio": waiting_share_ratio,
            "recoverable_gpu_s": overlap_ratio * (sampler_gpu_s + trainer_gpu_s),
        },
    )


RULE = FindingRule(
    title="Synchronous steps",
    sentences=(
        "Over the whole run, samplers spent {barrier_gpu_s} waiting for other workers ({barrier_share_ratio} of their "
        "GPU time), and trainers spent {waiting_gpu_s} waiting for samples ({waiting_share_ratio}). Overlapping the "
        "two would save {recoverable_gpu_s}, the smaller of the two shares on both sides, and more if that keeps the "
        "batches full.",
    ),
    remedy="Let samplers run one step ahead of the trainers, or colocate both phases on the same GPUs. A run that "
    "must stay on-policy accepts this cost.",
    find=find,
    is_ranked=True,
)
