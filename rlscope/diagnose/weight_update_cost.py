"""Weight updates take a visible share of the run.

Symptom: trainers publish and samplers apply weights, and do nothing else meanwhile.
Evidence: GPU-seconds in publishing, transferring, applying and waiting for weights; mean time to apply an update, and
the median time of its longest part, if parts were recorded.
Threshold: 5% of all GPU-seconds; critical from 15%. Updates over fast links take 1 to 3%.
Remedy: publish less often (several optimizer steps per version), overlap the transfer with generation, send only what
changed, use a faster link.
Limits: an engine that applies weights without pausing generation is counted by its engine steps, not as applying. A
hook that does not pass `paused=False` for such an update makes the engine look idle.
"""

from collections.abc import Mapping
from typing import Final

import polars as pl

from rlscope.analysis.result import EvidenceValue, Finding
from rlscope.diagnose.evidence import Evidence, FindingRule

# More than updates over a fast link take.
WARNING_SHARE_RATIO: Final = 0.05
# One GPU in seven does nothing but move weights.
CRITICAL_SHARE_RATIO: Final = 0.15


def find(evidence: Evidence) -> Finding | None:
    """Return the finding, or None below the threshold."""
    publish_gpu_s = evidence.state_gpu_s("publishing_weights", "transferring_weights")
    apply_gpu_s = evidence.state_gpu_s("applying_weights")
    waiting_gpu_s = evidence.state_gpu_s("waiting", reason="weights")
    cost_gpu_s = publish_gpu_s + apply_gpu_s + waiting_gpu_s
    total_gpu_s = evidence.ledger.total_gpu_s
    if not total_gpu_s or cost_gpu_s < WARNING_SHARE_RATIO * total_gpu_s:
        return None
    updates, part = evidence.answers["weight_update_latency"], _longest_part(evidence.answers["weight_update_parts"])
    return evidence.finding(
        "weight_update_cost",
        severity="critical" if cost_gpu_s >= CRITICAL_SHARE_RATIO * total_gpu_s else "warning",
        cost_gpu_s=cost_gpu_s,
        facts={
            "updates": updates["version"].n_unique(),
            "publish_gpu_s": publish_gpu_s,
            "apply_gpu_s": apply_gpu_s,
            "waiting_gpu_s": waiting_gpu_s,
            "share_ratio": cost_gpu_s / total_gpu_s,
            "apply_mean_s": float(updates["apply_s"].mean()) if len(updates) else None,  # type: ignore[arg-type]
            **part,
        },
    )


def _longest_part(parts: pl.DataFrame) -> Mapping[str, EvidenceValue]:
    """Return the recorded part that takes longest, a transfer included, and its time; empty if there is none."""
    recorded = parts.filter(~pl.col("phase").is_in(["publish", "apply"])).sort("median_s", descending=True)
    if recorded.is_empty():
        return {}
    return {"longest_part": recorded["phase"][0], "part_median_s": recorded["median_s"][0]}


RULE = FindingRule(
    title="Weight-update cost",
    sentences=(
        "Over the whole run, {updates} took {publish_gpu_s} of trainers and {apply_gpu_s} of samplers ({share_ratio} "
        "of all GPU time, waits for weights included). Applying one took an engine {apply_mean_s} on average. The "
        "longest recorded part of an update, {longest_part}, took {part_median_s}.",
        "Over the whole run, {updates} took {publish_gpu_s} of trainers and {apply_gpu_s} of samplers ({share_ratio} "
        "of all GPU time, waits for weights included). Applying one took an engine {apply_mean_s} on average.",
        "Over the whole run, weight updates took {publish_gpu_s} of trainers and {apply_gpu_s} of samplers "
        "({share_ratio} of all GPU time, waits for weights included).",
    ),
    remedy="Publish less often. If samplers have GPUs of their own, transfer weights while they keep generating, and "
    "apply them without draining the engines or recomputing their KV cache.",
    find=find,
)
