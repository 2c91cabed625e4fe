"""Reads open journals: the whole batches from a place on, and their rows.

A journal grows while it is read, so an incomplete batch at its end is normal. What follows the last whole batch is
never decoded. `files` lists the journals, and `completeness` compares them with what the workers state.
"""

import os
import stat
import zlib
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from itertools import accumulate, groupby
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rlscope_otel.journal import SealedBatch, head_length, is_cut_head, whole_batches
from rlscope_otel.schema import TIMES

from rlscope.trace.footers import UNREADABLE, Footer, Stamp, read_schema, schema_fault, stamp_in
from rlscope.trace.impossible_values import impossible_in
from rlscope.trace.ranges import joined

_LONGEST_BYTES: Final = 1 << 30
"""A recorder begins the next journal at 32 MB; a longer one must not fill the memory."""

_BYTES_TOGETHER: Final = 64 * 10**6
"""Bytes of journals that are decoded together."""
UNBEGUN: Final = "it ends before its head does"
"""Reason why a journal has no batch, if its worker was killed when it began it."""
_MOST_HELD_BYTES: Final = 256 * 10**6
"""Maximum bytes of decoded rows that are held; other journals are read again when the tables are created."""


class Place(NamedTuple):
    """The place in a journal up to which it was read."""

    stamp: Stamp
    """Where the journal belongs."""
    schema: pa.Schema
    """The columns of its batches."""
    head_crc32: int
    end: int
    """Position after the last whole batch."""
    next_row: int = 0
    """Least number that the next row can have."""


class Batches(NamedTuple):
    """The whole batches of a journal from a place on."""

    sealed: tuple[SealedBatch, ...]
    messages: memoryview
    """The bytes of all of them."""
    place: Place
    """The place after them."""
    rest_bytes: int
    """Length of what follows: an incomplete batch, damage, or rows that were read before."""

    @property
    def rows(self) -> int:
        """Number of their rows."""
        return sum(batch.rows for batch in self.sealed)


def read_batches(path: Path, table: str, after: Place | None = None) -> Batches | str:
    """Return the whole batches of a journal, or why it cannot be read.

    after: the place up to which it was read before; None to begin at its start. Raises FileNotFoundError if the journal
    is gone: a Parquet file has replaced it.
    """
    before = 0 if after is None else after.end
    try:
        content = _content(path, before)
        place = content if isinstance(content, str) else after or _head(content, table)
    except FileNotFoundError:
        raise
    except UNREADABLE as error:
        return f"cannot be read: {error}"
    if isinstance(content, str) or isinstance(place, str):
        return str(place)
    start = place.end - before
    sealed, end, next_row = list[SealedBatch](), start, place.next_row
    for batch in whole_batches(content, start, place.head_crc32):
        if batch.first_row < next_row:
            break
        sealed.append(batch)
        end, next_row = batch.end, batch.first_row + batch.rows
    reached = place._replace(end=before + end, next_row=next_row)
    return Batches(tuple(sealed), content[start:end], reached, len(content) - end)


def decoded(table: str, read: Sequence[Batches]) -> pa.Table:
    """Return the rows of batches of one table, in one chunk, with the columns and types of the format.

    Raises ValueError or pa.ArrowException if the batches do not hold what their seals state.
    """
    parts: list[pa.Table] = []
    for schema, own in groupby(read, _schema_of):
        same = list(own)
        stream = pa.ipc.open_stream(pa.py_buffer(b"".join([schema.serialize(), *(each.messages for each in same)])))
        batches, stated = list(stream), sum(each.rows for each in same)
        for batch in batches:
            batch.validate()
        rows = pa.concat_batches([pa.RecordBatch.from_pylist([], schema), *batches])
        if rows.num_rows != stated:
            raise ValueError(f"it holds {rows.num_rows:,} rows, but its seals state {stated:,}")
        parts.append(fitted(rows, table))
    # A seal proves that nothing changed since it was written. Offsets and text could be wrong from the start. Those at
    # both ends of a batch are checked before the batches are joined, the others faster afterwards.
    joined = pa.concat_tables(parts).combine_chunks()
    joined.validate(full=True)
    return joined


def _schema_of(read: Batches) -> pa.Schema:
    return read.place.schema


def decoded_together(table: str, read: Sequence[Batches], first: int = 0) -> Iterator[tuple[slice, pa.Table | str]]:
    """Yield which of these were decoded by one call, with their rows, or why one of them cannot be decoded."""
    try:
        yield slice(first, first + len(read)), decoded(table, read)
    except UNREADABLE as error:
        middle = len(read) // 2
        if not middle:
            yield slice(first, first + 1), f"cannot be read: {error}"
        else:
            yield from decoded_together(table, read[:middle], first)
            yield from decoded_together(table, read[middle:], first + middle)


def _footers(read: Sequence[Batches], rows: pa.Table, table: str) -> Iterator[Footer]:
    """Yield what the footer of a Parquet file with the rows of each journal would say.

    read: whole journals, each with a row at least. rows: their rows. If one has an impossible value, all columns of all
    are suspect.
    """
    first, last = TIMES[table]
    starts = list(accumulate((each.rows for each in read[:-1]), initial=0))
    firsts_ns, lasts_ns = _ends(rows[first], starts, np.minimum), _ends(rows[last], starts, np.maximum)
    columns = _names(table)
    suspects = frozenset(columns if impossible_in(rows, table)[1] else ())
    for place, each in enumerate(read):
        yield Footer(
            columns=columns,
            rows=each.rows,
            bytes=each.place.end,
            is_plain=True,
            stamp=each.place.stamp,
            first_ns=firsts_ns[place],
            last_ns=lasts_ns[place],
            suspects=suspects,
            spans=tuple(joined((batch.first_row, batch.first_row + batch.rows) for batch in each.sealed)),
            rest_bytes=each.rest_bytes,
        )


