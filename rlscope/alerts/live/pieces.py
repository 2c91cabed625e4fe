"""Stored rows that a watch found and reads when they are due: a row group of a Parquet file, or batches of a journal.

Only footers are read to find those of a Parquet file. Batches of a journal were read to find them, and are read again
because a watch that starts late cannot hold all of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rlscope.trace.footers import chunks_of, first_row_of, times_of
from rlscope.trace.journals import Place, decoded, fitted, read_batches

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
        """Return the rows in the format's schema. Raises OSError or ArrowException for a broken file."""
        if self.place is None:
            return self._stored(self.path, self.first_row)
        try:
            return self._read_again(self.place)
        except FileNotFoundError:
            path = self.path.with_suffix(".parquet")
            return self._stored(path, self.first_row - (first_row_of(pq.read_metadata(path)) or 0))

    def _read_again(self, place: Place) -> pa.Table:
        read = read_batches(self.path, self.table, place)
        if isinstance(read, str):
            raise pa.ArrowInvalid(read)
        sealed = tuple(batch for batch in read.sealed if batch.first_row < self.first_row + self.rows)
        if sum(batch.rows for batch in sealed) != self.rows:
            raise pa.ArrowInvalid("its batches are not as they were")
        own = read.messages[: sealed[-1].end - sealed[0].start]
        return decoded(self.table, [read._replace(sealed=sealed, messages=own)])

    def _stored(self, path: Path, first_row: int) -> pa.Table:
        with pq.ParquetFile(path) as stored:
            bounds, end_row = _bounds(stored.metadata), first_row + self.rows
            groups = [group for group, (start, end) in enumerate(bounds) if start < end_row and end > first_row]
            held = stored.read_row_groups(groups, use_threads=self.rows > _MANY_ROWS)
            own = held.slice(first_row - bounds[groups[0]][0] if groups else 0, self.rows)
            return fitted(own, self.table)


def pieces_of(path: Path, table: str, worker_id: str, first_row: int, end_row: int) -> Iterator[Piece | None]:
    """Yield the rows of a Parquet file from one position to another, by row group.

    None for a row group without times in the footer.
    Raises OSError or ArrowException for a broken file.
    """
    metadata = pq.read_metadata(path)
    for group, (start, end) in enumerate(_bounds(metadata)):
        low, high = max(start, first_row), min(end, end_row)
        if low < high:
            times_ns = times_of([*chunks_of(metadata, [group])], table)
            yield None if times_ns is None else Piece(path, table, worker_id, *times_ns, high - low, low)


def _bounds(metadata: pq.FileMetaData) -> Sequence[tuple[int, int]]:
    """Return for each row group the position of its first row and of the row after its last."""
    groups = range(metadata.num_row_groups)
    return [*pairwise(accumulate((metadata.row_group(group).num_rows for group in groups), initial=0))]
