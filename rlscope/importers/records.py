"""Files of records: JSON lines and lists, trainer_state.json, CSV, Parquet, and what MLflow and trackio store.

The step and the time come from the names that metric writers give them: `step`, `_step`, `time`, `_timestamp`.
"""

import csv
import heapq
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from rlscope.importers.importer import ImportSource, open_source
from rlscope.importers.lines import LogFile, is_of_service
from rlscope.importers.quantities import epoch_ns, number, real
from rlscope.importers.rows import (
    Carrier,
    MetricRow,
    Tally,
    begins_with,
    instant_ns,
    items,
    joined_by_step,
    mapping,
    parsed_json,
    row_of,
)

_LIST: Final = re.compile(rb'\s*(?:\[|\{\s*"[^"]{1,200}":\s*\{\s*"\d{1,9}":)')
"""Beginning of a list of rows, or of columns, each with the cells by the index of the row or by the step."""
_LARGEST_STATE_BYTES: Final = 256 << 20
"""Limit on the size of trainer_state.json; a log_history of a million rows is smaller."""

# Each reads the run that was written to last, if there are several.
_MLFLOW_ROWS: Final = """
SELECT key, value, timestamp, step FROM metrics
WHERE run_uuid = (SELECT run_uuid FROM metrics ORDER BY timestamp DESC LIMIT 1) ORDER BY step, timestamp
"""
_MLFLOW_PARAMS: Final = """
SELECT key, value FROM params WHERE run_uuid = (SELECT run_uuid FROM metrics ORDER BY timestamp DESC LIMIT 1)
"""
_TRACKIO_ROWS: Final = """
SELECT timestamp, step, metrics FROM metrics
WHERE run_name = (SELECT run_name FROM metrics ORDER BY timestamp DESC LIMIT 1) ORDER BY step, timestamp
"""


def _rows(path: Path, tally: Tally) -> Iterator[MetricRow]:
    return filter(None, map(row_of, LogFile(path, tally).records()))


def _fits(source: ImportSource) -> bool:
    first = source.head.lstrip().split(b"\n", 1)[0].rstrip()
    is_object = source.path.suffix in (".jsonl", ".json") and first.startswith(b"{") and len(first) > 2
    return is_object and not is_of_service(first)


def _state_rows(path: Path, tally: Tally) -> Iterator[MetricRow]:
    """Yield the rows of a list, of `log_history`, or of columns."""
    size = path.stat().st_size
    document = parsed_json(path.read_bytes()) if size <= _LARGEST_STATE_BYTES else None
    history = mapping(document).get("log_history", document)
    if isinstance(history, dict):
        history = _transposed(mapping(history))
    tally.bad_lines += not isinstance(history, list)
    for each in items(history):
        tally.lines += 1
        if row := row_of(mapping(each)):
            yield row
        else:
            tally.bad_lines += 1
    # At the end: a document is read as a whole, however few of its rows tell what it is.
    tally.count(size)


def _transposed(columns: Mapping[str, object]) -> list[dict[str, object]]:
    """Return the rows of columns, whose cells are named by the index of the row (pandas) or by the step (NeMo-RL)."""
    cells = {name: mapping(column) for name, column in columns.items()}
    rows = dict.fromkeys(chain.from_iterable(cells.values()))
    return [{"_step": number(row), **{name: column.get(row) for name, column in cells.items()}} for row in rows]


def _is_state(source: ImportSource) -> bool:
    is_list = _LIST.match(source.head) is not None
    return source.path.suffix == ".json" and (is_list or b'"log_history"' in source.head)


def _csv_rows(path: Path, tally: Tally) -> Iterator[MetricRow]:
    mark = _delimiter(open_source(path).head)
    lines = (raw.decode("utf-8", errors="replace") for raw in LogFile(path, tally).raw_lines())
    try:
        reader = csv.DictReader(lines, delimiter=mark)
        for record in reader:
            # Spreadsheets that separate by semicolons write commas before decimals.
            texts = {name: text for name, text in record.items() if isinstance(text, str)}
            if mark == ";":
                texts = {name: text.replace(",", ".") for name, text in texts.items()}
            numbers = {name: value for name, text in texts.items() if (value := number(text)) is not None}
            # A text may be the time.
            if row := row_of(texts | numbers):
                yield row
            if None in record or None in record.values():
                tally.bad_lines += 1
    except csv.Error:
        tally.bad_lines += 1


def _delimiter(head: bytes) -> str:
    header = head.split(b"\n", 1)[0]
    return max(",;\t", key=lambda mark: header.count(mark.encode()))


def _is_csv(source: ImportSource) -> bool:
    header = source.head.split(b"\n", 1)[0].lower()
    has_columns = _delimiter(header).encode() in header
    return source.path.suffix in (".csv", ".tsv") and has_columns and (b"step" in header or b"_timestamp" in header)


