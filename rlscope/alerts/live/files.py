"""Finds the new files of a run in progress, and how far each worker has written. Reads footers, no rows.

A poll costs only what is new: a worker's own file counts the rows it wrote, and the next file names are tried only if
some are missing. A whole directory is listed if that fails, and every _LIST_EVERY polls. Seen files are stored as one
number per worker and table, so days of files take no memory.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow.parquet as pq
from rlscope_otel.schema import TABLES, TIMES

from rlscope.trace.files import is_integer, table_fault
from rlscope.trace.usual_times import Window, usual_window

_TELL_ENDS: Final = ("engine_steps", "train_steps", "weight_updates", "activities", "samples")
"""Tables whose rows show how far a worker has progressed, as in worker_extents."""
_LIST_EVERY: Final = 30
"""Polls between two listings of every directory, for files that no worker file counts."""


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file found for the first time."""

    path: Path
    table: str
    first_ns: int
    """The earliest time in any of its rows."""
    last_ns: int


class _Seen:
    """The sequence numbers seen for one worker and table: all below `below`, and those in `ahead`."""

    def __init__(self) -> None:
        self.below = 1
        self.ahead: set[int] = set()
        self.rows = 0

    def __contains__(self, sequence: int) -> bool:
        return sequence < self.below or sequence in self.ahead

    def add(self, sequence: int) -> None:
        self.ahead.add(sequence)
        while self.below in self.ahead:
            self.ahead.remove(self.below)
            self.below += 1


class _Name(NamedTuple):
    worker_id: str
    sequence: int


class LiveFiles:
    """The files of one run directory."""

    def __init__(self, folder: Path, patience_ns: int) -> None:
        self._folder = folder
        self._patience_ns = patience_ns
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._looks = 0
        self._broken_since_ns: dict[Path, int] = {}
        self._window: Window | None = None
        self.last_ns: dict[str, int] = {}
        """The end of each worker's latest row."""
        self.step_end_ns: int | None = None
        """The end of the latest train step."""
        self.stored_rows = 0
        self.skipped: list[str] = []
        """Files that stayed unreadable, each with the reason."""

    def look(self, workers: Sequence[Mapping[str, object]], now_ns: int) -> list[NewFile]:
        """The new files; an unreadable file is retried for patience_ns."""
        found: list[NewFile] = []
        self._window = usual_window({}, workers)
        list_all = self._looks % _LIST_EVERY == 0
        self._looks += 1
        for table in TABLES:
            lacking = [str(worker["worker_id"]) for worker in workers if self._lacks(worker, table)]
            for worker_id in lacking:
                found += self._next_of(worker_id, table, now_ns)
            if list_all or any(self._lacks(worker, table) for worker in workers):
                found += self._listed(table, now_ns)
        return found

    def is_complete(self, worker: Mapping[str, object]) -> bool:
        """Whether every row that the worker's own file counts was seen."""
        return isinstance(worker.get("rows"), dict) and not any(self._lacks(worker, table) for table in TABLES)

    def most_rows(self, table: str) -> int:
        """The highest number of rows that one worker wrote to a table."""
        return max((seen.rows for (name, _), seen in self._seen.items() if name == table), default=0)

    def _lacks(self, worker: Mapping[str, object], table: str) -> bool:
        rows = worker.get("rows")
        if not isinstance(rows, dict):
            return True
        count = rows.get(table, 0)  # pyright: ignore[reportUnknownVariableType]
        seen = self._seen.get((table, str(worker["worker_id"])))
        return is_integer(count) and count > (seen.rows if seen is not None else 0)

    def _next_of(self, worker_id: str, table: str, now_ns: int) -> list[NewFile]:
        found: list[NewFile] = []
        while True:
            sequence = self._of(worker_id, table).below
            path = self._folder / table / f"{worker_id}-{sequence:06d}.parquet"
            if not path.exists():
                return found
            file = self._opened(path, table, _Name(worker_id, sequence), now_ns)
            if file is not None:
                found.append(file)
            elif sequence == self._of(worker_id, table).below:
                return found

    def _listed(self, table: str, now_ns: int) -> list[NewFile]:
        try:
            names = [entry.name for entry in os.scandir(self._folder / table) if entry.name.endswith(".parquet")]
        except FileNotFoundError:
            return []
        found: list[NewFile] = []
        for file_name in names:
            name = _parsed(file_name)
            if name is not None and name.sequence not in self._of(name.worker_id, table):
                file = self._opened(self._folder / table / file_name, table, name, now_ns)
                found += [file] if file is not None else []
        return found

    def _opened(self, path: Path, table: str, name: _Name, now_ns: int) -> NewFile | None:
        """The file, marked as seen; None if it is not readable (yet) or empty."""
        fault = table_fault(path, table)
        if fault is not None:
            since_ns = self._broken_since_ns.setdefault(path, now_ns)
            if now_ns - since_ns >= self._patience_ns:
                self._of(name.worker_id, table).add(name.sequence)
                self.skipped.append(f"skipped {table}/{path.name}: {fault}")
                del self._broken_since_ns[path]
            return None
        self._broken_since_ns.pop(path, None)
        metadata = pq.read_metadata(path)
        seen = self._of(name.worker_id, table)
        seen.add(name.sequence)
        seen.rows += metadata.num_rows
        self.stored_rows += metadata.num_rows
        if not metadata.num_rows:
            return None
        moments = _moments(path, metadata, table)
        if moments is None or (self._window is not None and not all(map(self._window.holds, moments))):
            self.skipped.append(f"skipped {table}/{path.name}: its times are missing, or far from the rest of the run")
            return None
        first_ns, last_ns = moments
        if table == "train_steps":
            self.step_end_ns = max(last_ns, self.step_end_ns or last_ns)
        if table in _TELL_ENDS:
            self.last_ns[name.worker_id] = max(last_ns, self.last_ns.get(name.worker_id, last_ns))
        return NewFile(path, table, first_ns, last_ns)

    def _of(self, worker_id: str, table: str) -> _Seen:
        return self._seen.setdefault((table, worker_id), _Seen())


def _parsed(file_name: str) -> _Name | None:
    worker_id, _, sequence = file_name.removesuffix(".parquet").rpartition("-")
    return _Name(worker_id, int(sequence)) if worker_id and sequence.isdecimal() else None


def _moments(path: Path, metadata: pq.FileMetaData, table: str) -> tuple[int, int] | None:
    """The first and last time of the rows, from the footer; from the rows if the footer has no statistics.

    None where no row has one.
    """
    first, last = TIMES[table]
    names = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    lows = [group.column(names.index(first)).statistics for group in groups]
    highs = [group.column(names.index(last)).statistics for group in groups]
    if all(each is not None and each.has_min_max for each in (*lows, *highs)):
        return min(low.min for low in lows), max(high.max for high in highs)
    rows = pq.read_table(path, columns=list({first, last}))
    starts, ends = (rows[name].drop_null().to_pylist() for name in (first, last))
    return (min(starts), max(ends)) if starts and ends else None
