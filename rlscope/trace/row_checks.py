"""Leaves out rows with impossible values, counts duplicate rows once, and reports the number of each.

Columns that the footers prove valid are not checked again, so an undamaged run costs nothing here.
"""

from collections.abc import Iterator
from typing import NamedTuple

from duckdb import DuckDBPyRelation
from rlscope_otel.schema import KEYS, TABLES, TIMES

from rlscope.trace.files import TableFiles
from rlscope.trace.impossible_values import Fault, faults_of, with_any
from rlscope.trace.sql import quoted
from rlscope.trace.usual_times import Window


class CheckedRows(NamedTuple):
    """The usable rows of a table."""

    rows: DuckDBPyRelation
    gaps: tuple[str, ...]
    left_out: int
    is_distinct: bool
    """Whether duplicate rows were removed."""


def check_rows(
    stored: DuckDBPyRelation, table: str, files: TableFiles, window: Window | None, may_repeat: bool
) -> CheckedRows:
    """Return the rows without those with impossible values. may_repeat: whether there may be duplicates to remove.

    Raises duckdb.Error if a file cannot be read.
    """
    suspects = {name for file in files.files for name in file.footer.suspects} & files.columns
    faults = [*faults_of(table, suspects), *_late(table, files, window)]
    gaps: list[str] = []
    rows, left_out = stored, 0
    if faults:
        counts = stored.aggregate(", ".join(f"count_if({fault.condition})" for fault in faults)).fetchall()[0]
        found = [(fault, count) for fault, count in zip(faults, counts, strict=True) if count]
        gaps += [f"{table}: {count:,} rows {fault.words}; they are left out" for fault, count in found]
        if found:
            rows = stored.filter(f"NOT ({with_any(fault for fault, _ in found)})")
            left_out = files.rows - len(rows)
    repeated = _repeated(rows, table) if may_repeat else 0
    if repeated:
        gaps.append(f"{table}: {repeated:,} rows are stored twice; they are counted once")
        rows = rows.query("stored_rows", _distinct_sql(table)) or rows
    return CheckedRows(rows, tuple(gaps), left_out + repeated, bool(repeated))


def _repeated(rows: DuckDBPyRelation, table: str) -> int:
    key = ", ".join(f"{name} := {quoted(name)}" for name in KEYS[table])
    return int(rows.aggregate(f"count(*) - count(DISTINCT struct_pack({key}))").fetchall()[0][0])


def _distinct_sql(table: str) -> str:
    """Return SQL for one row per key, in the order of the keys and independent of the order of the files."""
    keys = ", ".join(quoted(name) for name in KEYS[table])
    columns = ", ".join(quoted(column.name) for column in TABLES[table])
    numbered = f"row_number() OVER (PARTITION BY {keys} ORDER BY {columns})"
    return f"SELECT * FROM stored_rows QUALIFY {numbered} = 1 ORDER BY {keys}"


def _late(table: str, files: TableFiles, window: Window | None) -> Iterator[Fault]:
    """Yield the fault of times far from the rest of the run, if a footer shows one or lacks its times."""
    if window is None:
        return
    ends_ns = [end for file in files.files if file.footer.rows for end in (file.footer.first_ns, file.footer.last_ns)]
    if all(end is not None and window.holds(end) for end in ends_ns):
        return
    first, last = map(quoted, TIMES[table])
    outside = f"({first} < {window.first_ns} OR {last} > {window.last_ns} OR {first} > {window.last_ns})"
    yield Fault(outside, "have a time far from the rest of the run")
