"""Finds the new rows of a run in progress, and the progress of each worker.

A look lists each table's folder once and opens only what has changed: journals that have grown, from where they were
read up to (`journals`), and Parquet files that are new. Of a Parquet file only the footer is read here (`pieces`).

Rows are known by their number among all rows of their worker and table. A journal may therefore become a Parquet file
at any moment: what was read from the one is not read again from the other. Files without such numbers, from other
writers, are read once, when they appear.
"""

import os
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from rlscope_otel.schema import TABLES, FileNumber

from rlscope.alerts.live.journals import Journal, NewBatches, ReadRows, read_rows
from rlscope.alerts.live.pieces import Piece, pieces_of
from rlscope.alerts.live.seen import SeenRows
from rlscope.input_file import is_integer
from rlscope.trace.files import SUFFIX, irregularity
from rlscope.trace.footers import UNREADABLE, Footer, read_footer
from rlscope.trace.journals import Batches, SealedBatch, decoded_together, read_batches
from rlscope.trace.ranges import Range
from rlscope.trace.usual_times import Window, usual_window
from rlscope.trace.worker_files import Worker

_TELL_ENDS: Final = ("engine_steps", "train_steps", "weight_updates", "activities", "samples")
"""Tables whose rows show how far a worker has progressed, as in worker_extents."""
_MOST_BYTES: Final = 1 << 26
"""Bytes of journals that are decoded together."""
_PIECE_NS: Final = 300_000_000_000
"""Longest period of batches that are read again together, unless one batch is longer."""


class FoundRows(NamedTuple):
    """New rows of one look."""

    pieces: list[Piece]
    """Rows to read when they are due."""
    read: list[tuple[str, pa.Table]]
    """Rows that were read, each with its table."""


