"""Samplers and trainers work by turns.

Symptom: samplers stand at a barrier while the trainers train, and the trainers wait while the samplers sample.
Evidence: the samplers' GPU-seconds without requests for the reason `barrier`, the trainers' in `waiting_for_samples`.
Threshold: both at least 10 % of their side, one GPU in ten; critical when the two together reach half of all
GPU-seconds, which is what two equal sides that never overlap lose.
Remedy: let the samplers run ahead by a step (asynchronous), or give both phases the same GPUs.
When it is wrong: a run that must be on-policy pays this on purpose; then only the split of the same GPUs can be better.
The cost is the smaller of the two waits, on each side: what a perfect overlap could win back of both.
"""

from typing import Final

from rlscope.analysis.result import Finding
from rlscope.diagnose.evidence import Evidence

# One GPU in ten on each side: below that the sides overlap nearly always.
WARNING_SHARE_RATIO: Final = 0.10
# What two equal sides that never overlap lose.
CRITICAL_SHARE_RATIO: Final = 0.50


def find(evidence: Evidence) -> Finding | None:
    """The finding, or None when either side hardly waits for the other."""
    barrier_gpu_s = evidence.state_gpu_s("no_requests", reason="barrier", roles=("sampler",))
    waiting_gpu_s = evidence.state_gpu_s("waiting_for_samples", roles=("trainer",))
    sampler_gpu_s, trainer_gpu_s = evidence.role_gpu_s("sampler"), evidence.role_gpu_s("trainer")
    if not sampler_gpu_s or not trainer_gpu_s:
        return None
    barrier_share_ratio, waiting_share_ratio = barrier_gpu_s / sampler_gpu_s, waiting_gpu_s / trainer_gpu_s
    if min(barrier_share_ratio, waiting_share_ratio) < WARNING_SHARE_RATIO:
        return None
    lost_ratio = (barrier_gpu_s + waiting_gpu_s) / evidence.ledger.total_gpu_s
    overlap_ratio = min(barrier_share_ratio, waiting_share_ratio)
    return Finding(
        rule="lockstep",
        severity="critical" if lost_ratio >= CRITICAL_SHARE_RATIO else "warning",
        cost_gpu_s=overlap_ratio * (sampler_gpu_s + trainer_gpu_s),
        evidence={
            "barrier_gpu_s": barrier_gpu_s,
            "barrier_share_ratio": barrier_share_ratio,
            "waiting_gpu_s": waiting_gpu_s,
            "waiting_share_ratio": waiting_share_ratio,
        },
        start_ns=evidence.run.started_ns,
        end_ns=evidence.end_ns,
    )
