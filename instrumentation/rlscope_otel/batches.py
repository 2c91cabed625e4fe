"""Converts rows of the host into Arrow batches of the trace format. No I/O."""

from collections.abc import Sequence

import pyarrow as pa

from rlscope_otel import schema
from rlscope_otel.journal import plain_schema

Values = Sequence[object]
"""The values of one column, or of one row."""


def convert_once() -> None:
    """Convert a value, so that later conversions are safe. Writers call this before any thread writes.

    At its first conversion pyarrow imports pandas, if installed, under a lock of its own. This takes half a second, and
    a child that is forked meanwhile would wait for the lock forever.
    """
    pa.array([0])


def batch_of(table: str, columns: Sequence[Values]) -> pa.RecordBatch:
    """Return a record batch of a table from its columns in schema order.

    Raises pa.ArrowInvalid, pa.ArrowTypeError or OverflowError if a column cannot hold a value, and ValueError for a
    NULL in a column that is not nullable.
    """
    fields = schema.TABLES[table]
    arrays = [pa.array(values, each.type) for values, each in zip(columns, fields, strict=True)]
    for array, field in zip(arrays, fields, strict=True):
        if array.null_count and not field.nullable:
            raise ValueError(f"{table}.{field.name} is missing in {array.null_count} rows")
    return pa.RecordBatch.from_arrays(arrays, schema=plain_schema(table))


def coerced(table: str, row: Values) -> Values | None:
    """The row with each plain value as its column's Python type (a tensor as a float), or None if that fails."""
    try:
        values = [_as_type(value, column.type) for value, column in zip(row, schema.TABLES[table], strict=True)]
        batch_of(table, [[value] for value in values])
    except Exception:  # Conversions of the host's types may fail in any way. The row is then lost.
        return None
    return values


def _as_type(value: object, arrow_type: pa.DataType) -> object:
    if value is None or pa.types.is_nested(arrow_type):
        return value
    if pa.types.is_string(arrow_type):
        return str(value)
    if pa.types.is_boolean(arrow_type):
        return bool(value)
    kind = float if pa.types.is_floating(arrow_type) else int
    return kind(value)  # pyright: ignore[reportArgumentType]  # any host type with __int__ or __float__
