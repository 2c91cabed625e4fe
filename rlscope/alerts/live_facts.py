"""The facts that a terminal draws, from the latest parts of a run that is being written."""

from typing import Final

import polars as pl

from rlscope.alerts.live_view import LiveFacts, SideState, SilentWorker
from rlscope.alerts.live_workers import LiveWorkers
from rlscope.alerts.metrics import BY_NAME
from rlscope.alerts.parts import Family
from rlscope.alerts.timeline import Timeline
from rlscope.analysis import TokenStaleness
from rlscope.staleness import weighted_quantile

SHOWN_NS: Final = 300_000_000_000
"""Facts are those of the last five minutes that are known: the window of most rules."""
SILENT_NS: Final = 15_000_000_000
"""A worker that flushes every two seconds was not heard of seven times."""


SHOWN: Final[frozenset[Family]] = frozenset({"states", "engines", "queues", "tokens", "steps"})
"""The parts that facts are made of."""


def facts_of(run_id: str, timeline: Timeline, workers: LiveWorkers, steps: int, now_ns: int) -> LiveFacts:
    """The facts of a timeline that holds the last SHOWN_NS, or as much as there is."""
    return LiveFacts(
        run_id=run_id,
        started_ns=timeline.start_ns,
        steps=steps,
        last_step_end_ns=timeline.step_ends_ns[-1] if timeline.step_ends_ns else None,
        sides=_sides(timeline, workers),
        running_per_engine=_value(timeline, "running.per_engine"),
        waiting_requests=_value(timeline, "waiting.requests"),
        kv_used_ratio=_value(timeline, "kv.used_ratio"),
        staleness=_staleness(timeline),
        queue_depth_samples=_value(timeline, "queue.depth"),
        trained_tokens_per_s=_value(timeline, "throughput.trained_tokens_per_s"),
        silent_workers=_silent(workers, now_ns),
    )


def _value(timeline: Timeline, metric: str) -> float | None:
    if not timeline.buckets:
        return None
    return BY_NAME[metric].series(timeline).reading(0, timeline.buckets).value


def _sides(timeline: Timeline, workers: LiveWorkers) -> tuple[SideState, ...]:
    states = timeline.rows("states")
    sides: list[SideState] = []
    for role in dict.fromkeys(str(document["role"]) for document in workers.documents):
        own = [document for document in workers.documents if document["role"] == role]
        gpus = sum(count for document in own if isinstance(count := document["gpu_count"], int))
        sides.append(SideState(role, len(own), gpus, _ratios(states, role)))
    return tuple(sorted(sides, key=lambda side: side.role))


def _ratios(rows: pl.DataFrame, role: str) -> dict[str, float]:
    if rows.is_empty():
        return {}
    states = rows.filter(role=role).group_by("state").agg(pl.col("gpu_ns").sum()).sort(-pl.col("gpu_ns"), "state")
    total_ns = int(states["gpu_ns"].sum())
    return {state: gpu_ns / total_ns for state, gpu_ns in states.iter_rows()} if total_ns else {}


def _staleness(timeline: Timeline) -> TokenStaleness | None:
    levels, weights = timeline.by_level(timeline.rows("tokens"), "staleness", "tokens")
    counts = weights.sum(axis=0).tolist()
    histogram = tuple((level, count) for level, count in zip(levels, counts, strict=True) if count)
    if not histogram:
        return None
    tokens = sum(count for _, count in histogram)
    return TokenStaleness(
        mean=sum(level * count for level, count in histogram) / tokens,
        p50=weighted_quantile(histogram, 50),
        p95=weighted_quantile(histogram, 95),
        p99=weighted_quantile(histogram, 99),
        max=histogram[-1][0],
        histogram=histogram,
    )


def _silent(workers: LiveWorkers, now_ns: int) -> tuple[SilentWorker, ...]:
    left = (life for life in workers.lives if life.worker_id not in workers.over)
    silent = [life for life in left if now_ns - life.last_ns >= SILENT_NS]
    return tuple(SilentWorker(life.worker_id, (now_ns - life.last_ns) / 1e9) for life in silent)
