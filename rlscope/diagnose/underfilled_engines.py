"""Engines decode with few requests in a batch that could hold many.

Symptom: the mean number of running requests is far below what the engine may run, with nothing waiting.
Evidence: running requests weighted by time, the engine's cap, requests waiting.
Threshold: half of the cap with fewer than one request waiting: decode passes are flat in the batch size until the GPU
is compute-bound, so a half-empty batch gives up to half of the tokens for the same GPU-seconds.
Remedy: more samples in flight, fewer engines, or a cap that is meant.
When it is wrong: an engine bound by its KV cache cannot fill its cap (then requests wait, and the rule is quiet); a
cap left at a default of thousands says nothing about the engine.
The cost is not priced: how much a fuller batch brings depends on the latency curve.
"""

from typing import Final

import polars as pl

from rlscope.analysis.result import Finding
from rlscope.diagnose.evidence import Evidence, column_total, weighted_mean

# Below half of the cap a decode pass costs nearly the same as at the cap.
FILL_RATIO: Final = 0.50
# One request waiting on average means that something other than demand keeps the batch small.
WAITING_REQUESTS: Final = 1.0


def find(evidence: Evidence) -> Finding | None:
    """The finding over all engines whose cap is known, or None."""
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