def _sqlite_rows(path: Path, tally: Tally) -> Iterator[MetricRow]:
    """Read the table `metrics` of MLflow (one value per row) or trackio (one JSON object per row), without writing."""
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        try:
            columns = {str(row[1]) for row in connection.execute("PRAGMA table_info(metrics)")}
            if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'metrics' AND type <> 'table'").fetchone():
                # A view can be endless.
                tally.bad_lines += 1
            elif {"key", "value", "timestamp", "step"} <= columns:
                tally.config = _settings(_last_params(connection))
                yield from joined_by_step(_mlflow_rows(connection, tally))
            elif {"timestamp", "step", "metrics"} <= columns:
                yield from _trackio_rows(connection, tally)
        except sqlite3.DatabaseError:
            tally.bad_lines += 1
    tally.count(path.stat().st_size)


def _last_params(connection: sqlite3.Connection) -> Iterator[tuple[Any, Any]]:
    """Yield the settings of the run of MLflow that was written to last."""
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'params' AND type = 'table'").fetchone():
        yield from connection.execute(_MLFLOW_PARAMS)


def _settings(params: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    """Return MLflow's settings, whose names have slashes for the nesting and whose values are texts."""
    parsed = ((str(name).replace("/", "."), text, parsed_json(str(text))) for name, text in params)
    return {name: text if value is None else value for name, text, value in parsed}


def _mlflow_rows(connection: sqlite3.Connection, tally: Tally) -> Iterator[MetricRow]:
    """Yield each value with its time, which is in milliseconds."""
    for key, value, timestamp, step in connection.execute(_MLFLOW_ROWS):
        tally.lines += 1
        if isinstance(key, str) and isinstance(value, int | float) and isinstance(timestamp, int | float):
            yield MetricRow(epoch_ns(timestamp / 1e3), step if isinstance(step, int) else None, {key: real(value)})
        else:
            tally.bad_lines += 1


def _trackio_rows(connection: sqlite3.Connection, tally: Tally) -> Iterator[MetricRow]:
    for timestamp, step, text in connection.execute(_TRACKIO_ROWS):
        tally.lines += 1
        document = parsed_json(text) if isinstance(text, str | bytes) else None
        if row := row_of(mapping(document)):
            yield MetricRow(instant_ns(timestamp), step if isinstance(step, int) else row.step, row.values)
        else:
            tally.bad_lines += 1


def _parquet_rows(path: Path, tally: Tally) -> Iterator[MetricRow]:
    """Yield the rows of W&B's history, or of the run of trackio that was written to last, in the order of the file."""
    try:
        file = pq.ParquetFile(path)
        named = "run_name" in file.schema_arrow.names
        last = file.read(columns=["run_name"])["run_name"][-1].as_py() if named and file.metadata.num_rows else None
        for record in chain.from_iterable(batch.to_pylist() for batch in file.iter_batches()):
            tally.lines += 1
            if record.get("run_name") == last and (row := row_of(record)):
                yield row
    except (pa.ArrowException, OSError):
        tally.bad_lines += 1
    tally.count(path.stat().st_size)


def _mlflow_file_rows(path: Path, tally: Tally) -> Iterator[MetricRow]:
    """Yield the rows of MLflow's file store, which has a file for each metric and setting beside `meta.yaml`."""
    params, files = _named_files(path.parent / "params"), _named_files(path.parent / "metrics")
    tally.config = _settings((name, open_source(each).text) for name, each in params)
    metrics = (_metric_rows(each, name, tally) for name, each in files)
    yield from joined_by_step(heapq.merge(*metrics, key=lambda row: (row.time_ns or 0, row.step or 0.0)))


def _named_files(folder: Path) -> list[tuple[str, Path]]:
    files = sorted(each for each in folder.rglob("*") if each.is_file() and not each.is_symlink())
    return [(each.relative_to(folder).as_posix(), each) for each in files]


def _metric_rows(path: Path, name: str, tally: Tally) -> Iterator[MetricRow]:
    """Yield the values of one metric: `TIME VALUE STEP`, with the time in milliseconds."""
    for raw in LogFile(path, tally).raw_lines():
        found = [number(part) for part in raw.decode("utf-8", errors="replace").split()]
        match found:
            case [float(stamp), float(value), float(step)]:
                yield MetricRow(instant_ns(stamp), step, {name: value})
            case _:
                tally.bad_lines += 1


def _is_mlflow_file(source: ImportSource) -> bool:
    return source.path.name == "meta.yaml" and b"run_id:" in source.head and (source.path.parent / "metrics").is_dir()


JSONL: Final = Carrier("jsonl", ("metrics.jsonl", "*.jsonl"), _fits, _rows)
TRAINER_STATE: Final = Carrier("trainer_state", ("trainer_state.json",), _is_state, _state_rows)
CSV: Final = Carrier("csv", ("*.csv", "*.tsv"), _is_csv, _csv_rows)
SQLITE: Final = Carrier("sqlite", ("mlflow.db", "*.db", "*.sqlite"), begins_with(b"SQLite format 3\x00"), _sqlite_rows)
PARQUET: Final = Carrier("parquet", (), begins_with(b"PAR1"), _parquet_rows)
"""Not looked for in folders, where others store samples as Parquet."""
MLFLOW_FILES: Final = Carrier("mlflow", ("meta.yaml",), _is_mlflow_file, _mlflow_file_rows)
