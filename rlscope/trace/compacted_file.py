"""Writes one compacted file from many flushed ones, in bounded memory.

A file with another schema or a damaged page is rejected with the reason, and none of its rows are written. The
compacted file has a temporary name until it is published.
"""

import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from rlscope_otel.schema import arrow_schema, chained_checksum

from rlscope.errors import UnreadableDataError
from rlscope.trace.files import StoredFile
from rlscope.trace.segments import SEGMENTS_KEY, Segment, compacted_name, encoded, file_crc32

PART_PREFIX: Final = ".compacted."
"""Name prefix of a file that is being written. A leftover file with it belongs to an interrupted compaction."""
_GROUP_ROWS: Final = 122_880
"""Rows of a row group: DuckDB gives one thread this many at a time."""
_BATCH_ROWS: Final = 32_768
_WHOLE_BYTES: Final = 4 * 10**6
"""Maximum size of a file that is held in memory while it is checked. A larger file is read twice."""


class CompactionSource(NamedTuple):
    """A file to compact: a file that a recorder flushed or merged, or an earlier compacted file."""

    path: Path
    files: tuple[StoredFile, ...]
    """The file itself, or its segments."""

    @property
    def bytes(self) -> int:
        """Size of the file."""
        return self.files[0].footer.bytes

    @property
    def is_compacted(self) -> bool:
        """Whether this is an earlier compacted file."""
        return self.files[0].segment is not None

    @property
    def rows(self) -> int:
        """Number of rows, over all segments."""
        return sum(file.footer.rows for file in self.files)


class CompactedFile:
    """A compacted file in the making."""

    def __init__(self, folder: Path, table: str) -> None:
        self.sources: list[CompactionSource] = []
        self.rows = 0
        self.table = table
        folder.mkdir(parents=True, exist_ok=True)
        self.part = folder / f"{PART_PREFIX}{secrets.token_hex(8)}.part"
        self._schema = arrow_schema(table)
        self._segments: list[Segment] = []
        self._sink = pa.OSFile(str(self.part), "wb")
        self._writer = _writer(self._sink, self._schema)
        self._held: list[pa.RecordBatch] = []
        self._held_rows = 0

    @property
    def bytes(self) -> int:
        """Bytes written so far; up to one more row group is held in memory."""
        return self._sink.tell()

    def add(self, source: CompactionSource, joins_until: int | None = None) -> str | None:
        """Add all rows of a file; return None, or the reason if the file is rejected.

        joins_until: number of the last file that the worker counted; a new segment begins after it.
        Raises OSError if the compacted file cannot be written, or the source changed while it was read.
        """
        why = _why_not(source, self._schema)
        if why is not None:
            return why
        try:
            segments = _segments_of(source)
            batches: Iterator[pa.RecordBatch] | list[pa.RecordBatch] = _batches(source.path, self._schema)
            if source.bytes <= _WHOLE_BYTES:
                batches = list(batches)
            else:
                for _ in _batches(source.path, self._schema):
                    pass
        except FileNotFoundError:
            return "it vanished; its recorder may have merged it"
        except (OSError, ValueError, MemoryError, pa.ArrowException) as error:
            return f"cannot be read: {error}"
        rows = sum(map(self._hold, batches))
        if rows != source.rows:
            raise OSError(f"{source.path.name} changed while it was read: {rows:,} rows, expected {source.rows:,}")
        for segment in segments:
            self._append(segment, joins_until)
        self.sources.append(source)
        self.rows += rows
        return None

    def close(self) -> None:
        """Finish the file under its temporary name and sync it to disk. Raises OSError."""
        self._write_held(0)
        self._writer.add_key_value_metadata({SEGMENTS_KEY: encoded(self._segments)})
        self._writer.close()
        self._sink.close()
        _sync(self.part)

    def publish(self) -> Path:
        """Give the finished file its final name. Raises OSError."""
        path = self.part.with_name(compacted_name(file_crc32(self.part)))
        os.replace(self.part, path)
        _sync(path.parent)
        return path

    def discard(self) -> None:
        """Remove the unfinished file; does nothing after `publish`."""
        if not self._sink.closed:
            self._writer.close()
            self._sink.close()
        self.part.unlink(missing_ok=True)

    def _append(self, segment: Segment, joins_until: int | None) -> None:
        before = self._segments[-1] if self._segments else None
        if before is not None and before.is_followed_by(segment) and before.numbers.last != joins_until:
            self._segments[-1] = before.joined(segment)
        else:
            self._segments.append(segment)

    def _hold(self, batch: pa.RecordBatch) -> int:
        self._held.append(batch)
        self._held_rows += batch.num_rows
        if self._held_rows >= _GROUP_ROWS:
            self._write_held(_GROUP_ROWS)
        return batch.num_rows

    def _write_held(self, group_rows: int) -> None:
        """Write the held rows; if group_rows is not 0, only whole groups of that many rows."""
        if not self._held:
            return
        held = pa.Table.from_batches(self._held, self._schema).combine_chunks()
        count = held.num_rows // group_rows * group_rows if group_rows else held.num_rows
        self._writer.write_table(held.slice(0, count), row_group_size=_GROUP_ROWS)
        self._held = held.slice(count).to_batches()
        self._held_rows = held.num_rows - count


