"""Finds the new files of a run in progress, and the progress of each worker.

Reads footers. Rows are read only from groups of files that were just flushed, because that is cheaper (`flushed`).

A poll costs only what is new: a worker's own file counts the rows it wrote, and the next file names are tried only if
some are missing. A whole directory is listed if that fails, and every _LIST_EVERY polls. Seen files are stored as
ranges of numbers per worker and table, so days of files take no memory.

Recorders merge their files, so files vanish and one file may stand for many numbers. The rows of a merged file are new
if their numbers were not seen; the file itself states the rows of each of its parts.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, cast

import pyarrow.parquet as pq
from rlscope_otel.schema import TABLES, TIMES, FileNumbers

from rlscope.alerts.live.flushed import (
    MOST_BYTES_A_LOOK,
    MOST_ROWS,
    Flushed,
    ReadFiles,
    read_flushed,
    small_content,
)
from rlscope.trace.files import is_integer, table_metadata
from rlscope.trace.footers import stamp_of
from rlscope.trace.segments import Segment, decoded
from rlscope.trace.usual_times import Window, usual_window

_TELL_ENDS: Final = ("engine_steps", "train_steps", "weight_updates", "activities", "samples")
"""Tables whose rows show how far a worker has progressed, as in worker_extents."""
_LIST_EVERY: Final = 30
"""Polls between two listings of every directory, for files that no worker file counts."""
_PIECE_ROWS: Final = 100_000
"""A merged file of more rows is read in pieces: a watch that starts late need not hold a day at once."""


@dataclass(frozen=True, slots=True)
class NewFile:
    """Rows found for the first time: those of a file, or of some parts of a merged one."""

    path: Path
    table: str
    first_ns: int
    """The earliest time in any of its rows, or before that."""
    last_ns: int
    numbers: FileNumbers
    """Numbers of the flushed files that its rows come from."""
    rows: int
    first_row: int = 0
    """First of these rows in the file at the path."""


class FoundFiles(NamedTuple):
    """New files of one poll."""

    files: list[NewFile]
    """Files to read when their rows are due."""
    read: list[ReadFiles]
    """Files whose rows were already read, if the rows of their table are needed."""


class _Seen:
    """The numbers seen for one worker and table, as ranges (first, last) in order, and the rows of all of them."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []
        self.rows = 0

    @property
    def below(self) -> int:
        """The first number, from 1 on, that was not seen."""
        return self.ranges[0][1] + 1 if self.ranges and self.ranges[0][0] <= 1 else 1

    def holds(self, first: int, last: int) -> bool:
        """Whether all of these numbers were seen."""
        return any(low <= first and last <= high for low, high in self.ranges)

    def touches(self, first: int, last: int) -> bool:
        """Whether any of these numbers was seen."""
        return any(low <= last and first <= high for low, high in self.ranges)

    def add(self, first: int, last: int, rows: int) -> None:
        """These numbers were seen; rows is what is new of them."""
        self.rows += rows
        if self.ranges and self.ranges[-1][1] == first - 1:
            self.ranges[-1] = self.ranges[-1][0], last
            return
        near = [each for each in self.ranges if each[0] <= last + 1 and first <= each[1] + 1]
        whole = min([first, *(low for low, _ in near)]), max([last, *(high for _, high in near)])
        self.ranges = sorted([each for each in self.ranges if each not in near] + [whole])

    def remove(self, first: int, last: int, rows: int) -> None:
        """These numbers were not seen after all."""
        self.rows -= rows
        below = [(low, min(high, first - 1)) for low, high in self.ranges if low < first]
        above = [(max(low, last + 1), high) for low, high in self.ranges if high > last]
        self.ranges = below + above


class _Piece(NamedTuple):
    """Consecutive rows of a file."""

    first: int
    """The first number that they were flushed as."""
    last: int
    first_row: int
    rows: int


