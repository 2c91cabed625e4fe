"""Reads the files that many recorders have just flushed, with one call per table and poll.

Opening a small file alone costs several times as much as reading its rows together with others. The rows show where one
file ends and the next begins: each row names its worker, and two files of one worker are never read in succession. Rows
come from bytes, so a file that is merged meanwhile is not lost.

If a file of a group cannot be read, lacks a value or holds rows of another worker, the group is halved until the other
files are read. The caller opens the rest one by one and reports what is wrong.
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
"""Maximum size of a file that is read in a group. A larger file is opened alone."""
MOST_ROWS: Final = 1_000_000
"""Maximum rows of one poll. A watch that starts late reads the rest later, interval by interval."""
MOST_BYTES_A_LOOK: Final = 1 << 28
_UNREADABLE: Final = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, pa.ArrowException)
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Flushed(NamedTuple):
    """A file of one flush whose rows are all new."""

    numbers: FileNumbers
    content: bytes


@dataclass(frozen=True, slots=True, eq=False)
class ReadFiles:
    """Whole files of a table whose rows were read in one call; one entry a file, in the order of the rows."""

    table: str
    numbers: tuple[FileNumbers, ...]
    rows: pa.Table
    """Rows with the format's columns and types, without rows that lack a required value."""
    counts: NDArray[np.int64]
    """Rows of each file."""
    first_ns: NDArray[np.int64]
    """The first time in the rows of each file."""
    last_ns: NDArray[np.int64]

    def part(self, chosen: NDArray[np.bool_]) -> "ReadFiles":
        """Return the chosen files."""
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
    """Return the bytes of a small regular file. Empty for anything else, including a link."""
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
    """Yield the files of a table that can be read together, up to most_rows rows."""
    # Two files of one worker in succession could not be told apart.
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


def whole_rows(rows: pa.Table, table: str) -> tuple[pa.Table, int]:
    """Return the rows that have every required value, and the number of the other rows."""
    required = [column.name for column in TABLES[table] if not column.nullable and rows[column.name].null_count]
    if not required:
        return rows, 0
    has_all = np.logical_and.reduce([rows[name].is_valid().to_numpy() for name in required])
    whole = rows.filter(pa.array(has_all))
    return whole, rows.num_rows - whole.num_rows


@cache
def _nullable(table: str) -> pa.Schema:
    """Return the schema with all columns nullable. `whole_rows` removes rows that lack a required value."""
    return pa.schema([field.with_nullable(True).remove_metadata() for field in arrow_schema(table)])


def _halved(group: Sequence[Flushed], table: str, most_rows: int) -> Iterator[ReadFiles]:
    """Yield the files of a group that can be read together, without unreadable halves too small to be halved again."""
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
    """Read a group of files. None if one of them is unreadable or invalid; reading them alone shows which."""
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
