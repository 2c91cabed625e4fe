"""A run split into buckets between ticks, from which the windows of all rules are added up. Evaluates no rule.

The buckets come from the report's queries, so a window over the whole run has the report's value. A window costs only
its own buckets, and late rows replace only the buckets they belong to.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import polars as pl

from rlscope.analysis.ledger import TRAINER_ROLES
from rlscope.trace.query import IDLE_AFTER_NS, NO_CELLS, Argument, Cells, ask
from rlscope.trace.store import OpenRun

Family = Literal["states", "idle", "engines", "queues", "tokens", "outcomes", "steps", "updates"]
_ROWS: Final[Mapping[Family, tuple[str, str]]] = {
    "states": ("role_states", "bucket_start_ns"),
    "idle": ("idle_buckets", "bucket_start_ns"),
    "engines": ("engine_buckets", "bucket_start_ns"),
    "queues": ("queue_buckets", "bucket_start_ns"),
    "tokens": ("token_staleness", "end_ns"),
    "outcomes": ("outcome_buckets", "bucket_start_ns"),
    "steps": ("training_steps", "end_ns"),
    "updates": ("weight_update_latency", "applied_ns"),
}
"""The query of each family, and the time in its rows that tells their bucket: for tokens, the end of their step."""


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


def gather(
    run: OpenRun, ticks: Ticks, families: Collection[Family | None], end_ns: int, beside: Cells = NO_CELLS
) -> dict[Family, pl.DataFrame]:
    """Return the buckets of an open run up to end_ns. `beside` has the cells of another grid, as in `make_grid`."""
    has_states = not {"states", "idle"}.isdisjoint(families)
    arguments: dict[str, Argument] = {
        "origin_ns": ticks.origin_ns,
        "bucket_ns": ticks.interval_ns,
        "end_ns": end_ns,
        "cell_ns": ticks.interval_ns,
        "cells_per_bucket": 1,
        "rows_disjoint": has_states and bool(ask(run, "engine_row_order")["rows_disjoint"][0]),
        "idle_after_ns": IDLE_AFTER_NS,
        "beside_origin_ns": beside.origin_ns,
        "beside_cell_ns": beside.cell_ns,
    }
    return {family: _bucketed(run, family, arguments, ticks) for family in _ROWS if family in families}


def worker_lives(run: OpenRun) -> tuple[WorkerLife, ...]:
    """When each worker started and when its last data arrived, from worker_extents."""
    return tuple(
        WorkerLife(row["worker_id"], row["role"], row["start_ns"], row["end_ns"], row["is_over"], row["gpu_count"])
        for row in ask(run, "worker_extents").iter_rows(named=True)
    )


def step_ends(run: OpenRun) -> tuple[int, ...]:
    """The ends of the optimizer steps, ascending, UTC epoch."""
    return tuple(ask(run, "training_steps")["end_ns"].sort())


def kv_capacities(run: OpenRun) -> dict[str, int]:
    """KV-cache capacity of each engine in tokens, from worker_devices."""
    devices = ask(run, "worker_devices").filter(pl.col("kv_capacity_tokens") > 0)
    return dict(devices.select("worker_id", "kv_capacity_tokens").iter_rows())


def _bucketed(run: OpenRun, family: Family, arguments: Mapping[str, Argument], ticks: Ticks) -> pl.DataFrame:
    """The rows with the bucket that they count in; rows before the first bucket are left out."""
    query, column = _ROWS[family]
    rows = ask(run, query, arguments)
    if family == "tokens":
        rows = rows.join(ask(run, "training_steps").select("step", "end_ns"), on="step")
    bucket = ((pl.col(column) - ticks.origin_ns) // ticks.interval_ns).alias("bucket")
    return rows.with_columns(bucket).filter(pl.col("bucket") >= 0)