class LiveFiles:
    """Files of one run directory; `tables` names the tables whose rows are read."""

    def __init__(self, folder: Path, patience_ns: int, tables: Collection[str] = ()) -> None:
        self._folder = folder
        self._tables = tables
        self._rows_left = self._bytes_left = 0
        """Rows and bytes that may still be read during this poll."""
        self._patience_ns = patience_ns
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._compacted_paths: set[Path] = set()
        self._looks = 0
        self._broken_since_ns: dict[Path, int] = {}
        self._given_up: set[Path] = set()
        self._window: Window | None = None
        self.last_ns: dict[str, int] = {}
        """The end of each worker's latest row."""
        self.step_end_ns: int | None = None
        """The end of the latest train step."""
        self.stored_rows = 0
        self.skipped: list[str] = []
        """Files that stayed unreadable, each with the reason."""

    def look(self, workers: Sequence[Mapping[str, object]], now_ns: int, window: Window | None = None) -> FoundFiles:
        """Return the new files. An unreadable file is retried for patience_ns. `window` is that of these workers."""
        found, read = list[NewFile](), list[ReadFiles]()
        self._window = window or usual_window({}, workers)
        list_all = self._looks % _LIST_EVERY == 0
        self._looks += 1
        self._rows_left, self._bytes_left = MOST_ROWS, MOST_BYTES_A_LOOK
        for table, lacking in self._lacking(workers).items():
            # The other tables only need row counts and the faults of their files.
            together = self._read_together(lacking, table)
            read += together if table in self._tables else ()
            lacking = [worker for worker in lacking if self._lacks(worker, table)]
            for worker in lacking:
                found += self._next_of(worker, table, now_ns)
            if list_all or any(self._lacks(worker, table) for worker in lacking):
                found += self._listed(table, now_ns)
        return FoundFiles(found, read)

    def is_complete(self, worker: Mapping[str, object]) -> bool:
        """Whether every row that the worker's own file counts was seen."""
        return isinstance(worker.get("rows"), dict) and not any(True for _ in self._lacking_tables(worker))

    def most_rows(self, table: str) -> int:
        """The highest number of rows that one worker wrote to a table."""
        return max((seen.rows for (name, _), seen in self._seen.items() if name == table), default=0)

    def _lacking(self, workers: Sequence[Mapping[str, object]]) -> Mapping[str, list[Mapping[str, object]]]:
        """Return the workers whose rows were not all seen, or possibly not, by table."""
        lacking: dict[str, list[Mapping[str, object]]] = {table: [] for table in TABLES}
        for worker in workers:
            for table in self._lacking_tables(worker):
                lacking[table].append(worker)
        return lacking

    def _lacking_tables(self, worker: Mapping[str, object]) -> Iterator[str]:
        rows = worker.get("rows")
        if not isinstance(rows, dict):
            yield from TABLES
            return
        worker_id, counts = str(worker["worker_id"]), cast("Mapping[str, object]", rows)
        for table, count in counts.items():
            if table in TABLES and is_integer(count) and count > 0:
                seen = self._seen.get((table, worker_id))
                if seen is None or count > seen.rows:
                    yield table

    def _lacks(self, worker: Mapping[str, object], table: str) -> bool:
        rows = worker.get("rows")
        if not isinstance(rows, dict):
            return True
        count = rows.get(table, 0)  # pyright: ignore[reportUnknownVariableType]
        seen = self._seen.get((table, str(worker["worker_id"])))
        return is_integer(count) and count > (seen.rows if seen is not None else 0)

    def _read_together(self, workers: Sequence[Mapping[str, object]], table: str) -> list[ReadFiles]:
        """Return the next files of these workers that can be read together."""
        found: list[ReadFiles] = []
        most_files = 1
        while workers:
            flushed = self._next_contents(workers, table, most_files)
            read = list(read_flushed(flushed, table, self._rows_left))
            found += [usual for each in read if (usual := self._usual(each)).numbers]
            advanced = {numbers.worker_id for each in read for numbers in each.numbers}
            workers = [each for each in workers if each["worker_id"] in advanced and self._lacks(each, table)]
            # Most workers wrote one file since the last look; a watch that starts late finds many.
            most_files *= 2
        return found

    def _next_contents(self, workers: Sequence[Mapping[str, object]], table: str, most_files: int) -> list[Flushed]:
        """Up to so many files of each worker: the first of each, then the second of each, and so on."""
        found: list[Flushed] = []
        nexts = {worker_id: self._of(worker_id, table).below for worker_id in (str(w["worker_id"]) for w in workers)}
        for _ in range(most_files):
            for worker_id, number in list(nexts.items()):
                numbers = FileNumbers(worker_id, number, number)
                content = small_content(f"{self._folder}/{table}/{numbers.name}") if self._bytes_left > 0 else b""
                if not content:
                    del nexts[worker_id]
                    continue
                nexts[worker_id] += 1
                self._bytes_left -= len(content)
                found.append(Flushed(numbers, content))
        return found

    def _usual(self, read: ReadFiles) -> ReadFiles:
        """Mark files that were read as seen, and return the files whose times are plausible."""
        self._rows_left -= read.rows.num_rows
        self.stored_rows += read.rows.num_rows
        for numbers, count in zip(read.numbers, read.counts.tolist(), strict=True):
            self._of(numbers.worker_id, read.table).add(numbers.first, numbers.last, count)
        if self._window is not None:
            first_ns, last_ns = self._window.first_ns, self._window.last_ns
            can_be = (read.first_ns >= first_ns) & (read.last_ns <= last_ns)
            can_be &= (read.first_ns <= last_ns) & (read.last_ns >= first_ns)
            for numbers in (own for own, is_usual in zip(read.numbers, can_be.tolist(), strict=True) if not is_usual):
                self._skip_times(read.table, numbers.name)
            read = read.part(can_be)
        for numbers, last_ns in zip(read.numbers, read.last_ns.tolist(), strict=True):
            self._note_end(read.table, numbers.worker_id, last_ns)
        return read

    def _next_of(self, worker: Mapping[str, object], table: str, now_ns: int) -> list[NewFile]:
        """Return the files that follow a worker's seen files."""
        found: list[NewFile] = []
        worker_id = str(worker["worker_id"])
        while self._lacks(worker, table):
            below = self._of(worker_id, table).below
            numbers = FileNumbers(worker_id, below, below)
            path = f"{self._folder}/{table}/{numbers.name}"
            if not os.path.exists(path):
                return found
            found += self._opened(Path(path), table, numbers, now_ns)
            if numbers.first == self._of(worker_id, table).below:
                break
        return found

    def _listed(self, table: str, now_ns: int) -> list[NewFile]:
        try:
            with os.scandir(self._folder / table) as entries:
                names = [entry.name for entry in entries if entry.name.endswith(".parquet")]
        except FileNotFoundError:
            return []
        except OSError as error:
            self._say_once(f"{table}: cannot be listed: {error.strerror}")
            return []
        found: list[NewFile] = []
        numbered = [(FileNumbers.of(name.removesuffix(".parquet")), name) for name in names]
        known = [(numbers, name) for numbers, name in numbered if numbers is not None]
        # The files inside a compacted file need not be opened again.
        for name in (name for numbers, name in numbered if numbers is None):
            found += self._compacted(self._folder / table / name, table, now_ns)
        # Merged files come before their parts, so that the parts need not be opened.
        for numbers, name in sorted(known, key=lambda each: (each[0].worker_id, each[0].first, -each[0].last)):
            if not self._of(numbers.worker_id, table).holds(numbers.first, numbers.last):
                found += self._opened(self._folder / table / name, table, numbers, now_ns)
        return found

    def _say_once(self, problem: str) -> None:
        if problem not in self.skipped:
            self.skipped.append(problem)

    def _compacted(self, path: Path, table: str, now_ns: int) -> list[NewFile]:
        """Return the new rows of a compacted file and mark them as seen. Empty if it is not readable (yet)."""
        metadata = None if path in self._compacted_paths else self._metadata(path, table, now_ns)
        if metadata is None:
            return []
        self._compacted_paths.add(path)
        found: list[NewFile] = []
        first_row = 0
        for segment in decoded(metadata.metadata or {}, metadata.num_rows):
            (worker_id, first, last), rows = segment.numbers, segment.rows
            seen = self._of(worker_id, table)
            if not seen.touches(first, last):
                seen.add(first, last, rows)
                self.stored_rows += rows
                found += self._of_segment(path, table, segment, first_row)
            elif not seen.holds(first, last):
                self.skipped.append(f"{table}/{path.name}: {rows:,} rows of {worker_id} skipped, some were read before")
                seen.add(first, last, 0)
            first_row += rows
        return found

    def _of_segment(self, path: Path, table: str, segment: Segment, first_row: int) -> list[NewFile]:
        """The rows of a segment in pieces."""
        first_ns, last_ns, worker_id = segment.first_ns, segment.last_ns, segment.numbers.worker_id
        is_odd = self._window is not None and not all(self._window.holds(each or 0) for each in (first_ns, last_ns))
        if first_ns is None or last_ns is None or is_odd:
            self.skipped.append(f"skipped {table}/{path.name}: times are missing, or far from the rest of the run")
            return []
        self._note_end(table, worker_id, last_ns)
        return [
            NewFile(
                path, table, first_ns, last_ns, segment.numbers, min(_PIECE_ROWS, segment.rows - row), first_row + row
            )
            for row in range(0, segment.rows, _PIECE_ROWS)
        ]

    def forget(self, file: NewFile) -> None:
        """Forget a file whose rows could not be read because it was merged: its rows are in the merged file."""
        self._of(file.numbers.worker_id, file.table).remove(file.numbers.first, file.numbers.last, file.rows)
        self.stored_rows -= file.rows

    def _opened(self, path: Path, table: str, numbers: FileNumbers, now_ns: int) -> list[NewFile]:
        """Return the new rows of a file and mark them as seen. Empty if it has no rows or is not readable (yet)."""
        metadata, seen = self._metadata(path, table, now_ns), self._of(numbers.worker_id, table)
        if metadata is None:
            if path in self._given_up:
                seen.add(numbers.first, numbers.last, 0)
            return []
        found: list[NewFile] = []
        for piece in self._new_pieces(path, table, numbers, metadata):
            seen.add(piece.first, piece.last, piece.rows)
            self.stored_rows += piece.rows
            file = self._timed(path, table, numbers.worker_id, piece, metadata) if piece.rows else None
            found += [file] if file is not None else []
        seen.add(numbers.first, numbers.last, 0)
        return found

    def _metadata(self, path: Path, table: str, now_ns: int) -> pq.FileMetaData | None:
        """Return the footer of a file. None if it is not readable (yet), or was just merged into another file."""
        if path in self._given_up:
            return None
        found = table_metadata(path, table)
        if not isinstance(found, str):
            self._broken_since_ns.pop(path, None)
            return found
        if not os.path.lexists(path):
            return None
        since_ns = self._broken_since_ns.setdefault(path, now_ns)
        if now_ns - since_ns >= self._patience_ns:
            self.skipped.append(f"skipped {table}/{path.name}: {found}")
            self._given_up.add(path)
            del self._broken_since_ns[path]
        return None

    def _new_pieces(self, path: Path, table: str, numbers: FileNumbers, metadata: pq.FileMetaData) -> list[_Piece]:
        """The rows of a file whose numbers were not seen."""
        seen, stamp = self._of(numbers.worker_id, table), stamp_of(metadata)
        whole = _Piece(numbers.first, numbers.last, 0, metadata.num_rows)
        parts = [whole]
        if stamp is not None and stamp.merged is not None and stamp.numbers == numbers:
            parts = _parts(numbers.first, stamp.merged.parts)
            parts = parts if sum(part.rows for part in parts) == whole.rows else [whole]
        # Some rows of a part that was merged before may have been read, and nothing says which.
        unclear = [part for part in parts if seen.touches(*part[:2]) and not seen.holds(*part[:2])]
        if unclear:
            rows = sum(part.rows for part in unclear)
            self.skipped.append(f"{table}/{path.name}: {rows:,} rows skipped, some of them read before the merging")
        return _joined([part for part in parts if not seen.touches(*part[:2])])

    def _timed(
        self, path: Path, table: str, worker_id: str, piece: _Piece, metadata: pq.FileMetaData
    ) -> NewFile | None:
        """Return a piece with the times of its rows. None if the times are not plausible."""
        moments = _moments(path, metadata, table, piece)
        if moments is None or (self._window is not None and not all(map(self._window.holds, moments))):
            self._skip_times(table, path.name)
            return None
        first_ns, last_ns = moments
        self._note_end(table, worker_id, last_ns)
        numbers = FileNumbers(worker_id, piece.first, piece.last)
        return NewFile(path, table, first_ns, last_ns, numbers, piece.rows, piece.first_row)

    def _skip_times(self, table: str, name: str) -> None:
        self.skipped.append(f"skipped {table}/{name}: its times are missing, or far from the rest of the run")

    def _note_end(self, table: str, worker_id: str, last_ns: int) -> None:
        """Note that rows of a worker end at this time."""
        if table == "train_steps":
            self.step_end_ns = max(last_ns, self.step_end_ns or last_ns)
        if table in _TELL_ENDS:
            self.last_ns[worker_id] = max(last_ns, self.last_ns.get(worker_id, last_ns))

    def _of(self, worker_id: str, table: str) -> _Seen:
        return self._seen.setdefault((table, worker_id), _Seen())