def _empty_footer(table: str, size_bytes: int, rest_bytes: int, stamp: Stamp | None = None) -> Footer:
    return Footer(_names(table), 0, size_bytes, True, stamp, None, None, frozenset(), rest_bytes=rest_bytes)


@cache
def _names(table: str) -> tuple[str, ...]:
    return tuple(read_schema(table).names)


def _ends(column: pa.Array | pa.ChunkedArray, starts: Sequence[int], end: np.ufunc) -> Sequence[int | None]:
    """Return the minimum or maximum of each part of a column; None for all if a value is missing."""
    return [None] * len(starts) if column.null_count else end.reduceat(column.to_numpy(), starts).tolist()


class JournalRows:
    """Reads the journals of a run. Their rows are held from the check of the files until the tables are created."""

    def __init__(self) -> None:
        self._held: dict[Path, tuple[pa.Table, int]] = {}
        """The rows that a journal was decoded with, and the place of its first one among them."""
        self._bytes = 0

    def footers(self, paths: Sequence[Path], table: str) -> Iterator[tuple[Path, Footer | str]]:
        """Read journals of one table; yield the facts about each, or why it cannot be read.

        Many are decoded together: decoding 10 rows of one journal costs as much as decoding 1,000.
        """
        group: list[tuple[Path, Batches]] = []
        group_bytes = 0
        for path in paths:
            try:
                read = read_batches(path, table)
            except FileNotFoundError as error:
                read = f"cannot be read: {error}"
            if read == UNBEGUN:
                size_bytes = path.stat().st_size
                yield path, _empty_footer(table, size_bytes, size_bytes)
            elif isinstance(read, str):
                yield path, read
            elif not read.rows:
                yield path, _empty_footer(table, read.place.end, read.rest_bytes, read.place.stamp)
            else:
                group.append((path, read))
                group_bytes += len(read.messages)
            if group_bytes >= _BYTES_TOGETHER:
                yield from self._decoded(group, table)
                group, group_bytes = [], 0
        yield from self._decoded(group, table)

    def _decoded(self, group: Sequence[tuple[Path, Batches]], table: str) -> Iterator[tuple[Path, Footer | str]]:
        for some, rows in decoded_together(table, [read for _, read in group]) if group else ():
            if isinstance(rows, str):
                yield group[some.start][0], rows
                continue
            start, is_held = 0, self._bytes + rows.nbytes <= _MOST_HELD_BYTES
            self._bytes += rows.nbytes if is_held else 0
            own = group[some]
            for (path, read), footer in zip(own, _footers([read for _, read in own], rows, table), strict=True):
                if is_held:
                    self._held[path] = rows, start
                start += read.rows
                yield path, footer

    def take(self, path: Path, table: str, count: int) -> pa.Table:
        """Return the first rows of a journal that was read before. They are no longer held then.

        Raises OSError, ValueError or pa.ArrowException if they cannot be read again.
        """
        held = self._held.pop(path, None)
        if held is not None:
            rows, start = held
            return rows.slice(start, count)
        try:
            read = read_batches(path, table)
        except FileNotFoundError:
            # The Parquet file that replaced it begins with the same rows.
            return fitted(pq.ParquetFile(path.with_suffix(".parquet")).read(), table).slice(0, count)
        if isinstance(read, str):
            raise ValueError(f"{path.name}: {read}")
        return decoded(table, [read]).slice(0, count)


def _content(path: Path, start: int) -> memoryview | str:
    """Return the bytes of a journal from a position on, or why it is not read. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            return "not a regular file"
        if facts.st_size > _LONGEST_BYTES:
            return f"{facts.st_size:,} bytes long, more than any journal"
        if facts.st_size < start:
            return f"{facts.st_size:,} bytes long, shorter than before"
        return memoryview(os.pread(descriptor, facts.st_size - start, start))
    finally:
        os.close(descriptor)


def _head(content: memoryview, table: str) -> Place | str:
    """Return the place after a journal's head, or why it has none that can be read."""
    length = head_length(content)
    if length is None:
        return UNBEGUN if is_cut_head(content) else f"{len(content):,} bytes long, and not a journal"
    schema = pa.ipc.read_schema(pa.py_buffer(content[:length]))
    stamp = stamp_in(schema.metadata or {})
    if stamp is None:
        return "its head does not say where it belongs"
    plain, why = schema.remove_metadata(), schema_fault(schema, table)
    return why or Place(stamp, _shared(plain), zlib.crc32(content[:length]), length)


@lru_cache(maxsize=256)
def _shared(schema: pa.Schema) -> pa.Schema:
    """Return one shared object for equal schemas: journals of a table are nearly always alike."""
    return schema


def possible_rows(rows: pa.Table, table: str) -> tuple[pa.Table, int]:
    """Return rows in memory without those with an impossible value, and how many were left out."""
    possible, left_out = impossible_in(rows, table)
    return (fitted(possible.to_arrow_table(), table), left_out) if left_out else (rows, 0)


def fitted(rows: pa.Table | pa.RecordBatch, table: str) -> pa.Table:
    """Return the rows with the columns and types of the format; missing columns are NULL."""
    return pa.Table.from_arrays([_column(rows, field) for field in read_schema(table)], schema=read_schema(table))


def _column(rows: pa.Table | pa.RecordBatch, field: pa.Field) -> pa.Array | pa.ChunkedArray:
    if field.name not in rows.schema.names:
        return pa.nulls(rows.num_rows, field.type)
    column = rows[field.name]
    return column if column.type == field.type else column.cast(field.type)
