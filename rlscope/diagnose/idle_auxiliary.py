"""GPUs of judges and of reward, reference or critic models are mostly idle.

Symptom: an auxiliary model has GPUs of its own and little to do on them.
Evidence: for each kind of auxiliary worker, its GPU-seconds in waiting states, and all of its GPU-seconds. Workers
whose names differ only in a number at the end are of one kind.
Threshold: half of the GPU-seconds of a kind.
Remedy: fewer GPUs for these models, or one engine for several of them.
Limits: a model that answers in bursts needs its GPUs while they last, and holds up the samples with fewer.
"""

from typing import Final

import polars as pl

from rlscope.analysis.ledger import IDLE_STATES, auxiliary_kinds
from rlscope.analysis.result import Finding
from rlscope.diagnose.evidence import Evidence, FindingRule, column_total

# Half as many GPUs would do the same work if it were spread evenly.
WARNING_SHARE_RATIO: Final = 0.50


def find(evidence: Evidence) -> Finding | None:
    """Return the finding about all kinds beyond the threshold; None without any."""
    idle: dict[str, tuple[float, float]] = {}
    for kind, rows in sorted(auxiliary_kinds(evidence.answers["ledger_timeline"]).items()):
        # The rounding of the buckets would move a share off its threshold.
        gpu_s = round(column_total(rows, "gpu_s"), 9)
        idle_gpu_s = round(column_total(rows.filter(pl.col("state").is_in(IDLE_STATES)), "gpu_s"), 9)
        if gpu_s and idle_gpu_s >= WARNING_SHARE_RATIO * gpu_s:
            idle[kind] = idle_gpu_s, gpu_s
    if not idle:
        return None
    idle_gpu_s, gpu_s = (sum(parts) for parts in zip(*idle.values(), strict=True))
    return evidence.finding(
        "idle_auxiliary",
        severity="warning",
        cost_gpu_s=idle_gpu_s,
        facts={
            "kinds": ", ".join(idle),
            "idle_gpu_s": idle_gpu_s,
            "auxiliary_share_ratio": idle_gpu_s / gpu_s,
        },
    )


RULE = FindingRule(
    title="Idle auxiliary GPUs",
    sentences=(
        "Over the whole run, the auxiliary GPUs of {kinds} were idle for {idle_gpu_s} ({auxiliary_share_ratio} of "
        "their time).",
    ),
    remedy="Give the auxiliary models fewer GPUs, or let several of them share one engine.",
    find=find,
)
