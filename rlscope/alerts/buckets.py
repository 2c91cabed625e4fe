"""A run split into buckets between ticks, from which the windows of all rules are added up. Evaluates no rule.

The buckets come from the report's queries, so a window over the whole run has the report's value. A window costs only
its own buckets, and late rows replace only the buckets they belong to.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

import polars as pl

from rlscope.analysis.ledger import TRAINER_ROLES
from rlscope.trace.query import IDLE_AFTER_NS, NO_CELLS, Argument, Cells, ask
from rlscope.trace.store import OpenRun

Family = Literal["states", "idle", "engines", "queues", "tokens", "outcomes", "steps", "updates"]
FAMILIES: Final[tuple[Family, ...]] = get_args(Family)
_OF_BUCKETS: Final[Mapping[Family, str]] = {
    "states": "role_states",
    "idle": "idle_buckets",
    "engines": "engine_buckets",
    "queues": "queue_buckets",
    "outcomes": "outcome_buckets",
}
"""Queries that take the ticks as their buckets."""


@dataclass(frozen=True, slots=True)
class Ticks:
    """The times at which rules are evaluated: origin_ns plus n times interval_ns, for n = 1, 2, ..."""

    origin_ns: int
    interval_ns: int

    def at_ns(self, tick: int) -> int:
        """The time of a tick, UTC epoch. Bucket `tick - 1` ends there."""
        return self.origin_ns + tick * self.interval_ns

    def bucket_of(self, instant_ns: int) -> int:
        """The bucket that contains a time; a time on an edge belongs to the bucket that starts there."""
        return (instant_ns - self.origin_ns) // self.interval_ns

    def tick_from(self, instant_ns: int) -> int:
        """The first tick at or after a time."""
        return -((self.origin_ns - instant_ns) // self.interval_ns)


@dataclass(frozen=True, slots=True)
class WorkerLife:
    """When a worker started, and when its last data arrived."""

    worker_id: str
    role: str
    start_ns: int
    last_ns: int
    """Its end, or its last flush or row."""
    is_over: bool
    """Whether no more data is due from it: it recorded its stop, or was started again."""
    gpu_count: int


def trained_until_ns(workers: Collection[WorkerLife]) -> int | None:
    """Return the time when the last trainer stopped, UTC epoch. None if a trainer still runs, or without trainers."""
    trainers = [worker for worker in workers if worker.role in TRAINER_ROLES]
    if not trainers or not all(worker.is_over for worker in trainers):
        return None
    return max(worker.last_ns for worker in trainers)


@dataclass(frozen=True, slots=True)
class Parts:
    """The buckets of a run, and the facts about it that have no bucket."""

    ticks: Ticks
    frames: Mapping[Family, pl.DataFrame]
    """By family, each with a column `bucket`; families that no rule needs are missing."""
    workers: tuple[WorkerLife, ...]
    kv_capacity_tokens: Mapping[str, int]
    """By engine; missing if not recorded."""
    dropped_rows: int
    stored_rows: int
    max_staleness: int | None
    missing_rows: int | None = None
    """Rows that the workers wrote and that are missing. None while this is unknown."""
    end_ns: int | None = None
    """End of the run; None while it is in progress."""


def gather(
    run: OpenRun, ticks: Ticks, families: Collection[Family], end_ns: int, beside: Cells = NO_CELLS
) -> dict[Family, pl.DataFrame]:
    """Return the buckets of an open run up to end_ns. `beside` has the cells of another grid, as in `make_grid`."""
    arguments: dict[str, Argument] = {
        "origin_ns": ticks.origin_ns,
        "bucket_ns": ticks.interval_ns,
        "end_ns": end_ns,
        "cell_ns": ticks.interval_ns,
        "cells_per_bucket": 1,
        "rows_disjoint": _rows_disjoint(run, families),
        "idle_after_ns": IDLE_AFTER_NS,
        "beside_origin_ns": beside.origin_ns,
        "beside_cell_ns": beside.cell_ns,
    }
    steps = ask(run, "training_steps") if {"tokens", "steps"} & set(families) else pl.DataFrame()
    return {family: _part(run, family, steps, arguments, ticks) for family in FAMILIES if family in families}


def worker_lives(run: OpenRun) -> tuple[WorkerLife, ...]:
    """When each worker started and when its last data arrived, from worker_extents."""
    return tuple(
        WorkerLife(row["worker_id"], row["role"], row["start_ns"], row["end_ns"], row["is_over"], row["gpu_count"])
        for row in ask(run, "worker_extents").iter_rows(named=True)
    )


def kv_capacities(run: OpenRun) -> dict[str, int]:
    """KV-cache capacity of each engine in tokens, from worker_devices."""
    devices = ask(run, "worker_devices").filter(pl.col("kv_capacity_tokens") > 0)
    return dict(devices.select("worker_id", "kv_capacity_tokens").iter_rows())


def _rows_disjoint(run: OpenRun, families: Collection[Family]) -> bool:
    return bool({"states", "idle"} & set(families)) and bool(ask(run, "engine_row_order")["rows_disjoint"][0])


def _part(
    run: OpenRun, family: Family, steps: pl.DataFrame, arguments: Mapping[str, Argument], ticks: Ticks
) -> pl.DataFrame:
    if family in _OF_BUCKETS:
        return _bucketed(ask(run, _OF_BUCKETS[family], arguments), "bucket_start_ns", ticks)
    if family == "tokens":
        ends = steps.select("step", "end_ns")
        return _bucketed(ask(run, "token_staleness").join(ends, on="step"), "end_ns", ticks)
    if family == "steps":
        return _bucketed(steps, "end_ns", ticks)
    return _bucketed(ask(run, "weight_update_latency"), "applied_ns", ticks)


def _bucketed(rows: pl.DataFrame, column: str, ticks: Ticks) -> pl.DataFrame:
    """The rows with the bucket that they count in; rows before the first bucket are left out."""
    bucket = ((pl.col(column) - ticks.origin_ns) // ticks.interval_ns).alias("bucket")
    return rows.with_columns(bucket).filter(pl.col("bucket") >= 0)
