"""Rows that a watch read, in the form of the trace format."""

from functools import cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from rlscope_otel.schema import TABLES, arrow_schema


def contract_rows(rows: pa.Table, table: str) -> pa.Table:
    """Return rows with the columns and the types of the format. A missing column is NULL."""
    contract = _nullable(table)
    if rows.column_names == contract.names and rows.schema.types == contract.types:
        return pa.table(rows.columns, schema=contract)
    columns: list[pa.ChunkedArray] = []
    for name, kind in zip(contract.names, contract.types, strict=True):
        if name not in rows.column_names:
            columns.append(pa.chunked_array([pa.nulls(rows.num_rows, kind)]))
        else:
            found = rows[name]
            columns.append(found if found.type == kind else found.cast(kind))
    return pa.table(columns, schema=contract)


def lacking_values(rows: pa.Table, table: str) -> NDArray[np.bool_] | None:
    """Return for each row whether it lacks a required value. None if no row does."""
    required = [column.name for column in TABLES[table] if not column.nullable and rows[column.name].null_count]
    if not required:
        return None
    return np.logical_or.reduce([rows[name].is_null().to_numpy() for name in required])


def whole_rows(rows: pa.Table, table: str) -> tuple[pa.Table, int]:
    """Return the rows that have every required value, and the number of the other rows."""
    lacks = lacking_values(rows, table)
    return (rows, 0) if lacks is None else (rows.filter(pa.array(~lacks)), int(lacks.sum()))


@cache
def _nullable(table: str) -> pa.Schema:
    """Return the schema with all columns nullable. `whole_rows` removes rows that lack a required value."""
    return pa.schema([field.with_nullable(True).remove_metadata() for field in arrow_schema(table)])
