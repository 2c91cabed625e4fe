"""Reads the files that many recorders have just flushed: all of a look in one call, and no footer is parsed for itself.

To parse a small file's footer costs as much as to read its rows. Of a footer that begins with the same bytes as one
that was parsed, the columns are known, and how many rows there are stands right behind them. Rows come from the same
bytes, so a file that is merged into another one meanwhile is no loss.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate, islice
from typing import Final, NamedTuple, cast

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from rlscope_otel.schema import TABLES, TIMES, FileNumbers, arrow_schema

from rlscope.trace.small_files import SMALL_ROWS, worth_one_call

_MAGIC: Final = b"PAR1"
_END_BYTES: Final = 8
"""Of a Parquet file: the length of its footer, and the magic bytes."""
_MOST_BYTES: Final = 1 << 18
"""A larger file has its footer parsed."""
_MOST_ROWS: Final = 1_000_000
"""Of one look: what a watch that starts late finds is read later, stretch by stretch."""
_MOST_BYTES_A_LOOK: Final = 1 << 28
_MOST_PARSED: Final = 16
"""Footers of a table that are looked at for how they begin; files of other recorders are parsed one by one."""
_UNREADABLE: Final = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, pa.ArrowException)
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Flushed(NamedTuple):
    """A file of one flush, of which all rows are new."""

    path: str
    numbers: FileNumbers
    rows: int
    content: bytes


class Held(NamedTuple):
    """Rows of a file, which were read with those of others."""

    together: pa.Table
    start: int
    rows: int

    @property
    def own(self) -> pa.Table:
        """The rows of this file alone."""
        return self.together.slice(self.start, self.rows)


class Read(NamedTuple):
    """A file that was read, and the first and last time in its rows."""

    file: Flushed
    held: Held
    first_ns: int
    last_ns: int


class FlushedFiles:
    """Knows how the footers of each table begin."""

    def __init__(self) -> None:
        self._begins: dict[str, list[bytes]] = {}
        self._parsed: dict[str, int] = {}
        self._rows_left = self._bytes_left = 0

    def begin(self) -> None:
        """A new look."""
        self._rows_left, self._bytes_left = _MOST_ROWS, _MOST_BYTES_A_LOOK

    def opened(self, path: str, table: str, numbers: FileNumbers) -> Flushed | None:
        """A small file with exactly the format's columns; None for one that is to be parsed, or is not there.

        All of a look are no more than can be held.
        """
        begins = self._begins.get(table)
        if not begins or self._rows_left <= 0 or self._bytes_left <= 0:
            return None
        content = _content(path)
        footer = _footer(content)
        for begin in begins:
            if footer.startswith(begin):
                rows = _signed(_varint(footer, len(begin))[0])
                if 0 < rows <= SMALL_ROWS:
                    self._rows_left -= rows
                    self._bytes_left -= len(content)
                    return Flushed(path, numbers, rows, content)
        return None

    def learn(self, path: str, table: str, metadata: pq.FileMetaData) -> None:
        """The footer of a file was parsed: others may begin as it does."""
        parsed = self._parsed[table] = self._parsed.get(table, 0) + 1
        if parsed > _MOST_PARSED or not metadata.schema.to_arrow_schema().equals(arrow_schema(table)):
            return
        begin, known = _begin(_footer(_content(path))), self._begins.setdefault(table, [])
        if begin and begin not in known:
            known.append(begin)


def read_flushed(files: Sequence[Flushed], table: str) -> tuple[list[Read], list[Flushed]]:
    """What could be read together of some files of a table, and the files that the caller has to read one by one."""
    read, left, grouped = list[Read](), list[Flushed](), 0
    for group in worth_one_call(files):
        found = _read_group(group, table)
        read += found or ()
        left += group if found is None else ()
        grouped += len(group)
    return read, [*left, *files[grouped:]]


def contract_rows(rows: pa.Table, table: str) -> pa.Table:
    """Rows with the columns and the types of the format; a column that they lack is NULL."""
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


def whole_rows(rows: pa.Table, table: str) -> tuple[pa.Table, int]:
    """The rows with every value that the format requires, and how many others there were."""
    required = [column.name for column in TABLES[table] if not column.nullable and rows[column.name].null_count]
    if not required:
        return rows, 0
    has_all = np.logical_and.reduce([rows[name].is_valid().to_numpy() for name in required])
    whole = rows.filter(pa.array(has_all))
    return whole, rows.num_rows - whole.num_rows


@cache
def _nullable(table: str) -> pa.Schema:
    """Every value may be NULL in a file: `whole_rows` leaves those out that must not."""
    return pa.schema([field.with_nullable(True).remove_metadata() for field in arrow_schema(table)])


def _read_group(group: Sequence[Flushed], table: str) -> list[Read] | None:
    """None where one of them cannot be read, or has a row that lacks a value: only by itself it shows which."""
    starts = list(accumulate((file.rows for file in group), initial=0))
    try:
        contents = [file.content for file in group]
        stored = pl.scan_parquet(contents, schema=_frame_schema(table), parallel="none").collect()
        if stored.height != starts.pop():
            return None
        rows = contract_rows(stored.rechunk().to_arrow(), table)
    except _UNREADABLE:
        return None
    if whole_rows(rows, table)[1]:
        return None
    first, last = TIMES[table]
    firsts_ns = np.minimum.reduceat(rows[first].to_numpy(), starts).tolist()
    lasts_ns = np.maximum.reduceat(rows[last].to_numpy(), starts).tolist()
    return [
        Read(file, Held(rows, start, file.rows), first_ns, last_ns)
        for file, start, first_ns, last_ns in zip(group, starts, firsts_ns, lasts_ns, strict=True)
    ]


@cache
def _frame_schema(table: str) -> pl.Schema:
    return cast("pl.DataFrame", pl.from_arrow(arrow_schema(table).empty_table())).schema


def _content(path: str) -> bytes:
    """The bytes of a small regular file; none of anything else."""
    try:
        descriptor = os.open(path, _OPEN)
    except OSError:
        return b""
    try:
        facts = os.fstat(descriptor)
        is_small = stat.S_ISREG(facts.st_mode) and facts.st_size <= _MOST_BYTES
        content = os.read(descriptor, facts.st_size) if is_small else b""
        return content if len(content) == facts.st_size else b""
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _footer(content: bytes) -> bytes:
    """The footer of a Parquet file; empty for anything else."""
    length = int.from_bytes(content[-_END_BYTES : -len(_MAGIC)], "little")
    is_parquet = content.startswith(_MAGIC) and content.endswith(_MAGIC)
    if not is_parquet or not 0 < length <= len(content) - _END_BYTES - len(_MAGIC):
        return b""
    return content[-_END_BYTES - length : -_END_BYTES]


# A footer is a struct in Thrift's compact protocol: the version, the list of columns, the number of rows, and more.
_LIST, _STRUCT, _INTEGER = 9, 12, 6
_COLUMNS, _ROWS = 2, 3


def _begin(footer: bytes) -> bytes | None:
    """The bytes before the number of rows; None where it does not follow the columns."""
    try:
        _, columns, rows = islice(_fields(footer, 0), 3)
    except (IndexError, ValueError, RecursionError):
        return None
    return footer[: rows[2]] if columns[:2] == (_COLUMNS, _LIST) and rows[:2] == (_ROWS, _INTEGER) else None


def _fields(data: bytes, at: int) -> Iterator[tuple[int, int, int]]:
    """The number, the type and the place of each field of a struct, and last 0, 0 and where the struct ends."""
    number = 0
    while data[at]:
        step, kind = data[at] >> 4, data[at] & 15
        at += 1
        if not step:
            number, at = _varint(data, at)
            number = _signed(number)
        number += step
        yield number, kind, at
        at = _after(data, at, kind)
    yield 0, 0, at + 1


def _after(data: bytes, at: int, kind: int) -> int:
    """Where a value ends. Raises ValueError for a type that footers do not have before the number of rows."""
    if kind in (1, 2):
        return at
    if kind in (4, 5, 6):
        return _varint(data, at)[1]
    if kind == 8:
        length, at = _varint(data, at)
        return at + length
    if kind == _LIST:
        count, inside = data[at] >> 4, data[at] & 15
        count, at = _varint(data, at + 1) if count == 15 else (count, at + 1)
        for _ in range(count):
            at = _after(data, at, inside)
        return at
    if kind == _STRUCT:
        return [place for _, _, place in _fields(data, at)][-1]
    raise ValueError(f"type {kind}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of 7 bits a byte, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _signed(value: int) -> int:
    """A number whose sign is its last bit."""
    return (value >> 1) ^ -(value & 1)
