"""Engines decode small batches although larger ones would fit.

Symptom: the mean number of running requests is far below the engine's limit, with nothing waiting.
Evidence: running requests weighted by time, the engine's limit on running requests, requests waiting; all while the KV
cache is less than 90% full.
Threshold: less than half of the limit, with fewer than one request waiting, while the KV cache has room for half of the
time. Decode passes take about the same time at any batch size until the GPU is compute-bound, so a half-empty batch
gives up to half of the tokens for the same GPU-seconds.
Remedy: more samples in flight, fewer engines, or a limit that reflects what the engine can run.
Limits: an engine bound by its KV cache cannot reach its limit. If the size of the cache is unknown, only waiting
requests show that. A limit left at a default of thousands says nothing about the engine.
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
# With the KV cache full for longer, the cache sets the batch.
OPEN_TIME_RATIO: Final = 0.50


def find(evidence: Evidence) -> Finding | None:
    """Return the finding over all engines whose limit is known, or None."""
    engines = evidence.answers["engine_speed"].with_columns(
        pl.coalesce("max_running", pl.lit(evidence.config.max_running, dtype=pl.Int64)).alias("cap")
    )
    capped = _while_open(engines.filter(pl.col("cap") > 0))
    open_s = column_total(capped, "open_s")
    if not open_s or open_s < OPEN_TIME_RATIO * column_total(capped, "row_s"):
        return None
    running_mean = weighted_mean(capped, "running_mean", "open_s")
    running_cap = weighted_mean(capped, "cap", "open_s")
    waiting_mean = weighted_mean(capped, "waiting_mean", "open_s")
    if running_mean >= FILL_RATIO * running_cap or waiting_mean >= WAITING_REQUESTS:
        return None
    return evidence.finding(
        "underfilled_engines",
        severity="warning",
        facts={
            "running_mean": running_mean,
            "running_cap": running_cap,
            "fill_ratio": running_mean / running_cap,
            "waiting_mean": waiting_mean,
            "decoding_gpu_s": evidence.state_gpu_s("decoding", "mixed_passes", "generating"),
        },
    )


def _while_open(engines: pl.DataFrame) -> pl.DataFrame:
    """With the time in which the KV cache had room (open_s), and the requests that ran and waited in it."""
    full_s = pl.col("kv_full_s").fill_null(0.0)
    engines = engines.with_columns((pl.col("row_s") - full_s).alias("open_s"))
    return engines.with_columns(
        pl.when(full_s > 0)
        .then((pl.col(name) * pl.col("row_s") - pl.col(f"kv_full_{name}") * full_s) / pl.col("open_s"))
        .otherwise(pl.col(name))
        .alias(name)
        for name in ("running_mean", "waiting_mean")
    ).with_columns(pl.col("running_mean", "waiting_mean").fill_nan(0.0))


RULE = FindingRule(
    title="Underfilled engines",
    sentences=(
        "Engines ran {running_mean} requests at a time, with a limit of {running_cap} ({fill_ratio} full), over "
        "{decoding_gpu_s} of decoding.",
    ),
    remedy="Give each engine more concurrent requests: raise the admission limit or run fewer engines. A forward "
    "pass takes about as long for a few requests as for many, until the batch is large.",
    find=find,
    is_ranked=True,
)
