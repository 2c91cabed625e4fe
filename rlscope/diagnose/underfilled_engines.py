"""Engines decode small batches although larger ones would fit.

Symptom: the mean number of running requests is far below the engine's limit, with nothing waiting.
Evidence: running requests weighted by time, the engine's limit on running requests, requests waiting.
Threshold: less than half of the limit, with fewer than one request waiting. Decode passes take about the same time at
any batch size until the GPU is compute-bound, so a half-empty batch gives up to half of the tokens for the same
GPU-seconds.
Remedy: more samples in flight, fewer engines, or a limit that reflects what the engine can run.
Limits: an engine bound by its KV cache cannot reach its limit; requests wait then, and the rule stays silent. A limit
left at a default of thousands says nothing about the engine.
Cost: none is given, because the gain from a larger batch depends on the latency curve.
"""

from typing import Final

import polars as pl

from rlscope.analysis.result import Finding
from rlscope.diagnose.evidence import Evidence, FindingRule, column_total, weighted_mean

# Below half of the limit, a decode pass takes about as long as at the limit.
FILL_RATIO: Final = 0.50
# With a request waiting on average, something other than demand limits the batch.
WAITING_REQUESTS: Final = 1.0


def find(evidence: Evidence) -> Finding | None:
    """The finding over all engines whose limit is known, or None."""
    engines = evidence.answers["engine_speed"].with_columns(
        pl.coalesce("max_running", pl.lit(evidence.config.max_running_per_engine, dtype=pl.Int64)).alias("cap")
    )
    capped = engines.filter(pl.col("cap") > 0)
    if not column_total(capped, "row_s"):
        return None
    running_mean = weighted_mean(capped, "running_mean", "row_s")
    running_cap = weighted_mean(capped, "cap", "row_s")
    waiting_mean = weighted_mean(capped, "waiting_mean", "row_s")
    if running_mean >= FILL_RATIO * running_cap or waiting_mean >= WAITING_REQUESTS:
        return None
    return Finding(
        rule="underfilled_engines",
        severity="warning",
        cost_gpu_s=None,
        evidence={
            "running_mean": running_mean,
            "running_cap": running_cap,
            "fill_ratio": running_mean / running_cap,
            "waiting_mean": waiting_mean,
            "decoding_gpu_s": evidence.state_gpu_s("decoding", "mixed_passes", "generating"),
        },
        start_ns=evidence.run.started_ns,
        end_ns=evidence.end_ns,
    )


RULE = FindingRule(
    name="underfilled_engines",
    title="Underfilled engines",
    sentences=(
        "Engines ran {running_mean} requests at a time, with a limit of {running_cap} ({fill_ratio} full), over "
        "{decoding_gpu_s} of decoding.",
    ),
    remedy="Give each engine more concurrent requests: raise the admission limit or run fewer engines. A forward "
    "pass takes about as long for a few requests as for many, until the batch is large.",
    find=find,
    towards="more_samples",
)
