"""Samplers produce more than the trainers consume.

Symptom: samples are dropped as stale, or samplers are idle because the queue is full.
Evidence: generated tokens that were dropped as stale or abandoned, priced at the samplers' GPU-seconds per generated
token; the samplers' GPU-seconds without requests because of backpressure.
Threshold: 10% of the samplers' GPU-seconds, one GPU in ten; critical from 30%.
Remedy: a smaller queue or a limit on samples in flight, fewer publications or a higher cap, so that samples are fresh
enough when they are trained on; if trainers never wait for samples, fewer sampler GPUs or more trainer GPUs.
Limits: samples filtered for their reward (all equal in a group) are not overproduction and are not counted.
"""

from typing import Final

import polars as pl

from rlscope.analysis.ledger import GENERATING, SAMPLER_ROLES
from rlscope.analysis.result import Finding
from rlscope.diagnose.evidence import Evidence, FindingRule, column_total

# One sampler GPU in ten is idle or generates tokens that are dropped.
WARNING_SHARE_RATIO: Final = 0.10
# One sampler GPU in three is wasted.
CRITICAL_SHARE_RATIO: Final = 0.30


def dropped_tokens_ratio(balance: pl.DataFrame) -> float:
    """Share of the generated tokens that were dropped as stale or abandoned, 0..1; 0 if nothing was generated."""
    generated = column_total(balance, "generated_tokens")
    return _dropped_tokens(balance) / generated if generated else 0.0


def _dropped_tokens(balance: pl.DataFrame) -> float:
    return column_total(balance, "dropped_stale_tokens") + column_total(balance, "abandoned_tokens")


def find(evidence: Evidence) -> Finding | None:
    """Return the finding, or None below the threshold."""
    roles = SAMPLER_ROLES
    sampler_gpu_s = evidence.role_gpu_s(*roles)
    balance = evidence.answers["token_balance"]
    dropped_share_ratio = dropped_tokens_ratio(balance)
    dropped_gpu_s = dropped_share_ratio * evidence.state_gpu_s(*GENERATING, roles=roles)
    backpressure_gpu_s = evidence.state_gpu_s("no_requests", roles=roles, reason="backpressure")
    cost_gpu_s = dropped_gpu_s + backpressure_gpu_s
    if not sampler_gpu_s or cost_gpu_s < WARNING_SHARE_RATIO * sampler_gpu_s:
        return None
    return evidence.finding(
        "overproduction",
        severity="critical" if cost_gpu_s >= CRITICAL_SHARE_RATIO * sampler_gpu_s else "warning",
        cost_gpu_s=cost_gpu_s,
        facts={
            "dropped_tokens": int(_dropped_tokens(balance)),
            "dropped_share_ratio": dropped_share_ratio,
            "dropped_gpu_s": dropped_gpu_s,
            "backpressure_gpu_s": backpressure_gpu_s,
            "backpressure_share_ratio": backpressure_gpu_s / sampler_gpu_s,
        },
    )


RULE = FindingRule(
    title="Wasted sampling",
    sentences=(),
    counts={
        "dropped_share_ratio": "{} of the generated tokens were dropped over the whole run.",
        "backpressure_share_ratio": "A full queue blocked samplers for {} of their GPU time over the whole run.",
    },
    remedy="If samples are dropped, let fewer go stale: admit fewer, publish less often, or raise the staleness cap. "
    "If trainers never wait for samples, make the training step faster or, if the recommended layout agrees, move "
    "GPUs from samplers to trainers.",
    find=find,
    is_ranked=True,
)
