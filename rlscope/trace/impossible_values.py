"""Finds impossible values in rows: SQL conditions of faults, and how many rows in memory have one."""

from collections.abc import Collection, Iterable, Iterator
from functools import cache
from typing import Final, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
from duckdb import DuckDBPyConnection, DuckDBPyRelation
from numpy.typing import NDArray
from rlscope_otel.schema import TABLES, Column

from rlscope.trace.footers import LONGEST_TEXT_BYTES, number_limits
from rlscope.trace.sql import quoted

_MOST_RUNS: Final = 10_000
"""Maximum version runs or importance moments of one row: more than the versions published during a sample's life."""


class Fault(NamedTuple):
    """A fault that a row may have."""

    condition: str
    """SQL that is true for a row with the fault."""
    words: str


def faults_of(table: str, columns: Collection[str]) -> Iterator[Fault]:
    """Yield the faults that rows of a table can have in some of its columns."""
    for column in TABLES[table]:
        if column.name not in columns:
            continue
        name = quoted(column.name)
        if not column.nullable:
            yield Fault(f"{name} IS NULL", f"have no {column.name}")
        kind = str(column.type)
        if kind == "string":
            yield Fault(
                f"strlen({name}) > {LONGEST_TEXT_BYTES}",
                f"have a {column.name} of more than {LONGEST_TEXT_BYTES:,} bytes",
            )
        elif kind.startswith("int"):
            low, high = number_limits(column)
            yield Fault(f"{name} NOT BETWEEN {low} AND {high}", f"have an impossible {column.name}")
        elif kind.startswith("list"):
            yield from _inside(column)


def _inside(column: Column) -> Iterator[Fault]:
    """Yield the faults that the elements of a list can have."""
    name = quoted(column.name)
    wrong = ["each IS NULL"]
    for field in column.type.value_type:
        part = f"each.{quoted(field.name)}"
        wrong.append(f"{part} IS NULL")
        if str(field.type).startswith("int"):
            low, high = number_limits(column, field.name)
            wrong.append(f"{part} NOT BETWEEN {low} AND {high}")
    yield Fault(f"len(list_filter({name}, lambda each: {' OR '.join(wrong)})) > 0", f"have impossible {column.name}")
    yield Fault(f"len({name}) > {_MOST_RUNS}", f"have more than {_MOST_RUNS:,} {column.name}")


def with_any(faults: Iterable[Fault]) -> str:
    """Return SQL that is true for a row with any of these faults, and false for all others."""
    return " OR ".join(f"coalesce({fault.condition}, false)" for fault in faults)


def impossible_in(rows: pa.Table, table: str) -> tuple[DuckDBPyRelation, int]:
    """Return the rows in memory without an impossible value, and the number of all others.

    rows: rows of the contract's schema.
    """
    bad = with_any(faults_of(table, rows.column_names))
    held = _memory().cursor().from_arrow(rows)
    return held.filter(f"NOT ({bad})"), int(held.aggregate(f"count_if({bad})").fetchall()[0][0] or 0)


@cache
def _memory() -> DuckDBPyConnection:
    """Return a connection for rows in memory, with one thread: a watch runs beside training."""
    return duckdb.connect(config={"threads": 1})


def lacking_values(rows: pa.Table, table: str) -> NDArray[np.bool_] | None:
    """Return for each row in memory whether it lacks a required value. None if no row does."""
    required = [column.name for column in TABLES[table] if not column.nullable and rows[column.name].null_count]
    if not required:
        return None
    return np.logical_or.reduce([rows[name].is_null().to_numpy() for name in required])
