"""The staleness cap holds GPUs back.

Symptom: samplers have no requests, or the trainer holds a publication, because a token would grow too old.
Evidence: GPU-seconds of both sides that waited for the reason `staleness_cap`.
Threshold: 5 % of all GPU-seconds: a cap is meant to bind now and then, and then costs little; critical from 20 %.
Remedy: a higher cap if the algorithm bears it; else fewer samples in flight, shorter responses, or trainers and
samplers nearer to balance, so that the cap does not bind.
When it is wrong: a framework that throttles by a fixed number of requests in flight without calling it a cap shows
up as backpressure instead.
"""

from typing import Final

from rlscope.analysis.result import Finding
from rlscope.diagnose.evidence import Evidence

# A cap that binds now and then does its work; beyond this it sets the pace.
WARNING_SHARE_RATIO: Final = 0.05
# One GPU in five only waits for the cap.
CRITICAL_SHARE_RATIO: Final = 0.20


def find(evidence: Evidence) -> Finding | None:
    """The finding, or None below the threshold."""
    trainer_gpu_s = evidence.state_gpu_s("waiting_for_staleness_cap")
    sampler_gpu_s = evidence.state_gpu_s("no_requests", reason="staleness_cap")
    total_gpu_s = evidence.ledger.total_gpu_s
    if not total_gpu_s or trainer_gpu_s + sampler_gpu_s < WARNING_SHARE_RATIO * total_gpu_s:
        return None
    share_ratio = (trainer_gpu_s + sampler_gpu_s) / total_gpu_s
    return Finding(
        rule="capped_staleness",
        severity="critical" if share_ratio >= CRITICAL_SHARE_RATIO else "warning",
        cost_gpu_s=trainer_gpu_s + sampler_gpu_s,
        evidence={
            "trainer_waiting_gpu_s": trainer_gpu_s,
            "sampler_waiting_gpu_s": sampler_gpu_s,
            "waiting_share_ratio": share_ratio,
            "max_staleness_versions": evidence.run.max_staleness,
        },
        start_ns=evidence.run.started_ns,
        end_ns=evidence.end_ns,
    )
