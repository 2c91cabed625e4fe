"""Moving weights takes a visible share of the run.

Symptom: trainers publish, samplers apply, and meanwhile neither trains nor samples.
Evidence: GPU-seconds in publishing, transferring and applying, and waiting for weights; mean time of one application.
Threshold: 5 % of all GPU-seconds: updates through fast links take 1 to 3 %; critical from 15 %.
Remedy: publish less often (several optimizer steps to a version), overlap the transfer with generation, send only
what changed, use a faster link.
When it is wrong: an engine that applies weights without pausing generation is counted by its rows, not as applying;
a hook that does not say `paused=False` for such an update makes it look as if it stood still.
"""

from typing import Final

from rlscope.analysis.result import Finding
from rlscope.diagnose.evidence import Evidence

# Above what an update over a fast link takes.
WARNING_SHARE_RATIO: Final = 0.05
# One GPU in seven only moves weights.
CRITICAL_SHARE_RATIO: Final = 0.15


def find(evidence: Evidence) -> Finding | None:
    """The finding, or None below the threshold."""
    publish_gpu_s = evidence.state_gpu_s("publishing_weights", "transferring_weights")
    apply_gpu_s = evidence.state_gpu_s("applying_weights")
    waiting_gpu_s = evidence.state_gpu_s("waiting", reason="weights")
    cost_gpu_s = publish_gpu_s + apply_gpu_s + waiting_gpu_s
    total_gpu_s = evidence.ledger.total_gpu_s
    if not total_gpu_s or cost_gpu_s < WARNING_SHARE_RATIO * total_gpu_s:
        return None
    updates = evidence.answers["weight_update_latency"]
    return Finding(
        rule="weight_update_cost",
        severity="critical" if cost_gpu_s >= CRITICAL_SHARE_RATIO * total_gpu_s else "warning",
        cost_gpu_s=cost_gpu_s,
        evidence={
            "updates": updates["version"].n_unique(),
            "publish_gpu_s": publish_gpu_s,
            "apply_gpu_s": apply_gpu_s,
            "waiting_gpu_s": waiting_gpu_s,
            "share_ratio": cost_gpu_s / total_gpu_s,
            "apply_mean_s": float(updates["apply_s"].mean()) if len(updates) else None,  # type: ignore[arg-type]
        },
        start_ns=evidence.run.started_ns,
        end_ns=evidence.end_ns,
    )
