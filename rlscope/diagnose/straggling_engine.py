"""One engine decodes slower than the others.

Symptom: one of several engines produces fewer tokens per second of forward passes.
Evidence: tokens per second of its engine steps, against the median of the engines with a comparable batch; the shares
of its samples and of the others' that were dropped as stale, if a slow engine's samples come too late.
Threshold: 20% below the median of at least three engines, more than unequal batches explain on equal hardware.
Remedy: check its host (clocks, neighbors, a faulty link), or give it fewer requests.
Limits: engines of different sizes are compared as if they were equal. An engine with a small batch is slower only
because it has less to do, so engines with a batch well below the median are excluded first.
Cost: the GPU-seconds of the slow engine that the median engine would not have needed for its tokens. A synchronous step
waits for the slow engine, and every other GPU with it: that loses several times as much. None if its GPUs are not
known.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import polars as pl

from rlscope.analysis.result import EvidenceValue, Finding
from rlscope.diagnose.evidence import Evidence, FindingRule

# More than unequal batches explain on equal hardware.
SLOWDOWN_RATIO: Final = 0.20
# With two engines, the median does not show which one is off.
LEAST_ENGINES: Final = 3
# A batch below this share of the median batch explains a lower rate by itself.
COMPARABLE_BATCH_RATIO: Final = 0.80
# Shares of a few hundred samples differ by less by chance.
DROPPED_MORE_RATIO: Final = 0.10


class Straggler(NamedTuple):
    """An engine that is slower than the others."""

    worker_id: str
    tokens_per_s: float
    median_tokens_per_s: float
    """Median rate of the engines with a comparable batch."""
    row_s: float
    """Total time of the engine's rows, in seconds."""


def slowest_engine(engines: pl.DataFrame) -> Straggler | None:
    """Return the slowest engine if it is a straggler; engines: the answer of engine_speed, a row per engine."""
    # A smaller batch explains a lower rate by itself.
    least_running = COMPARABLE_BATCH_RATIO * pl.col("running_mean").median()
    comparable = engines.filter(pl.col("running_mean") >= least_running)
    if len(comparable) < LEAST_ENGINES:
        return None
    median_tokens_per_s = float(comparable["tokens_per_s"].median() or 0)  # type: ignore[arg-type]
    worker_id, tokens_per_s, row_s = (
        comparable.sort("tokens_per_s", "worker_id").select("worker_id", "tokens_per_s", "row_s").row(0)
    )
    if tokens_per_s > (1 - SLOWDOWN_RATIO) * median_tokens_per_s or not median_tokens_per_s:
        return None
    return Straggler(worker_id, tokens_per_s, median_tokens_per_s, row_s)


def find(evidence: Evidence) -> Finding | None:
    """Return the finding about the slowest engine, or None."""
    slowest = slowest_engine(evidence.answers["engine_speed"])
    if slowest is None:
        return None
    slowdown_ratio = 1 - slowest.tokens_per_s / slowest.median_tokens_per_s
    gpus = int(evidence.answers["worker_extents"].filter(worker_id=slowest.worker_id)["gpu_count"].sum())
    return evidence.finding(
        "straggling_engine",
        severity="warning",
        cost_gpu_s=slowdown_ratio * slowest.row_s * gpus if gpus else None,
        facts={
            "worker_id": slowest.worker_id,
            "tokens_per_s": slowest.tokens_per_s,
            "median_tokens_per_s": slowest.median_tokens_per_s,
            "slowdown_ratio": slowdown_ratio,
            **_drops(slowest.worker_id, evidence.answers["engine_deliveries"]),
        },
    )


def _drops(worker_id: str, delivered: pl.DataFrame) -> Mapping[str, EvidenceValue]:
    """Return the shares dropped of the engine's samples and of the others'; empty if the engine's is not larger."""
    is_own = pl.col("worker_id") == worker_id
    own, others = (
        delivered.filter(which).select(pl.col("dropped").sum() / pl.col("samples").sum()).item()
        for which in (is_own, ~is_own)
    )
    if own is None or others is None or not own - others >= DROPPED_MORE_RATIO:
        return {}
    return {"dropped_ratio": own, "others_dropped_ratio": others}


RULE = FindingRule(
    title="Straggling engine",
    sentences=(
        "Engine {worker_id} generates {tokens_per_s}; the median engine generates {median_tokens_per_s}. Its samples "
        "are late: {dropped_ratio} of them were dropped as stale, and {others_dropped_ratio} of the others'.",
        "Engine {worker_id} generates {tokens_per_s}; the median engine generates {median_tokens_per_s}.",
    ),
    remedy="Check that engine's host and GPU (clocks, neighbors, memory) and how requests are routed to it; replace "
    "it if it stays slow.",
    find=find,
)