def fingerprint(table: str, paths: Iterable[Path]) -> tuple[int, int]:
    """Return the number of rows in files of a table, and a checksum that does not depend on the order of the rows.

    Raises UnreadableDataError if a file cannot be read.
    """
    schema = arrow_schema(table)
    batches = (batch for path in paths for batch in _batches(path, schema))
    columns = ", ".join(f'"{name}"' for name in schema.names)
    connection = duckdb.connect()
    try:
        rows = connection.from_arrow(pa.RecordBatchReader.from_batches(schema, batches))
        count, checksum = rows.aggregate(f"count(*), coalesce(sum(hash({columns})::HUGEINT), 0)").fetchall()[0]
    except (duckdb.Error, OSError, pa.ArrowException) as error:
        raise UnreadableDataError(f"{table}: a file could not be read for verification: {error}") from error
    finally:
        connection.close()
    return int(count), int(checksum)


def _writer(sink: pa.NativeFile, schema: pa.Schema) -> pq.ParquetWriter:
    """Return a writer with the recorder's settings, so that a compacted file is no larger than a merged one."""
    leaves = list(_leaves(schema))
    writer = pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        use_dictionary=[leaf for leaf, kind in leaves if pa.types.is_string(kind)],  # pyright: ignore[reportArgumentType]
        column_encoding={leaf: "DELTA_BINARY_PACKED" for leaf, kind in leaves if pa.types.is_integer(kind)},
        store_schema=False,
        write_page_checksum=True,
    )
    writer.add_key_value_metadata(schema.metadata or {})
    return writer


def _leaves(parents: pa.Schema | pa.DataType, prefix: str = "") -> Iterator[tuple[str, pa.DataType]]:
    """Yield each leaf column by its Parquet path, with its type."""
    for field in parents:
        if pa.types.is_list(field.type):
            yield from _leaves(field.type.value_type, f"{prefix}{field.name}.list.element.")
        else:
            yield prefix + field.name, field.type


def _why_not(source: CompactionSource, schema: pa.Schema) -> str | None:
    """Return why a file is rejected for its columns, None if it is not: a column outside the format would be lost."""
    try:
        found = pq.read_schema(source.path)
    except FileNotFoundError:
        return "it vanished; its recorder may have merged it"
    except (OSError, ValueError, pa.ArrowException) as error:
        return f"cannot be read: {error}"
    unknown = next((name for name in found.names if name not in schema.names), None)
    return None if unknown is None else f"it has a column {unknown}, which is not in the format"


def _batches(path: Path, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows with the columns and types of the format; a column that the file lacks is NULL.

    Raises ValueError or pa.ArrowException if the format cannot hold a value.
    """
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        for batch in file.iter_batches(batch_size=_BATCH_ROWS):
            columns = [
                _fitted(batch.column(field.name), field)
                if field.name in batch.schema.names
                else pa.nulls(batch.num_rows, field.type)
                for field in schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _fitted(column: pa.Array, field: pa.Field) -> pa.Array:
    """Return a column with the format's type: another writer may use other widths or nullable columns."""
    column = column.cast(field.type)
    nulls = 0 if field.nullable else column.null_count
    if nulls or (pa.types.is_list(field.type) and column.flatten().null_count):
        raise ValueError(f"column {field.name} holds NULL, which the format does not allow")
    return column


def _segments_of(source: CompactionSource) -> list[Segment]:
    """Return the segments that a file stands for. Raises ValueError if neither name nor footer names its worker."""
    segments = [file.segment for file in source.files if file.segment is not None]
    if segments:
        return segments
    (file,) = source.files
    numbers, stamp, footer = file.numbers, file.footer.stamp, file.footer
    if numbers is None:
        raise ValueError("neither its name nor its footer names its worker")
    files, checksum = 1, 0
    if stamp is not None and stamp.merged is not None:
        files, checksum = stamp.merged.files, stamp.merged.checksum
    else:
        checksum = chained_checksum(0, numbers.last, file_crc32(source.path))
    run_id = "" if stamp is None else stamp.run_id
    return [Segment(run_id, numbers, files, checksum, footer.rows, footer.first_ns, footer.last_ns)]


def _sync(path: Path) -> None:
    """Sync a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
