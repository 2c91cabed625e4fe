"""Finds impossible values in rows in memory. `row_checks` does the same for rows in files.

Undamaged rows cost the minimum and maximum of each column.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from rlscope_otel.schema import TABLES, Column

from rlscope.trace.footers import LONGEST_TEXT_BYTES, number_limits

MOST_RUNS: Final = 10_000
"""Maximum version runs or importance moments of one row: more than the versions published during a sample's life."""


def possible_rows(rows: pa.Table, table: str) -> tuple[pa.Table, int]:
    """Return the rows of a table in memory without those with an impossible value, and how many were left out.

    The table has the contract's schema. `lacking_values` checks NULLs.
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
            wrong |= _above(_computed("list_value_length", held), MOST_RUNS)
            wrong[_parents_of_wrong(held, column)] = True
    count = int(wrong.sum())
    return (rows.filter(pa.array(~wrong)), count) if count else (rows, 0)


def lacking_values(rows: pa.Table, table: str) -> NDArray[np.bool_] | None:
    """Return for each row whether it lacks a required value. None if no row does."""
    required = [column.name for column in TABLES[table] if not column.nullable and rows[column.name].null_count]
    if not required:
        return None
    return np.logical_or.reduce([rows[name].is_null().to_numpy() for name in required])


def _computed(name: str, values: pa.Array | pa.ChunkedArray) -> Any:  # noqa: ANN401  # an array or a scalar, as the function has it
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
