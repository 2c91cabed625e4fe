"""Reads the TOML case files of queries and rules, and makes run folders of the rows in them.

A table is text: a line of column names, then a line per row, columns two or more spaces apart. `-` is NULL, `7s` and
`7ms` are nanoseconds, `0x3,1x2` is the version runs of three tokens of version 0 and then two of version 1, and
`2:4:3.5:5.0` a moment of the importance ratio. A line with `{1..3}` stands for three lines, with 1, 2 and 3 in its
place. Columns that are left out get the default of `trace_folder`. A file
without workers has a worker for every id in its rows: those that begin with e are samplers, the others trainers.
"""

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
from duckdb import DuckDBPyConnection
from rlscope_otel.schema import TABLES, arrow_schema

from rlscope.trace.config import read_config
from rlscope.trace.locked import LockedConnection
from rlscope.trace.questions import OPENED, find_question, macros_sql
from rlscope.trace.store import OpenRun
from rlscope.trace.worker_files import WORKERS, Worker, dropped_rows, with_replaced, workers_table
from tests.trace_folder import (
    Row,
    activity,
    delivery_row,
    engine_row,
    gpu_row,
    queue_row,
    sample_row,
    table_of,
    train_row,
    update_row,
    worker,
)

_UNITS_NS: Final = {"s": 10**9, "ms": 10**6}


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One case: the rows given, what is asked with, and what is expected of the answer. It is equal to itself alone."""

    file: str
    name: str
    tables: Mapping[str, list[Row]]
    workers: list[Row]
    config: Mapping[str, Any]
    args: Mapping[str, Any]
    expect: Any

    @contextmanager
    def open(self) -> Iterator[OpenRun]:
        """This case as an open run. It is made in memory, in a transaction that is rolled back: files cost far more."""
        connection = _shared_connection()
        connection.begin()
        try:
            for table, rows in self.tables.items():
                connection.from_arrow(table_of(table, rows)).create_view(table, replace=True)
            workers = with_replaced([Worker.of(_with_starts(each)) for each in self.workers])
            connection.from_arrow(workers_table(workers)).create_view("workers", replace=True)
            for name in OPENED:
                connection.execute(f"DROP TABLE {name}")
                connection.execute(f"CREATE TABLE {name} AS\n{find_question(name).sql}")
            yield OpenRun(
                folder=Path("case"),
                run_id="run",
                created_ns=0,
                config=read_config(self.config)[0],
                connection=connection,
                locked=LockedConnection(connection, {}),
                row_counts={table: len(self.tables.get(table, ())) for table in TABLES},
                dropped_rows=dropped_rows(workers),
                skipped_files=(),
                gaps=(),
            )
        finally:
            connection.rollback()


def _with_starts(document: Row) -> Row:
    """The document of a worker whose open phases have an age instead of a start."""
    phases = [{**each, "since_ns": document["last_flush_ns"] - each["age_ns"]} for each in document.get("open") or ()]
    return {**document, "open": phases}


def open_empty() -> DuckDBPyConnection:
    """A connection with the tables of a run, all empty, and the macros."""
    connection = duckdb.connect()
    for table in TABLES:
        connection.from_arrow(pa.Table.from_batches([], arrow_schema(table))).create_view(table)
    connection.from_arrow(pa.Table.from_batches([], WORKERS)).create_view("workers")
    for name in OPENED:
        connection.execute(f"CREATE TABLE {name} AS\n{find_question(name).sql}")
    connection.execute(macros_sql())
    return connection


@cache
def _shared_connection() -> DuckDBPyConnection:
    connection = open_empty()
    connection.execute("SET threads = 1")
    return connection


def cases_of(folder: Path) -> list[Case]:
    """Every case below a folder, in the order of the files."""
    return [
        _case(path.stem, raw)
        for path in sorted(folder.glob("*.toml"))
        for raw in tomllib.loads(path.read_text(encoding="utf-8"))["case"]
    ]


def text_rows(text: str) -> list[dict[str, str]]:
    """The cells of a text table, by column."""
    header, *lines = [re.split(r"\s{2,}", line.strip()) for each in text.strip().splitlines() for line in _lines(each)]
    for line in lines:
        assert len(line) == len(header), f"{line} does not have the columns {header}"
    return [dict(zip(header, line, strict=True)) for line in lines]


def _lines(line: str) -> list[str]:
    """The lines that one with a range stands for."""
    found = re.search(r"\{(\d+)\.\.(\d+)\}", line)
    if found is None:
        return [line]
    return [line.replace(found.group(), str(number)) for number in range(int(found[1]), int(found[2]) + 1)]


def cell(text: str, kind: str) -> Any:
    """The value of one cell of a DuckDB type."""
    if text == "-":
        return None
    if kind == "BOOLEAN":
        return {"true": True, "false": False}[text]
    if kind == "DOUBLE":
        return float(text)
    if kind.endswith("[]"):
        return [cell(each, kind.removesuffix("[]")) for each in text.split(",")]
    if kind in ("HUGEINT", "BIGINT", "INTEGER"):
        number, unit = re.fullmatch(r"(-?[\d_]+)(m?s)?", text).groups()  # type: ignore[union-attr]
        return int(number) * _UNITS_NS.get(unit, 1)
    return text


def _case(file: str, raw: dict[str, Any]) -> Case:
    known = {"name", "args", "config", "workers", "expect", *TABLES}
    assert set(raw) <= known, f"{file}: {set(raw) - known}"
    tables = {table: [_row(table, cells) for cells in text_rows(raw[table])] for table in TABLES if table in raw}
    workers = [_worker(cells) for cells in text_rows(raw["workers"])] if "workers" in raw else _implied(tables)
    return Case(file, raw["name"], tables, workers, raw.get("config", {}), raw.get("args", {}), raw.get("expect"))


def _implied(tables: Mapping[str, list[Row]]) -> list[Row]:
    ids = sorted({row["worker_id"] for rows in tables.values() for row in rows})
    return [worker(worker_id, "sampler" if worker_id.startswith("e") else "trainer") for worker_id in ids]


def _worker(cells: Mapping[str, str]) -> Row:
    names = {"worker_id", "name", "role", "host", "device_name"}
    values = {
        name: cell(text, "VARCHAR" if name in names else "BIGINT")
        for name, text in cells.items()
        if text[0] not in "{["
    }
    return worker(**values, **{name: json.loads(text) for name, text in cells.items() if text[0] in "{["})


def _row(table: str, cells: Mapping[str, str]) -> Row:
    schema = arrow_schema(table)
    values = {name: _stored(text, schema.field(name).type) for name, text in cells.items()}
    return _MAKERS[table](**values)


def _stored(text: str, kind: pa.DataType) -> Any:
    if text == "-":
        return None
    if pa.types.is_list(kind):
        return _moments(text) if kind.value_type.get_field_index("sum_w") >= 0 else _runs(text)
    named = {pa.int32(): "INTEGER", pa.int64(): "BIGINT", pa.float64(): "DOUBLE", pa.bool_(): "BOOLEAN"}
    return cell(text, named.get(kind, "VARCHAR"))


def _runs(text: str) -> list[tuple[int, int, int]]:
    runs: list[tuple[int, int, int]] = []
    start = 0
    for part in [] if text == "none" else text.split(","):
        version, tokens = map(int, part.split("x"))
        runs.append((version, start, start + tokens))
        start += tokens
    return runs


def _moments(text: str) -> list[dict[str, Any]]:
    kinds = {"staleness": int, "tokens": int, "sum_w": float, "sum_w2": float}
    return [
        {name: kind(value) for (name, kind), value in zip(kinds.items(), part.split(":"), strict=True)}
        for part in text.split(",")
    ]


_MAKERS: Final[Mapping[str, Callable[..., Row]]] = {
    "samples": partial(sample_row, sample_id="s", worker_id="e0", versions=()),
    "deliveries": partial(delivery_row, worker_id="t0"),
    "engine_steps": partial(engine_row, worker_id="e0"),
    "train_steps": partial(train_row, worker_id="t0", start_ns=0, end_ns=10),
    "weight_updates": partial(update_row, worker_id="e0"),
    "activities": partial(activity, worker_id="t0"),
    "queue_depths": partial(queue_row, worker_id="t0"),
    "reported": partial(dict, worker_id="t0"),
    "gpu_samples": partial(gpu_row, worker_id="t0"),
}