def _parts(first: int, listed: Iterable[tuple[int, int]]) -> list[_Piece]:
    """The parts of a merged file from the last number and the rows of each."""
    parts: list[_Piece] = []
    first_row = 0
    for last, rows in listed:
        parts.append(_Piece(first, last, first_row, rows))
        first, first_row = last + 1, first_row + rows
    return parts


def _joined(parts: Sequence[_Piece]) -> list[_Piece]:
    """Join neighboring parts into pieces of at most _PIECE_ROWS."""
    joined: list[_Piece] = []
    for part in parts:
        before = joined[-1] if joined else None
        if before is not None and before.last + 1 == part.first and before.rows + part.rows <= _PIECE_ROWS:
            joined[-1] = before._replace(last=part.last, rows=before.rows + part.rows)
        else:
            joined.append(part)
    return joined


def row_groups(metadata: pq.FileMetaData, first_row: int, rows: int) -> tuple[list[int], int]:
    """The row groups that hold rows of a file, and how many rows of the first of them come before."""
    found: list[int] = []
    start, before = 0, 0
    for index in range(metadata.num_row_groups):
        end = start + metadata.row_group(index).num_rows
        if start < first_row + rows and end > first_row:
            before = before if found else first_row - start
            found.append(index)
        start = end
    return found, before


def _moments(path: Path, metadata: pq.FileMetaData, table: str, piece: _Piece) -> tuple[int, int] | None:
    """The first and last time in the row groups of a piece, from the footer; from the rows if that has no statistics.

    None if no row has a time.
    """
    first, last = TIMES[table]
    names = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    groups = [metadata.row_group(index) for index in row_groups(metadata, piece.first_row, piece.rows)[0]]
    lows = [group.column(names.index(first)).statistics for group in groups]
    highs = [group.column(names.index(last)).statistics for group in groups]
    if groups and all(each is not None and each.has_min_max for each in (*lows, *highs)):
        return min(low.min for low in lows), max(high.max for high in highs)
    rows = pq.read_table(path, columns=list({first, last}))
    starts, ends = (rows[name].drop_null().to_pylist() for name in (first, last))
    return (min(starts), max(ends)) if starts and ends else None
