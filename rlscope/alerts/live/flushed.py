"""Reads the files that many recorders have just flushed: all of a look in one call a table.

To open a small file by itself costs several times what reading its rows with those of others does. Where one file ends
and the next one begins, the rows say themselves: each has the name of its worker, and no two files of one worker are
read after each other. Rows come from bytes, so a file that is merged into another one meanwhile is no loss.

A group in which one file cannot be read, lacks a value or holds rows of another worker is halved until the others are
read; the caller opens what is left one by one, and so finds what is wrong with it.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple, cast

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray
from rlscope_otel.schema import TABLES, TIMES, FileNumbers, arrow_schema

from rlscope.trace.small_files import worth_one_call

_MOST_BYTES: Final = 1 << 18
"""A larger file is opened by itself."""
MOST_ROWS: Final = 1_000_000
"""Of one look: what a watch that starts late finds is read later, stretch by stretch."""
MOST_BYTES_A_LOOK: Final = 1 << 28
_UNREADABLE: Final = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, pa.ArrowException)
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Flushed(NamedTuple):
    """A file of one flush, of which all rows are new."""

    numbers: FileNumbers
    content: bytes


@dataclass(frozen=True, slots=True, eq=False)
class ReadFiles:
    """Whole files of a table whose rows were read in one call; one entry a file, in the order of the rows."""

    table: str
    numbers: tuple[FileNumbers, ...]
    rows: pa.Table
    """Of the format's columns and types, without a row that lacks a value."""
    counts: NDArray[np.int64]
    """Rows of each file."""
    first_ns: NDArray[np.int64]
    """The first time in the rows of each file."""
    last_ns: NDArray[np.int64]

    def part(self, chosen: NDArray[np.bool_]) -> "ReadFiles":
        """Some of the files."""
        if chosen.all():
            return self
        return ReadFiles(
            self.table,
            tuple(own for own, is_chosen in zip(self.numbers, chosen.tolist(), strict=True) if is_chosen),
            self.rows.filter(pa.array(np.repeat(chosen, self.counts))),
            self.counts[chosen],
            self.first_ns[chosen],
            self.last_ns[chosen],
        )

    def each(self) -> Iterator[tuple[FileNumbers, pa.Table]]:
        """Each file with its rows."""
        start = 0
        for numbers, count in zip(self.numbers, self.counts.tolist(), strict=True):
            yield numbers, self.rows.slice(start, count)
            start += count


def small_content(path: str) -> bytes:
    """The bytes of a small regular file; none of anything else, a link among it."""
    try:
        descriptor = os.open(path, _OPEN)
    except (OSError, ValueError):
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


def read_flushed(files: Sequence[Flushed], table: str, most_rows: int) -> Iterator[ReadFiles]:
    """What can be read together of some files of a table, up to so many rows."""
    # Two files of one worker after each other could not be told apart.
    apart = [
        file
        for place, file in enumerate(files)
        if not place or file.numbers.worker_id != files[place - 1].numbers.worker_id
    ]
    for group in worth_one_call(apart):
        for read in _halved(group, table, most_rows):
            most_rows -= read.rows.num_rows
            yield read


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


def _halved(group: Sequence[Flushed], table: str, most_rows: int) -> Iterator[ReadFiles]:
    """The files of a group that can be read together, without the halves that cannot and are too small to be halved."""
    read = _read_group(group, table, most_rows)
    if read is not None:
        yield read
        return
    middle = len(group) // 2
    for half in (group[:middle], group[middle:]):
        for own in worth_one_call(half):
            for read in _halved(own, table, most_rows):
                most_rows -= read.rows.num_rows
                yield read


def _read_group(group: Sequence[Flushed], table: str, most_rows: int) -> ReadFiles | None:
    """None where one of them cannot be read, or is not what it should be: only by itself it shows which."""
    first, last = TIMES[table]
    try:
        scanned = pl.scan_parquet(
            [file.content for file in group],
            schema=_frame_schema(table),
            missing_columns="insert",
            hive_partitioning=False,
            parallel="none",
        )
        stored = scanned.head(most_rows + 1).collect()
        if stored.height > most_rows:
            return None
        rows = contract_rows(stored.rechunk().to_arrow(), table)
    except _UNREADABLE:
        return None
    if whole_rows(rows, table)[1]:
        return None
    runs = stored["worker_id"].rle().struct.unnest()
    if runs["value"].to_list() != [file.numbers.worker_id for file in group]:
        return None
    counts = runs["len"].cast(pl.Int64).to_numpy()
    starts = np.cumsum(counts) - counts
    firsts_ns = np.minimum.reduceat(rows[first].to_numpy(), starts)
    lasts_ns = np.maximum.reduceat(rows[last].to_numpy(), starts)
    return ReadFiles(table, tuple(file.numbers for file in group), rows, counts, firsts_ns, lasts_ns)


@cache
def _frame_schema(table: str) -> pl.Schema:
    return cast("pl.DataFrame", pl.from_arrow(arrow_schema(table).empty_table())).schema
