"""Corrects the clocks of a run's hosts: SQL gathers causal pairs, the clocks are estimated, and all times are shifted.

The corrected tables are views with the contract's table names over the recorded tables, so no code downstream deals
with several clocks. A run on one host, or on hosts whose clocks keep every effect after its cause, is not changed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
from duckdb import DuckDBPyConnection
from rlscope_otel.schema import TABLES

from rlscope.model.arrays import Flags
from rlscope.trace.clock_offsets import Clocks, HostClock, Pairs, estimate_clocks
from rlscope.trace.execution import interruptible
from rlscope.trace.questions import find_question
from rlscope.trace.sql import literals, set_aside
from rlscope.trace.worker_files import Worker

PAIRS: Final = "clock_pairs"
RECORDED: Final = "recorded_"
"""Prefix of the recorded version of a corrected table."""
CELLS: Final = 64
"""Parts of a run; `clock_pairs` returns the tightest pair in each."""
_QUEUE_KINDS: Final = ("finished_queued", "queued_taken")
_WORKER_TIMES: Final = ("started_ns", "stopped_ns", "last_flush_ns")
_TIMES: Final = ("submitted_ns", "started_ns", "finished_ns", "taken_ns", "start_ns", "end_ns", "time_ns")
"""Columns with times by the worker's clock. Other columns in ns hold durations or times by the queue's clock."""
_MOST_WRONG: Final = 20
"""At most one pair in this many may come from a bad row."""
_SHIFTS: Final = "clock_shifts"
_ENGINES: Final = "of each engine"
_TAKERS: Final = "of each taker"


ONE_CLOCK: Final = Clocks()


class FoundClocks(NamedTuple):
    """The clocks, and the host whose clock timed the queue."""

    clocks: Clocks
    queue_host: str


RECORDED_TIMES: Final = FoundClocks(ONE_CLOCK, _TAKERS)
"""The result if there is no other clock to compare with."""


def estimate_run_clocks(connection: DuckDBPyConnection, workers: Sequence[Worker]) -> FoundClocks:
    """Estimate the clocks of the hosts of a run's workers from its recorded tables.

    Raises duckdb.Error if a file cannot be read.
    """
    names = sorted({worker.host for worker in workers if worker.host is not None})
    if len(names) < 2:
        return RECORDED_TIMES
    sql = find_question(PAIRS).sql
    rows = interruptible(connection, lambda: connection.sql(sql, params={"cells": CELLS}).pl())
    places = {name: index for index, name in enumerate(names)}
    reference = places[_reference(workers, names)]
    is_of_queue = pl.col("kind").is_in(_QUEUE_KINDS)
    direct, queue = _pairs(rows.filter(~is_of_queue), places), rows.filter(is_of_queue)
    clocks = estimate_clocks(direct, names, reference)
    between = {worker.host for worker in workers if worker.role != "sampler"}
    queue_host, proof = _queue_host(queue, [name for name in names if name in between], places, clocks)
    if len(proof.cause):
        both = Pairs(*(np.concatenate(columns) for columns in zip(direct, proof, strict=True)))
        clocks = estimate_clocks(both, names, reference)
    return FoundClocks(
        replace(clocks, hosts=tuple(each for each in clocks.hosts if each.host != each.against)), queue_host
    )


def _reference(workers: Sequence[Worker], names: Sequence[str]) -> str:
    """Return the host with the most trainer GPUs; if there is no trainer, the host with the most GPUs."""
    gpus = {name: [0, 0] for name in names}
    for worker in workers:
        if worker.host is not None:
            gpus[worker.host][0] += worker.gpu_count if worker.role in ("trainer", "colocated") else 0
            gpus[worker.host][1] += worker.gpu_count
    return max(reversed(names), key=lambda name: gpus[name])


def _pairs(rows: pl.DataFrame, places: Mapping[str, int]) -> Pairs:
    return Pairs(
        *(np.array([places[name] for name in rows[column]], np.int64) for column in ("cause_host", "effect_host")),
        *(rows[column].to_numpy().astype(np.int64) for column in ("cause_ns", "effect_ns")),
    )


def _queue_host(
    queue: pl.DataFrame, between: Sequence[str], places: Mapping[str, int], clocks: Clocks
) -> tuple[str, Pairs]:
    """Return the clock that timed entry to the queue, and the pairs that prove it; no pairs if another clock fits too.

    Frameworks differ: the engine, the taker or a process between them records the time. A clock fits if samples enter
    the queue after they finish and before they are taken. If several fit, the one with the earliest entry is chosen.
    between: hosts that the queue can be on, besides those of engines and takers.
    """
    given = _pairs(queue, places)
    if queue.is_empty():
        return _TAKERS, given
    is_finish = (queue["kind"] == "finished_queued").to_numpy()
    alone = [set(queue[column]) for column in ("cause_host", "effect_host")]
    owners = {_ENGINES: given.cause, _TAKERS: given.effect}
    owners |= {name: np.full(len(queue), places[name]) for name in between if {name} not in alone}
    timed = {
        name: given._replace(cause=np.where(is_finish, given.cause, own), effect=np.where(is_finish, own, given.effect))
        for name, own in owners.items()
    }
    fits = {name: _fitting(each, is_finish, clocks) for name, each in timed.items()}
    wrong = {name: len(queue) - int(found.sum()) for name, (found, _) in fits.items()}
    best, *rest = sorted(fits, key=lambda name: (wrong[name], fits[name][1]))
    is_sure = wrong[best] <= len(queue) // _MOST_WRONG and all(wrong[name] > 2 * wrong[best] for name in rest)
    return best, timed[best].only(fits[best][0] & is_sure & (timed[best].cause != timed[best].effect))


def _fitting(timed: Pairs, is_finish: Flags, clocks: Clocks) -> tuple[Flags, int]:
    """Return which pairs are in causal order by the corrected clocks, and the shortest delay before entry, in ns."""
    cause_ns, effect_ns = timed.cause_ns.copy(), timed.effect_ns.copy()
    spread_ns = np.array([each.uncertainty_ns or 0 for each in clocks.hosts])
    for host, clock in enumerate(clocks.hosts):
        for owners, times_ns in ((timed.cause, cause_ns), (timed.effect, effect_ns)):
            times_ns[owners == host] -= clock.ahead_ns(times_ns[owners == host])
    gap_ns = effect_ns - cause_ns
    fits = gap_ns >= -np.where(timed.cause == timed.effect, 0, spread_ns[timed.cause] + spread_ns[timed.effect])
    if is_finish.any() and not is_finish.all():
        # An entry before any finish, such as 0, fits before its taking but would stretch the run that pairs are of.
        first_ns, last_ns = cause_ns[is_finish].min(), effect_ns[~is_finish].max()
        widest_ns = 2 * spread_ns.max()
        entered_ns = np.where(is_finish, effect_ns, cause_ns)
        fits &= (entered_ns >= first_ns - widest_ns) & (entered_ns <= last_ns + widest_ns)
    entries_ns = gap_ns[is_finish & fits]
    return fits, int(entries_ns.min()) if len(entries_ns) else 0


def correct_tables(connection: DuckDBPyConnection, workers: Sequence[Worker], found: FoundClocks) -> None:
    """Replace the tables by corrected ones. Raises duckdb.Error."""
    clocks = {each.host: each for each in found.clocks.hosts if each.is_corrected}
    if not clocks:
        return
    connection.from_arrow(_shift_rows(workers, clocks)).create(_SHIFTS)
    for table in (*TABLES, "workers"):
        set_aside(connection, table, RECORDED)
    for table, columns in TABLES.items():
        times = [column.name for column in columns if column.name in _TIMES]
        if table != "deliveries":
            _create_view(connection, table, dict.fromkeys(times, "own"))
    _create_view(connection, "workers", dict.fromkeys(_WORKER_TIMES, "own"))
    _correct_deliveries(connection, workers, found.queue_host)


def _correct_deliveries(connection: DuckDBPyConnection, workers: Sequence[Worker], queue_host: str) -> None:
    """Correct the deliveries, each time by the clock that recorded it; a table if each engine timed the queue."""
    if queue_host == _TAKERS:
        _create_view(connection, "deliveries", {"taken_ns": "own", "queued_ns": "own"})
        return
    owners = {"taken_ns": "own", "queued_ns": "queue"}
    if queue_host != _ENGINES:
        one = next(worker.worker_id for worker in workers if worker.host == queue_host)
        joined = f"LEFT JOIN {_SHIFTS} AS queue ON queue.worker_id = {literals([one])}"
        _create_view(connection, "deliveries", owners, joined)
        return
    engines = f"SELECT sample_id, arg_max(worker_id, segment) AS engine_id FROM {RECORDED}samples GROUP BY sample_id"
    joined = f"LEFT JOIN ({engines}) AS engines ON recorded.sample_id = engines.sample_id "
    joined += f"LEFT JOIN {_SHIFTS} AS queue ON engines.engine_id = queue.worker_id"
    connection.execute(f"CREATE TABLE deliveries AS {_corrected_sql('deliveries', owners, joined)}")


def _create_view(connection: DuckDBPyConnection, table: str, owners: Mapping[str, str], joined: str = "") -> None:
    connection.execute(f"CREATE VIEW {table} AS {_corrected_sql(table, owners, joined)}")


def _corrected_sql(table: str, owners: Mapping[str, str], joined: str) -> str:
    """Return a SELECT of a table with corrected times. owners: by column, the alias of the shifts of its clock."""
    changed = [f'{_shifted(name, owner)} AS "{name}"' for name, owner in owners.items()]
    if table == "engine_steps":
        # Correcting a fast clock shortens the row, and the busy time must not exceed the row.
        lasting = f"{_shifted('end_ns', 'own')} - ({_shifted('start_ns', 'own')})"
        fits = "recorded.busy_ns <= recorded.end_ns - recorded.start_ns"
        changed.append(f"if({fits}, least(recorded.busy_ns, {lasting}), recorded.busy_ns) AS busy_ns")
    return (
        f"SELECT recorded.* REPLACE ({', '.join(changed)}) FROM {RECORDED}{table} AS recorded "
        f"LEFT JOIN {_SHIFTS} AS own ON recorded.worker_id = own.worker_id {joined}"
    )


def _shifted(name: str, owner: str) -> str:
    """Return SQL that subtracts the clock's offset; there is none for a worker whose clock is not corrected."""
    time = f'recorded."{name}"'
    return (
        f"{time} - coalesce({owner}.offset_ns + round({owner}.drift_ratio * ({time} - {owner}.origin_ns))::BIGINT, 0)"
    )


def _shift_rows(workers: Sequence[Worker], clocks: Mapping[str, HostClock]) -> pa.Table:
    """Return a row per worker on a corrected host, with its clock."""
    own = [(worker.worker_id, clocks[worker.host]) for worker in workers if worker.host and worker.host in clocks]
    return pa.table(
        {
            "worker_id": pa.array([worker_id for worker_id, _ in own], pa.string()),
            "offset_ns": pa.array([clock.offset_ns for _, clock in own], pa.int64()),
            "drift_ratio": pa.array([clock.drift_ratio for _, clock in own], pa.float64()),
            "origin_ns": pa.array([clock.origin_ns for _, clock in own], pa.int64()),
        }
    )
