"""Engines whose KV cache is full hold requests back before their limit on running requests does.

Symptom: requests wait in the engines although fewer run than the limit allows, and the KV cache is nearly full.
Evidence: the time in which the KV cache was at least 90% full, and the requests that ran and waited in it.
Threshold: half of the engines' time, one request waiting on average, and less than 95% of the limit running.
Remedy: more room in the KV cache. A higher limit on running requests alone gains nothing.
Limits: an engine whose cache has an unknown size, or whose use of it was not recorded, is left out.
Cost: none is given, because the gain from a larger batch depends on the latency curve.
"""

from typing import Final

import polars as pl

from rlscope.analysis.result import Finding
from rlscope.diagnose.evidence import Evidence, FindingRule, column_total, weighted_mean

FULL_TIME_RATIO: Final = 0.50
# With a request waiting on average, the engines could have run more.
WAITING_REQUESTS: Final = 1.0
# At the limit, a larger cache holds no more.
LIMIT_RATIO: Final = 0.95


def find(evidence: Evidence) -> Finding | None:
    """Return the finding over all engines that record how full their KV cache is, or None."""
    engines = evidence.answers["engine_speed"].filter(pl.col("kv_full_s").is_not_null())
    limit = pl.lit(evidence.config.max_running, dtype=pl.Int64)
    engines = engines.with_columns(pl.coalesce("max_running", limit).alias("cap"))
    row_s, full_s = column_total(engines, "row_s"), column_total(engines, "kv_full_s")
    if not full_s or full_s < FULL_TIME_RATIO * row_s:
        return None
    running_mean = weighted_mean(engines, "kv_full_running_mean", "kv_full_s")
    waiting_mean = weighted_mean(engines, "kv_full_waiting_mean", "kv_full_s")
    running_cap = None if engines["cap"].null_count() else weighted_mean(engines, "cap", "kv_full_s")
    is_at_limit = running_cap is not None and running_mean >= LIMIT_RATIO * running_cap
    if waiting_mean < WAITING_REQUESTS or is_at_limit:
        return None
    return evidence.finding(
        "full_kv_cache",
        severity="info",
        facts={
            "full_ratio": full_s / row_s,
            "running_mean": running_mean,
            "waiting_mean": waiting_mean,
            "running_cap": running_cap,
        },
    )


RULE = FindingRule(
    title="Full KV caches",
    sentences=(
        "The engines' KV caches were at least 90% full for {full_ratio} of the time. {running_mean} requests ran at a "
        "time, with a limit of {running_cap}, and {waiting_mean} waited.",
        "The engines' KV caches were at least 90% full for {full_ratio} of the time. {running_mean} requests ran at a "
        "time, and {waiting_mean} waited.",
    ),
    remedy="Make room in the KV cache: give it more of the GPU memory (mem_fraction_static in SGLang, "
    "gpu_memory_utilization in vLLM), store it in FP8, put more GPUs into an engine, or generate shorter responses. "
    "Raising the limit on running requests alone gains nothing.",
    find=find,
)
