"""Leaves out rows with impossible values, counts duplicate rows once, and reports the number of each.

Columns that the footers prove valid are not checked again, so an undamaged run costs nothing here.
"""

from collections.abc import Iterator
from typing import NamedTuple

from duckdb import DuckDBPyRelation
from rlscope_otel.schema import KEYS, TABLES, TIMES, Column

from rlscope.trace.files import TableFiles
from rlscope.trace.footers import LONGEST_TEXT_BYTES, number_limits
from rlscope.trace.impossible_values import MOST_RUNS
from rlscope.trace.usual_times import Window


class CheckedRows(NamedTuple):
    """The usable rows of a table."""

    rows: DuckDBPyRelation
    gaps: tuple[str, ...]
    left_out: int
    is_distinct: bool
    """Whether duplicate rows were removed."""


class _Fault(NamedTuple):
    condition: str
    """SQL that is true for a row with the fault."""
    words: str


def check_rows(
    stored: DuckDBPyRelation, table: str, files: TableFiles, window: Window | None, may_repeat: bool
) -> CheckedRows:
    """Return the rows without those with impossible values. may_repeat: whether there may be duplicates to remove.

    Raises duckdb.Error if a file cannot be read.
    """
    faults = [*_faults(table, files), *_late(table, files, window)]
    gaps: list[str] = []
    rows, left_out = stored, 0
    if faults:
        counts = stored.aggregate(", ".join(f"count_if({fault.condition})" for fault in faults)).fetchall()[0]
        found = [(fault, count) for fault, count in zip(faults, counts, strict=True) if count]
        gaps += [f"{table}: {count:,} rows {fault.words}; they are left out" for fault, count in found]
        if found:
            bad = " OR ".join(f"coalesce({fault.condition}, false)" for fault, _ in found)
            rows = stored.filter(f"NOT ({bad})")
            left_out = files.rows - _count(rows)
    repeated = _repeated(rows, table) if may_repeat else 0
    if repeated:
        gaps.append(f"{table}: {repeated:,} rows are stored twice; they are counted once")
        rows = rows.query("stored_rows", _distinct_sql(table)) or rows
    return CheckedRows(rows, tuple(gaps), left_out + repeated, bool(repeated))


def _count(rows: DuckDBPyRelation) -> int:
    return int(rows.aggregate("count(*)").fetchall()[0][0])


def _repeated(rows: DuckDBPyRelation, table: str) -> int:
    key = ", ".join(f"{name} := {_quoted(name)}" for name in KEYS[table])
    return int(rows.aggregate(f"count(*) - count(DISTINCT struct_pack({key}))").fetchall()[0][0])


def _distinct_sql(table: str) -> str:
    """Return SQL for one row per key, in the order of the keys and independent of the order of the files."""
    keys = ", ".join(_quoted(name) for name in KEYS[table])
    columns = ", ".join(_quoted(column.name) for column in TABLES[table])
    numbered = f"row_number() OVER (PARTITION BY {keys} ORDER BY {columns})"
    return f"SELECT * FROM stored_rows QUALIFY {numbered} = 1 ORDER BY {keys}"


def _faults(table: str, files: TableFiles) -> Iterator[_Fault]:
    suspects = {name for file in files.files for name in file.footer.suspects} & files.columns
    for column in TABLES[table]:
        if column.name not in suspects:
            continue
        name = _quoted(column.name)
        if not column.nullable:
            yield _Fault(f"{name} IS NULL", f"have no {column.name}")
        kind = str(column.type)
        if kind == "string":
            yield _Fault(
                f"strlen({name}) > {LONGEST_TEXT_BYTES}",
                f"have a {column.name} of more than {LONGEST_TEXT_BYTES:,} bytes",
            )
        elif kind.startswith("int"):
            low, high = number_limits(column)
            yield _Fault(f"{name} NOT BETWEEN {low} AND {high}", f"have an impossible {column.name}")
        elif kind.startswith("list"):
            yield from _inside(column)


def _inside(column: Column) -> Iterator[_Fault]:
    """Yield the faults that the elements of a list can have."""
    name = _quoted(column.name)
    wrong = ["each IS NULL"]
    for field in column.type.value_type:
        part = f"each.{_quoted(field.name)}"
        wrong.append(f"{part} IS NULL")
        if str(field.type).startswith("int"):
            low, high = number_limits(column, field.name)
            wrong.append(f"{part} NOT BETWEEN {low} AND {high}")
    yield _Fault(f"len(list_filter({name}, lambda each: {' OR '.join(wrong)})) > 0", f"have impossible {column.name}")
    yield _Fault(f"len({name}) > {MOST_RUNS}", f"have more than {MOST_RUNS:,} {column.name}")


def _late(table: str, files: TableFiles, window: Window | None) -> Iterator[_Fault]:
    """Yield the fault of times far from the rest of the run, if a footer shows one or lacks its times."""
    if window is None:
        return
    ends_ns = [end for file in files.files if file.footer.rows for end in (file.footer.first_ns, file.footer.last_ns)]
    if all(end is not None and window.holds(end) for end in ends_ns):
        return
    first, last = map(_quoted, TIMES[table])
    outside = f"({first} < {window.first_ns} OR {last} > {window.last_ns} OR {first} > {window.last_ns})"
    yield _Fault(outside, "have a time far from the rest of the run")


def _quoted(name: str) -> str:
    return f'"{name}"'
