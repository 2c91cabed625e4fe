"""The staleness cap holds GPUs back.

Symptom: samplers have no requests, or the trainer delays a publication, because a token would exceed the cap.
Evidence: GPU-seconds of trainers and samplers that waited for the reason `staleness_cap`.
Threshold: 5% of all GPU-seconds; critical from 20%. A cap is meant to bind now and then, which costs less than that.
Remedy: raise the cap if the algorithm tolerates it. Otherwise keep it from binding: fewer samples in flight, shorter
responses, or better balance between trainers and samplers.
Limits: a framework that limits the number of requests in flight without calling it a staleness cap shows up as
backpressure instead.
"""

from typing import Final

from rlscope.analysis.result import Finding
from rlscope.diagnose.evidence import Evidence, FindingRule

# A cap that binds now and then works as intended. Above this share, it limits throughput.
WARNING_SHARE_RATIO: Final = 0.05
# One GPU in five only waits for the cap.
CRITICAL_SHARE_RATIO: Final = 0.20


def find(evidence: Evidence) -> Finding | None:
    """Return the finding, or None below the threshold."""
    trainer_gpu_s = evidence.state_gpu_s("waiting_for_staleness_cap")
    sampler_gpu_s = evidence.state_gpu_s("no_requests", reason="staleness_cap")
    total_gpu_s = evidence.ledger.total_gpu_s
    if not total_gpu_s or trainer_gpu_s + sampler_gpu_s < WARNING_SHARE_RATIO * total_gpu_s:
        return None
    share_ratio = (trainer_gpu_s + sampler_gpu_s) / total_gpu_s
    return evidence.finding(
        "capped_staleness",
        severity="critical" if share_ratio >= CRITICAL_SHARE_RATIO else "warning",
        cost_gpu_s=trainer_gpu_s + sampler_gpu_s,
        facts={
            "trainer_waiting_gpu_s": trainer_gpu_s,
            "sampler_waiting_gpu_s": sampler_gpu_s,
            "waiting_share_ratio": share_ratio,
            "max_staleness_versions": evidence.run.max_staleness,
        },
    )


RULE = FindingRule(
    title="Capped staleness",
    sentences=(
        "Over the whole run, the staleness cap blocked trainers for {trainer_waiting_gpu_s} and samplers for "
        "{sampler_waiting_gpu_s} ({waiting_share_ratio} of all GPU time).",
    ),
    remedy="Raise the cap if training stays stable with staler tokens. Otherwise keep it and reduce staleness: a "
    "shorter queue, fewer samples in flight, shorter responses.",
    find=find,
    is_ranked=True,
)
