"""Writes Parquet files with the encodings of the trace format, where no recorder does."""

import zlib
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
from rlscope_otel.closing import open_writer


def write_table(table: pa.Table, path: Path, stamp: Mapping[str, str | int] | None = None) -> int:
    """Write one file, and return its CRC-32. stamp: where it belongs, by `schema.STAMP_KEYS`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sink = pa.BufferOutputStream()
    with open_writer(sink, table.schema, stamp) as writer:
        writer.write_table(table)
    content = sink.getvalue()
    path.write_bytes(content)
    return zlib.crc32(content)
