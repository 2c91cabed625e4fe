"""Writes a run of any size with the recorder's own Parquet writer: made up, seeded, and consistent in itself.

Eight engines of 125 slots decode one token per running request and pass. Time is cut into periods of 250 passes; a
policy version is published and applied at the start of each, two engines applying it without a pause. A step trains
on what finished two periods before. So samples are 1,000 tokens long on average and hold about 5 versions, whatever
the size: 1,000,000 samples make 10^9 tokens, 5,000,000 version runs and 10,000,000 engine rows. A run is as long as its
samples need, or has several times the engines, each of which repeats one of the eight: those rows cost less to make.

    python benchmarks/generated_run.py FOLDER --samples 1000000
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from duckdb import DuckDBPyConnection
from generated_tables import (
    DELIVERIES,
    ENGINE_ACTIVITIES,
    ENGINE_STEPS,
    ENGINE_UPDATES,
    GPU_SAMPLES,
    MACROS,
    QUEUE_DEPTHS,
    RESPONSES,
    ROWS,
    SAMPLES,
    TAKEN,
    TRAIN_STEPS,
    TRAINER_ACTIVITIES,
    TRAINER_UPDATES,
)
from rlscope_otel import schema

from tests.closed_files import write_table

ENGINES: Final = 8
TRAINERS: Final = 2
SLOTS: Final = 125
ROWS_PER_FILE: Final = 50_000
SAMPLES_STEP: Final = ENGINES * SLOTS
"""A run holds a multiple of this many samples, so that every slot generates as many."""
PERIOD_NS: Final = 5_060_000_000
ORIGIN_NS: Final = 1_760_000_000_000_000_000


class Shape(NamedTuple):
    """How much of everything."""

    samples: int
    seed: int
    gpu_samples: bool
    lag: int = 2
    """Periods between the end of a sample and the step that trains on it."""
    copies: int = 1
    """How many engines have the rows of each of the eight; `samples` are those of the eight."""

    @property
    def samples_per_slot(self) -> int:
        return max(1, self.samples // SAMPLES_STEP)

    @property
    def periods(self) -> int:
        return self.samples_per_slot * 5


def generate(folder: Path, shape: Shape) -> dict[str, int]:
    """Write the run; returns its rows by table."""
    folder.mkdir(parents=True, exist_ok=True)
    connection = duckdb.connect(config={"memory_limit": "3GB", "temp_directory": f"{folder}.spill"})
    connection.execute(_filled(MACROS, {"seed": shape.seed, "origin_ns": ORIGIN_NS, "period_ns": PERIOD_NS}))
    connection.execute(
        "CREATE TABLE taken (sample_id VARCHAR, trainer BIGINT, to_row BIGINT, queued_ns BIGINT, step BIGINT, "
        "outcome VARCHAR, reward DOUBLE)"
    )
    totals = dict.fromkeys(schema.TABLES, 0)
    for engine in range(ENGINES):
        rows = _write_engine(connection, folder, shape, engine)
        totals = {table: count + rows.get(table, 0) for table, count in totals.items()}
    for trainer in range(TRAINERS):
        rows = _write_trainer(connection, folder, shape, trainer)
        totals = {table: count + rows.get(table, 0) for table, count in totals.items()}
    manifest = {"format": schema.FORMAT_NAME, "version": schema.FORMAT_VERSION, "run_id": "generated"}
    config = {"group_size": 8, "max_staleness": 12, "staleness_policy": "drop", "samples_per_step": 200 * shape.copies}
    _write_json(folder / "run.json", {**manifest, "created_ns": ORIGIN_NS - 10**10, "config": config})
    return totals


def _write_engine(connection: DuckDBPyConnection, folder: Path, shape: Shape, engine: int) -> dict[str, int]:
    values = _values(shape) | {"engine": engine, "worker_id": _engine_id(engine, 0)}
    for statement in (ROWS, RESPONSES, DELIVERIES):
        connection.execute(_filled(statement, values))
    tables = {
        "engine_steps": ENGINE_STEPS,
        "samples": SAMPLES,
        "weight_updates": ENGINE_UPDATES,
        "activities": ENGINE_ACTIVITIES,
    }
    rows = _write_tables(connection, folder, tables, shape, values)
    for copy in range(shape.copies):
        _write_worker(folder, _engine_id(engine, copy), "sampler", f"host-{engine // 4}", shape, rows)
    return {table: count * shape.copies for table, count in rows.items()}


def _engine_id(engine: int, copy: int) -> str:
    return f"sampler-{engine + copy * ENGINES}"


def _write_trainer(connection: DuckDBPyConnection, folder: Path, shape: Shape, trainer: int) -> dict[str, int]:
    worker_id = f"trainer-{trainer}"
    values = _values(shape) | {"trainer": trainer, "worker_id": worker_id}
    tables = {
        "deliveries": TAKEN,
        "train_steps": TRAIN_STEPS,
        "weight_updates": TRAINER_UPDATES,
        "activities": TRAINER_ACTIVITIES,
        "queue_depths": QUEUE_DEPTHS,
    }
    rows = _write_tables(connection, folder, tables, shape, values)
    rows["deliveries"] *= shape.copies
    _write_worker(folder, worker_id, "trainer", "host-2", shape, rows)
    return rows


def _write_tables(
    connection: DuckDBPyConnection,
    folder: Path,
    tables: Mapping[str, str],
    shape: Shape,
    values: Mapping[str, int | str],
) -> dict[str, int]:
    """Write the tables of a worker and of its copies; returns the rows of one of them."""
    wanted = {**tables, "gpu_samples": GPU_SAMPLES} if shape.gpu_samples else tables
    return {name: _write(connection, folder, name, shape, values, _filled(sql, values)) for name, sql in wanted.items()}


def _write(
    connection: DuckDBPyConnection, folder: Path, name: str, shape: Shape, values: Mapping[str, int | str], sql: str
) -> int:
    rows = 0
    for sequence, batches in enumerate(_batches(connection.sql(sql)), start=1):
        table = _as_recorded(pa.Table.from_batches(batches), name)
        rows += table.num_rows
        if "engine" in values:
            for copy in range(shape.copies):
                worker_id = _engine_id(int(values["engine"]), copy)
                write_table(_copied(table, copy, worker_id), folder / name / f"{worker_id}-{sequence:06d}.parquet")
        else:
            # A trainer takes what all copies of an engine have finished.
            copies = range(shape.copies if name == "deliveries" else 1)
            for place, copy in enumerate(copies, start=(sequence - 1) * len(copies) + 1):
                path = folder / name / f"{values['worker_id']}-{place:06d}.parquet"
                write_table(_copied(table, copy, str(values["worker_id"])), path)
    return rows


def _copied(table: pa.Table, copy: int, worker_id: str) -> pa.Table:
    """The rows of a copy of an engine, or of what it made, under names of their own."""
    if not copy:
        return table
    for name in ("sample_id", "group_id"):
        if name in table.column_names:
            own = pc.binary_join_element_wise(f"{copy}", table[name], "-")
            table = table.set_column(table.column_names.index(name), table.schema.field(name), own)
    if "worker_id" in table.column_names:
        own = pa.array([worker_id] * table.num_rows, pa.string())
        table = table.set_column(table.column_names.index("worker_id"), table.schema.field("worker_id"), own)
    return table


def _batches(rows: duckdb.DuckDBPyRelation) -> Iterator[list[pa.RecordBatch]]:
    """The rows of one file after another."""
    held: list[pa.RecordBatch] = []
    left = ROWS_PER_FILE
    for batch in rows.to_arrow_reader(ROWS_PER_FILE):
        while batch.num_rows >= left:
            yield [*held, batch.slice(0, left)]
            held, batch, left = [], batch.slice(left), ROWS_PER_FILE
        if batch.num_rows:
            held.append(batch)
            left -= batch.num_rows
    if held:
        yield held


def _as_recorded(table: pa.Table, name: str) -> pa.Table:
    """The table with the format's own types."""
    recorded = schema.arrow_schema(name)
    assert table.column_names == recorded.names, f"{name}: {table.column_names}"
    columns = [_as_type(table.column(field.name).combine_chunks(), field.type) for field in recorded]
    return pa.Table.from_arrays(columns, schema=recorded)


