"""Leaves out rows with impossible values, counts duplicate rows once, and reports the number of each.

Columns that the footers prove valid are not checked again, so an undamaged run costs nothing here.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from duckdb import DuckDBPyRelation
from numpy.typing import NDArray
from rlscope_otel.schema import KEYS, TABLES, TIMES, Column

from rlscope.trace.files import TableFiles
from rlscope.trace.footers import LONGEST_TEXT_BYTES, number_limits
from rlscope.trace.usual_times import Window, worker_of

_MOST_RUNS: Final = 10_000
"""Maximum version runs or importance moments of one row: more than the versions published during a sample's life."""


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
    yield _Fault(f"len({name}) > {_MOST_RUNS}", f"have more than {_MOST_RUNS:,} {column.name}")


def possible_rows(rows: pa.Table, table: str) -> tuple[pa.Table, int]:
    """Return the rows of a table in memory without those with an impossible value, and how many were left out.

    The table has the contract's schema. NULLs are not checked here.
    """
    wrong = np.zeros(rows.num_rows, np.bool_)
    for column in TABLES[table]:
        held = rows[column.name].combine_chunks()
        kind = str(column.type)
        if kind == "string":
            wrong |= _above(_computed("binary_length", held), LONGEST_TEXT_BYTES)
        elif kind.startswith("int"):
            wrong |= _beyond(held, *number_limits(column))
        elif kind.startswith("list"):
            wrong |= _above(_computed("list_value_length", held), _MOST_RUNS)
            wrong[_parents_of_wrong(held, column)] = True
    count = int(wrong.sum())
    return (rows.filter(pa.array(~wrong)), count) if count else (rows, 0)


def _computed(name: str, values: pa.Array) -> Any:  # noqa: ANN401  # an array or a scalar, as the function has it
    """Call an Arrow function by name: type checkers do not know the functions themselves."""
    # pyarrow.compute is slow to import, and only rows in memory need it.
    import pyarrow.compute as pc

    return pc.call_function(name, [values])


def _above(numbers: pa.Array, most: int) -> NDArray[np.bool_] | np.bool_:
    return _beyond(numbers, 0, most)


def _beyond(numbers: pa.Array, low: int, high: int) -> NDArray[np.bool_] | np.bool_:
    """Return for each number whether it lies outside [low, high]; a single False if none does."""
    ends = _computed("min_max", numbers).as_py()
    if ends["min"] is None or (low <= ends["min"] and ends["max"] <= high):
        return np.False_
    filled = numbers.fill_null(low).to_numpy(zero_copy_only=False)
    return (filled < low) | (filled > high)


def _parents_of_wrong(held: pa.Array, column: Column) -> NDArray[np.int64]:
    """Return the indices of rows with a list element that is NULL or has a NULL or impossible field."""
    inside = held.flatten()
    wrong = inside.is_null().to_numpy(zero_copy_only=False)
    for field in column.type.value_type:
        values = inside.field(field.name)
        wrong = wrong | values.is_null().to_numpy(zero_copy_only=False)
        if str(field.type).startswith("int"):
            wrong = wrong | _beyond(values, *number_limits(column, field.name))
    return _computed("list_parent_indices", held).to_numpy(zero_copy_only=False)[wrong]


def _late(table: str, files: TableFiles, window: Window | None) -> Iterator[_Fault]:
    """Yield the fault of times far from the rest of the run, if a footer shows one or lacks its times."""
    if window is None:
        return
    ends = [(window.of(worker_of(file)), file.footer) for file in files.files if file.footer.rows]
    if all(
        footer.first_ns is not None
        and footer.last_ns is not None
        and usual.holds(footer.first_ns)
        and usual.holds(footer.last_ns)
        for usual, footer in ends
    ):
        return
    condition = _outside(table, window)
    for usual in dict.fromkeys(window.apart.values()):
        workers = ", ".join(_literal(worker_id) for worker_id, own in window.apart.items() if own is usual)
        condition = f"CASE WHEN worker_id IN ({workers}) THEN {_outside(table, usual)} ELSE {condition} END"
    yield _Fault(condition, "have a time far from the rest of the run")


def _outside(table: str, window: Window) -> str:
    first, last = map(_quoted, TIMES[table])
    return f"({first} < {window.first_ns} OR {last} > {window.last_ns} OR {first} > {window.last_ns})"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _quoted(name: str) -> str:
    return f'"{name}"'
