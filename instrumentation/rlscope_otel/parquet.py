"""Writes complete Parquet files in the trace format: a temporary name first, then renamed, never overwriting.

It does not decide when to write (`writer.py`) nor what the columns are (`schema.py`).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
# pyarrow ships no types; it is confined to this module, `merged_file.py` and `schema.py`.

import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rlscope_otel import forks, schema

Values = Sequence[object]
"""The values of one column."""
_FEW_ROWS = 1_000
"""Maximum rows for which Snappy is as small as Zstandard, whose start for each column takes as long as all the rest."""
Stamp = Mapping[str, str | int]
"""Where a file belongs, by `schema.STAMP_KEYS`."""


def convert_once() -> None:
    """Convert a value, so that later conversions are safe. Writers call this before any thread writes.

    At its first conversion pyarrow imports pandas, if installed, under a lock of its own. This takes half a second, and
    a child that is forked meanwhile would wait for the lock forever.
    """
    pa.array([0])


def table_of(name: str, columns: Sequence[Values]) -> pa.Table:
    """Return an Arrow table of the format from its columns in schema order.

    Raises pa.ArrowInvalid, pa.ArrowTypeError or OverflowError if a column cannot hold a value, and ValueError for a
    NULL in a column that is not nullable.
    """
    arrow_schema = schema.arrow_schema(name)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, arrow_schema, strict=True)]
    for array, field in zip(arrays, arrow_schema, strict=True):
        if array.null_count and not field.nullable:
            raise ValueError(f"{name}.{field.name} is missing in {array.null_count} rows")
    return pa.Table.from_arrays(arrays, schema=arrow_schema)


def coerced(name: str, row: Values) -> Values | None:
    """The row with each plain value as its column's Python type (a tensor as a float), or None if that fails."""
    try:
        values = [_as_type(value, column.type) for value, column in zip(row, schema.TABLES[name], strict=True)]
        table_of(name, [[value] for value in values])
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


def write_columns(name: str, columns: Sequence[Values], path: Path, stamp: Stamp | None = None) -> int:
    """Write one complete file of a table of the format; raises as `table_of` and `write_table` do.

    Returns its CRC-32.
    """
    return write_table(table_of(name, columns), path, stamp)


def write_table(table: pa.Table, path: Path, stamp: Stamp | None = None) -> int:
    """Write one complete file; a reader never sees a part of it, and a failure leaves nothing under its name.

    The Arrow schema is not stored a second time: for small files it would be half of the bytes. Returns the CRC-32 of
    the file as it was written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        with forks.writing():
            checksum = _write(table, part, stamp)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return checksum


def _write(table: pa.Table, path: Path, stamp: Stamp | None) -> int:
    """Write the bytes of a file, made in memory; returns their CRC-32."""
    sink = pa.BufferOutputStream()
    with open_writer(sink, table.schema, stamp, "snappy" if table.num_rows <= _FEW_ROWS else "zstd") as writer:
        writer.write_table(table)
    content = sink.getvalue()
    path.write_bytes(content)
    return zlib.crc32(content)


def open_writer(
    target: Path | pa.NativeFile, arrow_schema: pa.Schema, stamp: Stamp | None, compression: str = "zstd"
) -> pq.ParquetWriter:
    """A writer of one file with the encodings of the format."""
    leaves = list(_leaves(arrow_schema))
    texts = [leaf for leaf, leaf_type in leaves if pa.types.is_string(leaf_type)]
    integers = [leaf for leaf, leaf_type in leaves if pa.types.is_integer(leaf_type)]
    writer = pq.ParquetWriter(
        target,
        arrow_schema,
        compression=compression,
        use_dictionary=texts,  # pyright: ignore[reportArgumentType]  # a bool or a list of columns, says its page
        column_encoding=dict.fromkeys(integers, "DELTA_BINARY_PACKED"),
        store_schema=False,
        write_page_checksum=True,
    )
    writer.add_key_value_metadata(arrow_schema.metadata or {})
    if stamp is not None:
        writer.add_key_value_metadata({key: str(value) for key, value in stamp.items()})
    return writer


def _leaves(parents: pa.Schema | pa.DataType, prefix: str = "") -> Iterator[tuple[str, pa.DataType]]:
    """Every leaf column by the path that Parquet gives it, such as `versions.list.element.start`."""
    for field in parents:
        if pa.types.is_list(field.type):
            yield from _leaves(field.type.value_type, f"{prefix}{field.name}.list.element.")
        else:
            yield prefix + field.name, field.type