def _as_type(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    if not pa.types.is_list(wanted):
        return array.cast(wanted)
    inner = array.flatten()
    fields = [inner.field(field.name).cast(field.type) for field in wanted.value_type]
    elements = pa.StructArray.from_arrays(fields, fields=list(wanted.value_type))
    return pa.ListArray.from_arrays(array.offsets, elements, type=wanted)


def _write_worker(folder: Path, worker_id: str, role: str, host: str, shape: Shape, rows: Mapping[str, int]) -> None:
    end_ns = ORIGIN_NS + shape.periods * PERIOD_NS
    document = {
        "worker_id": worker_id,
        "role": role,
        "host": host,
        "pid": 1,
        "gpu_count": 1 if role == "sampler" else 4,
        "device_name": "generated",
        "kv_capacity_tokens": 400_000,
        "max_running": SLOTS,
        "started_ns": ORIGIN_NS - 10**10,
        "stopped_ns": end_ns,
        "last_flush_ns": end_ns,
        "rows": dict(rows),
        "dropped": {},
    }
    _write_json(folder / "workers" / f"{worker_id}.json", document)


def _write_json(path: Path, document: Mapping[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2), encoding="utf-8")


def _values(shape: Shape) -> dict[str, int | str]:
    return {
        "seed": shape.seed,
        "origin_ns": ORIGIN_NS,
        "period_ns": PERIOD_NS,
        "periods": shape.periods,
        "samples_per_slot": shape.samples_per_slot,
        "slots": SLOTS,
        "trainers": TRAINERS,
        "copies": shape.copies,
        "lag": shape.lag,
    }


def _filled(sql: str, values: Mapping[str, int | str]) -> str:
    """The statement with its values written in: macros and CREATE TABLE take no parameters."""
    for name in sorted(values, key=len, reverse=True):
        value = values[name]
        sql = sql.replace(f"${name}", f"'{value}'" if isinstance(value, str) else str(value))
    return sql


def _shape(given: argparse.Namespace) -> Shape:
    return Shape(given.samples, given.seed, given.gpu_samples, copies=given.copies)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=1_000_000, help=f"rounded down to a multiple of {SAMPLES_STEP}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--copies", type=int, default=1, help="engines with the rows of each of the eight")
    parser.add_argument("--gpu-samples", action="store_true", help="also a GPU reading per worker and second")
    given = parser.parse_args()
    for table, rows in generate(given.folder, _shape(given)).items():
        print(f"{table:14} {rows:12,} rows")


if __name__ == "__main__":
    main()