class LiveFiles:
    """Files of one run directory; `tables` names the tables whose rows are read."""

    def __init__(self, folder: Path, patience_ns: int, tables: Collection[str] = ()) -> None:
        self._folder = folder
        self._tables = tables
        self._patience_ns = patience_ns
        self._seen: defaultdict[tuple[str, str], SeenRows] = defaultdict(SeenRows)
        """The rows that were found, by table and worker."""
        self._journals: dict[str, dict[str, Journal]] = {table: {} for table in TABLES}
        """Journals that exist, by table and name."""
        self._done: dict[str, set[str]] = {table: set() for table in TABLES}
        """Parquet files that need not be opened (again), by table."""
        self._broken_since_ns: dict[Path, int] = {}
        self._workers: Mapping[str, Worker] = {}
        self._window: Window | None = None
        self._run_id = ""
        self._now_ns = self._due_ns = 0
        self.last_ns: dict[str, int] = {}
        """The end of each worker's latest row."""
        self.step_end_ns: int | None = None
        """The end of the latest train step."""
        self.skipped: list[str] = []
        """Files that stayed unreadable, each with the reason."""

    def look(
        self, workers: Sequence[Worker], now_ns: int, run_id: str, window: Window | None = None, due_ns: int = 0
    ) -> FoundRows:
        """Return the new rows. What is not readable is retried for patience_ns.

        window: that of these workers. due_ns: rows that end before it are needed at once; the others are read again.
        """
        self._workers = {each.worker_id: each for each in workers}
        self._window, self._run_id, self._now_ns = window or usual_window({}, workers), run_id, now_ns
        self._due_ns = due_ns
        found = FoundRows([], [])
        for table in TABLES:
            files, journals = self._listed(table)
            for name in files:
                found.pieces.extend(self._opened(table, name))
            self._follow(table, journals, found)
        return found

    @property
    def stored_rows(self) -> int:
        """The number of rows that were found."""
        return sum(seen.count for seen in self._seen.values())

    def is_complete(self, worker: Worker) -> bool:
        """Whether every row that the worker's own file counts was seen."""
        rows = worker.rows
        return rows is not None and not any(
            self._lacks(table, worker.worker_id) for table in rows.keys() & TABLES.keys()
        )

    def most_rows(self, table: str) -> int:
        """The highest number of rows that one worker wrote to a table."""
        return max((seen.count for (name, _), seen in self._seen.items() if name == table), default=0)

    def _lacks(self, table: str, worker_id: str) -> bool:
        """Whether a worker wrote rows that were not seen, or possibly did."""
        worker = self._workers.get(worker_id)
        if worker is None or worker.rows is None:
            return True
        count = worker.rows.get(table, 0)
        return bool(count) and is_integer(count) and count > self._seen[table, worker_id].count

    def _listed(self, table: str) -> tuple[list[str], list[tuple[str, int]]]:
        """Return the names of the Parquet files that may be new, and the names and sizes of the journals."""
        files: list[str] = []
        journals: list[tuple[str, int]] = []
        done, still_there = self._done[table], set[str]()
        try:
            with os.scandir(self._folder / table) as entries:
                for entry in entries:
                    name = entry.name
                    if name in done:
                        still_there.add(name)
                    elif name[0] == ".":
                        continue
                    elif name.endswith(SUFFIX):
                        try:
                            journals.append((name, entry.stat(follow_symlinks=False).st_size))
                        except FileNotFoundError:  # A Parquet file has just replaced it.
                            continue
                    elif name.endswith(".parquet"):
                        files.append(name)
        except FileNotFoundError:  # There is no folder (yet).
            return [], []
        except OSError as error:
            self._say_once(f"{table}: cannot be listed: {error.strerror}")
            return [], []
        self._done[table] = still_there
        return sorted(files), journals

    def _opened(self, table: str, name: str) -> Iterator[Piece]:
        """Yield the new rows of a Parquet file and note them as seen. Nothing if it is not readable (yet)."""
        path = self._folder / table / name
        footer = self._footer(path, table)
        if footer is None:
            return
        stamp = footer.stamp
        self._done[table].add(name)
        if stamp is not None and (stamp.run_id, stamp.table) != (self._run_id, table):
            self._say_once(f"skipped {table}/{name}: it belongs to table {stamp.table} of run {stamp.run_id}")
            return
        worker_id = FileNumber.of(path.stem).worker_id
        ranges: Sequence[Range] = [(0, footer.rows)]
        if stamp is None or not footer.spans:
            self._seen[table, worker_id].count += footer.rows
        else:
            worker_id, first_row = stamp.worker_id, footer.spans[0][0]
            new = self._seen[table, worker_id].unseen(*footer.spans[0])
            for rows in new:
                self._seen[table, worker_id].add(*rows)
            ranges = [(first - first_row, end - first_row) for first, end in new]
        try:
            pieces = [piece for rows in ranges for piece in pieces_of(path, table, worker_id, *rows)]
        except UNREADABLE as error:
            self._say_once(f"skipped {table}/{name}: cannot be read: {error}")
            return
        for piece in pieces:
            if piece is None or not self._is_usual(piece.first_ns, piece.last_ns):
                self._skip_times(table, name)
            else:
                self._note_end(table, worker_id, piece.last_ns)
                yield piece

    def _footer(self, path: Path, table: str) -> Footer | None:
        """Return the footer of a file. None if it is not readable (yet), or has just vanished."""
        found = irregularity(path, self._folder) or read_footer(path, table)
        if not isinstance(found, str):
            self._broken_since_ns.pop(path, None)
            return found
        if not os.path.lexists(path):
            return None
        since_ns = self._broken_since_ns.setdefault(path, self._now_ns)
        if self._now_ns - since_ns >= self._patience_ns:
            self.skipped.append(f"skipped {table}/{path.name}: {found}")
            self._done[table].add(path.name)
            del self._broken_since_ns[path]
        return None

    def _is_usual(self, *times_ns: int) -> bool:
        """Whether all of these times can be of the run."""
        return self._window is None or all(map(self._window.holds, times_ns))

    def _follow(self, table: str, listed: Sequence[tuple[str, int]], found: FoundRows) -> None:
        """Read what is new in the journals of a table."""
        known = self._journals[table]
        self._journals[table] = {}
        grown: list[NewBatches] = []
        size_bytes = 0
        for name, listed_bytes in listed:
            journal = self._journals[table][name] = known.get(name) or self._begun(table, name)
            new = self._new_batches(table, name, journal, listed_bytes)
            if new is not None and table in self._tables:
                grown.append(new)
                size_bytes += len(new.read.messages)
            if size_bytes > _MOST_BYTES:
                self._decode(table, grown, found)
                grown, size_bytes = [], 0
        self._decode(table, grown, found)

    def _begun(self, table: str, name: str) -> Journal:
        """Return a journal that was not read before."""
        path = self._folder / table / name
        journal = Journal(path, FileNumber.of(path.stem).worker_id)
        why = irregularity(path, self._folder)
        if why is not None and os.path.lexists(path):
            self._give_up(table, name, journal, why)
        return journal

    def _new_batches(self, table: str, name: str, journal: Journal, listed_bytes: int) -> NewBatches | None:
        """Return the new batches of a journal, and note their rows as seen."""
        is_as_before = listed_bytes == journal.size_bytes and journal.stuck_ns is None
        if journal.fault is not None or (is_as_before and not self._lacks(table, journal.worker_id)):
            return None
        before = 0 if journal.place is None else journal.place.end
        try:
            read = self._read(table, journal)
        except FileNotFoundError:
            return None
        self._note_fault(table, name, journal, read)
        if isinstance(read, str) or not read.sealed:
            return None
        seen = self._seen[table, journal.worker_id]
        new = tuple(batch for batch in read.sealed if self._is_new(table, name, seen, batch))
        if len(new) < len(read.sealed):
            first = read.sealed[0].start
            own = b"".join(read.messages[batch.start - first : batch.end - first] for batch in new)
            read = read._replace(sealed=new, messages=memoryview(own))
        return NewBatches(journal, read, before) if new else None

    def _read(self, table: str, journal: Journal) -> Batches | str:
        """Return the new batches of a journal, or why it cannot be read. Raises FileNotFoundError if it is gone."""
        read = read_batches(journal.path, table, journal.place)
        if isinstance(read, str):
            return read
        stamp = read.place.stamp
        if (stamp.run_id, stamp.table) != (self._run_id, table):
            return f"it belongs to table {stamp.table} of run {stamp.run_id}"
        journal.worker_id = stamp.worker_id
        journal.place, journal.size_bytes = read.place, read.place.end + read.rest_bytes
        return read

    def _is_new(self, table: str, name: str, seen: SeenRows, batch: SealedBatch) -> bool:
        """Whether the rows of a batch were not seen. They are noted as seen."""
        first, end = batch.first_row, batch.first_row + batch.rows
        unseen = seen.unseen(first, end) if batch.rows else ()
        if unseen == [(first, end)]:
            seen.add(first, end)
            return True
        if unseen:
            self._say_once(f"{table}/{name}: rows {first:,} to {end - 1:,} are left out, some of them were read before")
        return False

    def _note_fault(self, table: str, name: str, journal: Journal, read: Batches | str) -> None:
        """Give up a journal that has been unreadable for patience_ns, if rows are missing."""
        why = read if isinstance(read, str) else None
        if not isinstance(read, str) and read.rest_bytes:
            why = f"no whole batch at byte {read.place.end:,}: incomplete or damaged"
        if why is None:
            journal.stuck_ns = None
        elif journal.stuck_ns is None or (not isinstance(read, str) and read.sealed):
            journal.stuck_ns = self._now_ns
        # A worker that was killed may leave part of a batch, whose rows nobody counts.
        elif self._now_ns - journal.stuck_ns >= self._patience_ns and self._lacks(table, journal.worker_id):
            self._give_up(table, name, journal, why)

    def _give_up(self, table: str, name: str, journal: Journal, why: str) -> None:
        journal.fault = why
        self._say_once(f"skipped {table}/{name}: {why}")

    def _decode(self, table: str, grown: Sequence[NewBatches], found: FoundRows) -> None:
        """Decode new batches of journals, and note when their rows end."""
        for some, rows in decoded_together(table, [new.read for new in grown]) if grown else ():
            own = grown[some]
            if isinstance(rows, str):
                for new in own:
                    self._give_up(table, new.journal.path.name, new.journal, rows)
                continue
            read = read_rows(own, rows, table)
            can_be = self._can_be(own, read)
            first_batches = np.cumsum([0, *(len(new.read.sealed) for new in own[:-1])])
            lasts_ns = np.maximum.reduceat(np.where(can_be, read.last_ns, 0), first_batches)
            for new, last_ns in zip(own, lasts_ns.tolist(), strict=True):
                if last_ns:
                    self._note_end(table, new.journal.worker_id, last_ns)
            if lasts_ns.max() < self._due_ns:
                found.read.append((table, read.without(read.is_whole & ~can_be)))
            else:
                found.pieces.extend(_pieces(own, read, can_be))

    def _can_be(self, found: Sequence[NewBatches], read: ReadRows) -> NDArray[np.bool_]:
        """Return whether a batch has rows with plausible times. Names the journals of batches whose times are not."""
        if self._window is None:
            return read.is_whole
        first_ns, last_ns = self._window.first_ns, self._window.last_ns
        can_be = (read.first_ns >= first_ns) & (read.last_ns <= last_ns)
        can_be &= (read.first_ns <= last_ns) & (read.last_ns >= first_ns)
        if not can_be[read.is_whole].all():
            journals = [each.journal for each in found for _ in each.read.sealed]
            for place in np.flatnonzero(read.is_whole & ~can_be):
                self._skip_times(read.table, journals[place].path.name)
        return can_be & read.is_whole

    def _skip_times(self, table: str, name: str) -> None:
        """Name a file with rows that are skipped because of their times."""
        self._say_once(f"skipped {table}/{name}: its times are missing, or far from the rest of the run")

    def _note_end(self, table: str, worker_id: str, last_ns: int) -> None:
        """Note that rows of a worker end at this time."""
        if table == "train_steps":
            self.step_end_ns = max(last_ns, self.step_end_ns or last_ns)
        if table in _TELL_ENDS:
            self.last_ns[worker_id] = max(last_ns, self.last_ns.get(worker_id, last_ns))

    def _say_once(self, problem: str) -> None:
        if problem not in self.skipped:
            self.skipped.append(problem)


def _pieces(found: Sequence[NewBatches], read: ReadRows, chosen: NDArray[np.bool_]) -> Iterator[Piece]:
    """Yield the chosen batches as pieces to be read again: those of one journal together that follow each other."""
    batches = [(each, batch) for each in found for batch in each.read.sealed]
    counts = np.where(chosen, read.counts, 0)
    before = np.cumsum(counts) - counts

    def of_one_piece(index: int) -> tuple[int, int, int]:
        new, batch = batches[index]
        return id(new.journal), int(read.first_ns[index]) // _PIECE_NS, batch.first_row - int(before[index])

    for _, group in groupby(np.flatnonzero(chosen).tolist(), of_one_piece):
        indices = list(group)
        (new, first), (_, last) = batches[indices[0]], batches[indices[-1]]
        yield Piece(
            new.journal.path,
            read.table,
            new.journal.worker_id,
            int(read.first_ns[indices].min()),
            int(read.last_ns[indices].max()),
            last.first_row + last.rows - first.first_row,
            first.first_row,
            place=new.read.place._replace(end=new.offset + first.start, next_row=first.first_row),
        )
