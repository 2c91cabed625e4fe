"""Files of records: JSON lines and lists, trainer_state.json, CSV of W&B, SQLite databases of MLflow and trackio.

The step and the time come from the names that metric writers give them: `step`, `_step`, `time`, `_timestamp`.
"""

import csv
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from rlscope.importers.importer import ImportSource, open_source
from rlscope.importers.lines import LogFile
from rlscope.importers.quantities import epoch_ns, number, real
from rlscope.importers.rows import (
    Carrier,
    MetricRow,
    Tally,
    instant_ns,
    items,
    joined_by_step,
    mapping,
    parsed_json,
    row_of,
)

_LARGEST_STATE_BYTES: Final = 256 << 20
"""Limit on the size of trainer_state.json; a log_history of a million rows is smaller."""


def _rows(path: Path, tally: Tally) -> Iterator[MetricRow]:
    return filter(None, map(row_of, LogFile(path, tally).records()))


def _fits(source: ImportSource) -> bool:
    first = source.head.lstrip().split(b"\n", 1)[0].rstrip()
    return source.path.suffix in (".jsonl", ".json") and first.startswith(b"{") and len(first) > 2


def _state_rows(path: Path, tally: Tally) -> Iterator[MetricRow]:
    """Yield the rows of a list, or of `log_history`."""
    size = path.stat().st_size
    document = parsed_json(path.read_bytes()) if size <= _LARGEST_STATE_BYTES else None
    history = mapping(document).get("log_history", document)
    tally.bad_lines += not isinstance(history, list)
    for each in items(history):
        tally.lines += 1
        if row := row_of(mapping(each)):
            yield row
        else:
            tally.bad_lines += 1
    # At the end: a document is read as a whole, however few of its rows tell what it is.
    tally.count(size)


def _is_state(source: ImportSource) -> bool:
    is_list = source.head.lstrip().startswith(b"[")
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
            if row := row_of({name: value for name, text in texts.items() if (value := number(text)) is not None}):
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
                yield from joined_by_step(_mlflow_rows(connection, tally))
            elif {"timestamp", "step", "metrics"} <= columns:
                yield from _trackio_rows(connection, tally)
        except sqlite3.DatabaseError:
            tally.bad_lines += 1
    tally.count(path.stat().st_size)


def _mlflow_rows(connection: sqlite3.Connection, tally: Tally) -> Iterator[MetricRow]:
    """Yield the values of the run that was written to last, if there are several. Times are in milliseconds."""
    last = "SELECT run_uuid FROM metrics ORDER BY timestamp DESC LIMIT 1"
    ordered = f"SELECT key, value, timestamp, step FROM metrics WHERE run_uuid = ({last}) ORDER BY step, timestamp"
    for key, value, timestamp, step in connection.execute(ordered):
        tally.lines += 1
        if isinstance(key, str) and isinstance(value, int | float) and isinstance(timestamp, int | float):
            yield MetricRow(epoch_ns(timestamp / 1e3), step if isinstance(step, int) else None, {key: real(value)})
        else:
            tally.bad_lines += 1


def _trackio_rows(connection: sqlite3.Connection, tally: Tally) -> Iterator[MetricRow]:
    last = "SELECT run_name FROM metrics ORDER BY timestamp DESC LIMIT 1"
    ordered = f"SELECT timestamp, step, metrics FROM metrics WHERE run_name = ({last}) ORDER BY step, timestamp"
    for timestamp, step, text in connection.execute(ordered):
        tally.lines += 1
        document = parsed_json(text) if isinstance(text, str | bytes) else None
        if row := row_of(mapping(document)):
            yield MetricRow(instant_ns(timestamp), step if isinstance(step, int) else row.step, row.values)
        else:
            tally.bad_lines += 1


def _is_sqlite(source: ImportSource) -> bool:
    return source.head.startswith(b"SQLite format 3\x00")


JSONL: Final = Carrier("jsonl", ("metrics.jsonl", "*.jsonl"), _fits, _rows)
TRAINER_STATE: Final = Carrier("trainer_state", ("trainer_state.json",), _is_state, _state_rows)
CSV: Final = Carrier("csv", ("*.csv", "*.tsv"), _is_csv, _csv_rows)
SQLITE: Final = Carrier("sqlite", ("mlflow.db", "*.db", "*.sqlite"), _is_sqlite, _sqlite_rows)
