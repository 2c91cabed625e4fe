"""Stored rows that a watch found and reads when they are due: a row group of a Parquet file, or batches of a journal.

Only footers are read to find those of a Parquet file. Batches of a journal were read to find them, and are read again
because a watch that starts late cannot hold all of them.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from rlscope_otel.schema import FIRST_ROW_KEY, TIMES

from rlscope.trace.journals import Place, decoded, read_batches

_MANY_ROWS = 10_000
"""Rows of a file below which reading its columns in parallel costs more than it saves."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive rows of a file that were found for the first time."""

    path: Path
    table: str
    worker_id: str
    first_ns: int
    """The earliest time in any of its rows, or before that."""
    last_ns: int
    rows: int
    first_row: int = 0
    """Position of the first of these rows in a Parquet file; in a journal, its number among all of the worker."""
    place: Place | None = None
    """Where they begin in a journal. None for rows of a Parquet file."""

    def read(self) -> pa.Table:
        """Return the rows as they are stored. Raises OSError or ArrowException for a broken file."""
        if self.place is None:
            return _rows_of(self.path, self.first_row, self.rows)
        try:
            return self._read_again(self.place)
        except FileNotFoundError:
            path = self.path.with_suffix(".parquet")
            return _rows_of(path, self.first_row - (first_row_of(pq.read_metadata(path)) or 0), self.rows)

    def _read_again(self, place: Place) -> pa.Table:
        read = read_batches(self.path, self.table, place)
        if isinstance(read, str):
            raise pa.ArrowInvalid(read)
        sealed = tuple(batch for batch in read.sealed if batch.first_row < self.first_row + self.rows)
        if sum(batch.rows for batch in sealed) != self.rows:
            raise pa.ArrowInvalid("its batches are not as they were")
        own = read.messages[: sealed[-1].end - sealed[0].start]
        return decoded(self.table, [read._replace(sealed=sealed, messages=own)])


def first_row_of(metadata: pq.FileMetaData) -> int | None:
    """Return the number of a file's first row among all of its worker. None for a file that replaced no journal."""
    text = (metadata.metadata or {}).get(FIRST_ROW_KEY.encode(), b"")
    return int(text) if text.isdigit() and len(text) < 19 else None


def ends_of_groups(metadata: pq.FileMetaData) -> list[int]:
    """Return for each row group the position after its last row."""
    groups = range(metadata.num_row_groups)
    return list(itertools.accumulate(metadata.row_group(group).num_rows for group in groups))


def row_groups(metadata: pq.FileMetaData, first_row: int, rows: int) -> tuple[list[int], int]:
    """The row groups that hold rows of a file, and how many rows of the first of them come before."""
    found: list[int] = []
    start, before = 0, 0
    for index, end in enumerate(ends_of_groups(metadata)):
        if start < first_row + rows and end > first_row:
            before = before if found else first_row - start
            found.append(index)
        start = end
    return found, before


def parts_by_group(metadata: pq.FileMetaData, first_row: int, end_row: int) -> Iterator[tuple[int, int]]:
    """Yield the first row and the number of the rows of a range that lie in each row group."""
    start = 0
    for end in ends_of_groups(metadata):
        low, high = max(start, first_row), min(end, end_row)
        if low < high:
            yield low, high - low
        start = end


def times_of(path: Path, metadata: pq.FileMetaData, table: str, first_row: int, rows: int) -> tuple[int, int] | None:
    """The first and last time in the row groups of some rows, from the footer; from the file if it has no statistics.

    None if no row has a time.
    """
    first, last = TIMES[table]
    names = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    groups = [metadata.row_group(index) for index in row_groups(metadata, first_row, rows)[0]]
    lows = [group.column(names.index(first)).statistics for group in groups]
    highs = [group.column(names.index(last)).statistics for group in groups]
    if groups and all(each is not None and each.has_min_max for each in (*lows, *highs)):
        return min(low.min for low in lows), max(high.max for high in highs)
    stored = pq.read_table(path, columns=list({first, last}))
    starts, ends = (stored[name].drop_null().to_pylist() for name in (first, last))
    return (min(starts), max(ends)) if starts and ends else None


def _rows_of(path: Path, first_row: int, rows: int) -> pa.Table:
    with pq.ParquetFile(path) as stored:
        groups, before = row_groups(stored.metadata, first_row, rows)
        return stored.read_row_groups(groups, use_threads=rows > _MANY_ROWS).slice(before, rows)
