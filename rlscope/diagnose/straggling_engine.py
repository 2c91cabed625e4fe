"""One engine decodes slower than the others.

Symptom: of several engines one produces fewer tokens for each second that its passes run.
Evidence: tokens per second of its rows, against the median of the engines with a comparable batch.
Threshold: 20 % below the median of at least two others, beyond what unequal batches explain on equal hardware.
Remedy: look at its host (clocks, neighbours, a faulty link), or give it fewer requests.
When it is wrong: engines of different sizes are compared as if equal; an engine with a small batch is slower per row
only because it has less to do, so engines with a batch well below the median are left out first.
The cost is what the median engine would have produced beyond it, in GPU-seconds of its own rows.
"""

from typing import Final

import polars as pl

from rlscope.analysis.result import Finding
from rlscope.diagnose.evidence import Evidence

# Beyond what unequal batches explain on equal hardware.
SLOWDOWN_RATIO: Final = 0.20
# Two cannot tell who is slow.
LEAST_ENGINES: Final = 3
# A batch smaller than this share of the median batch explains a lower rate by itself.
COMPARABLE_BATCH_RATIO: Final = 0.80


def find(evidence: Evidence) -> Finding | None:
    """The finding about the slowest engine, or None."""
    engines = _comparable(evidence.answers["engine_speed"])
    if len(engines) < LEAST_ENGINES:
        return None
    median_tokens_per_s = float(engines["tokens_per_s"].median() or 0)  # type: ignore[arg-type]
    slowest = engines.sort("tokens_per_s", "worker_id").row(0, named=True)
    if slowest["tokens_per_s"] > (1 - SLOWDOWN_RATIO) * median_tokens_per_s or not median_tokens_per_s:
        return None
    slowdown_ratio = 1 - slowest["tokens_per_s"] / median_tokens_per_s
    gpus = evidence.answers["worker_extents"].filter(worker_id=slowest["worker_id"])["gpu_count"].sum()
    return Finding(
        rule="straggling_engine",
        severity="warning",
        cost_gpu_s=slowdown_ratio * slowest["row_s"] * gpus,
        evidence={
            "worker_id": slowest["worker_id"],
            "tokens_per_s": slowest["tokens_per_s"],
            "median_tokens_per_s": median_tokens_per_s,
            "slowdown_ratio": slowdown_ratio,
        },
        start_ns=evidence.run.started_ns,
        end_ns=evidence.end_ns,
    )


def _comparable(engines: pl.DataFrame) -> pl.DataFrame:
    """The engines whose batch does not explain a lower rate by itself."""
    return engines.filter(pl.col("running_mean") >= COMPARABLE_BATCH_RATIO * pl.col("running_mean").median())
