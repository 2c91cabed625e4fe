"""Compares the files of a run with what its recorder says it wrote: rows and checksums by worker and table.

A worker file states the number of rows of each table in `rows`, and the checksum of each closed file in `closed`. The
rows of journals and closed files have numbers, so missing rows are named exactly. Other programs may state the number
of rows alone, or nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Final, Literal

from rlscope_otel.schema import FileNumber

from rlscope.document import computed_field
from rlscope.input_file import is_integer
from rlscope.trace.files import SkippedFile, StoredFile, TableFiles, file_crc32, page_fault, table_of
from rlscope.trace.ranges import holes_in
from rlscope.trace.worker_files import Worker

State = Literal["complete", "incomplete", "unknown"]
Kind = Literal["missing", "beyond", "changed"]
_SHOWN: Final = 3
"""Ranges of missing rows that a message names."""


@dataclass(frozen=True, slots=True)
class RowGap:
    """A difference between the rows that a worker wrote to a table and the rows in its files."""

    kind: Kind
    """missing: fewer rows than written. beyond: more rows. changed: different content."""
    table: str
    """Name of the table."""
    worker_id: str
    """Identifier of the worker."""
    rows: int
    """Number of missing or surplus rows; for a changed file, the number of its rows."""
    detail: str
    """The gap as a sentence."""

    def __str__(self) -> str:
        return f"{self.table}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Completeness:
    """Whether every row that the workers wrote was read."""

    state: State
    """complete, incomplete, or unknown. Unknown means that the row count of some worker was not recorded."""
    gaps: tuple[RowGap, ...] = ()
    """Differences by table and worker."""
    uncounted_workers: tuple[str, ...] = ()
    """Workers for which no worker file states the number of rows."""

    @computed_field
    @property
    def missing_rows(self) -> int:
        """Number of rows that were written but are not in any file."""
        return sum(gap.rows for gap in self.gaps if gap.kind == "missing")

    @property
    def concerned_rows(self) -> int:
        """Number of rows that are missing, surplus or changed."""
        return sum(gap.rows for gap in self.gaps)


NOT_KNOWN: Final = Completeness("unknown")


_Files = dict[FileNumber, StoredFile]
"""Files of one worker and table, by their number."""


class FileCheck:
    """Compares the readable files with the workers' counts, table by table."""

    def __init__(self, folder: Path, run_id: str, workers: Sequence[Worker]) -> None:
        self.skipped: list[SkippedFile] = []
        self.unsure: set[str] = set()
        """Tables that may contain duplicate rows."""
        self._folder = folder
        self._run_id = run_id
        self._workers = {worker.worker_id: worker for worker in workers}
        self._gaps: list[RowGap] = []
        self._is_counted = any(map(_states_rows, workers))
        self._strangers: set[str] = set()

    def check(self, table: str, files: TableFiles) -> TableFiles:
        """Return the table without files that are damaged or belong elsewhere. Files that have a checksum are read."""
        owned = self._owned(table, files.files)
        kept: list[StoredFile] = []
        for worker_id in sorted({*owned, *self._workers}):
            kept += self._of_worker(table, worker_id, owned.get(worker_id, {}))
        # Keep the order of the files, so that a faultless run is read in the same order as without this check.
        remaining = {file.path: file for file in kept}
        return table_of(tuple(remaining[file.path] for file in files.files if file.path in remaining))

    def completeness(self) -> Completeness:
        """Return the result over all tables."""
        silent = [worker_id for worker_id, worker in self._workers.items() if not _states_rows(worker)]
        uncounted = tuple(sorted({*silent, *self._strangers}))
        is_unknown = bool(uncounted) or not self._workers
        state: State = "incomplete" if self._gaps else "unknown" if is_unknown else "complete"
        return Completeness(state, tuple(self._gaps), uncounted)

    def _owned(self, table: str, files: Sequence[StoredFile]) -> dict[str, _Files]:
        """Return the files by worker and number. Each number has one file."""
        owned: dict[str, _Files] = {}
        # A copy has the number of the file that it was copied from, but not its name.
        for file in sorted(files, key=lambda each: each.owner != FileNumber.of(each.path.stem)):
            owner, stamp = file.owner, file.footer.stamp
            own = owned.setdefault(owner.worker_id, {})
            if stamp is not None and (stamp.table != table or stamp.run_id not in self._run_ids(stamp.worker_id)):
                place = "head" if file.is_journal else "footer"
                self._skip(file, f"belongs to {stamp.table} of run {stamp.run_id!r} according to its {place}")
            elif owner in own:
                self._skip(file, f"a copy of {own[owner].path.name}")
            else:
                own[owner] = file
        return owned

    def _run_ids(self, worker_id: str) -> tuple[object, ...]:
        """Return the runs that a worker's files may name: folders of several nodes may have been copied into one."""
        worker = self._workers.get(worker_id)
        return self._run_id, None if worker is None else worker.run_id

    def _skip(self, file: StoredFile, why: str) -> None:
        name = file.path.relative_to(self._folder).as_posix()
        self.skipped.append(SkippedFile(name, f"{why}; its {file.footer.rows:,} rows are left out"))

    def _of_worker(self, table: str, worker_id: str, files: _Files) -> list[StoredFile]:
        """Return the usable files of one worker."""
        stated = _stated(self._workers.get(worker_id), table)
        if stated is None:
            self._name_rests(list(files.values()))
            if files:
                self._strangers.add(worker_id)
                # If no worker counts its rows, identical rows may be intended.
                self.unsure |= {table} if self._is_counted else set()
            return list(files.values())
        rows, closed = stated
        sound = self._unchanged(table, worker_id, files, closed) if closed is not None else list(files.values())
        sound = self._unrepeated(sound)
        self._count(table, worker_id, sound, rows)
        return sound

    def _count(self, table: str, worker_id: str, sound: Sequence[StoredFile], stated_rows: int) -> None:
        """Compare the number of rows. A worker may have written rows that it did not count before it was killed."""
        end = max((file.footer.spans[-1][1] for file in sound if file.footer.spans), default=0)
        found, holes = sum(file.footer.rows for file in sound), list[range]()
        if all(file.footer.spans or not file.footer.rows for file in sound):
            holes = [
                range(*each) for each in holes_in(chain(*(file.footer.spans for file in sound)), max(stated_rows, end))
            ]
            missing, beyond = sum(map(len, holes)), max(0, end - stated_rows)
        else:
            # A file that another program wrote anew has no row numbers, so it may repeat rows of the others.
            missing, beyond = max(0, stated_rows - found), max(0, found - stated_rows)
            self.unsure |= {table} if beyond else set()
        if missing:
            detail = f"{missing:,} of the {max(stated_rows, end):,} rows that {worker_id} wrote are missing"
            self._gaps.append(RowGap("missing", table, worker_id, missing, detail + _named_rows(holes)))
            self._name_rests(sound)
        if beyond and self._workers[worker_id].stopped_ns is not None:
            detail = f"{beyond:,} more rows than the {stated_rows:,} that {worker_id} wrote"
            self._gaps.append(RowGap("beyond", table, worker_id, beyond, detail))

    def _unchanged(self, table: str, worker_id: str, files: _Files, closed: Mapping[str, object]) -> list[StoredFile]:
        """Return the files without damaged ones; report those that differ from the worker's checksum."""
        sound: list[StoredFile] = []
        for owner, file in sorted(files.items()):
            crc32 = closed.get(str(owner.number))
            if not file.is_journal and crc32 != file_crc32(file.path):
                why = page_fault(file.path)
                if why is not None:
                    self._skip(file, f"damaged after it was written: {why}")
                    continue
                if crc32 is not None:
                    rows = file.footer.rows
                    detail = f"{file.path.name} does not match the checksum of {worker_id} ({rows:,} rows)"
                    self._gaps.append(RowGap("changed", table, worker_id, rows, detail))
                    self.unsure.add(table)
                    # Whoever changed the rows kept what the footer said of their numbers.
                    file = replace(file, footer=replace(file.footer, spans=()))
            sound.append(file)
        return sound

    def _unrepeated(self, files: Sequence[StoredFile]) -> list[StoredFile]:
        """Return the files without those whose first row is also in an earlier one, in the order of their rows.

        A journal may end with rows that are in the next file: its recorder could neither confirm nor remove them.
        """
        kept: list[StoredFile] = []
        end = 0
        for file in sorted(files, key=lambda each: each.footer.spans[:1]):
            first = file.footer.spans[0][0] if file.footer.spans else end
            if first < end and kept[-1].is_journal and kept[-1].footer.spans[-1][0] < first:
                kept[-1], end = _cut(kept[-1], first), first
            if first < end:
                self._skip(file, f"repeats rows from {first:,} on, which are in another file")
                continue
            end = file.footer.spans[-1][1] if file.footer.spans else end
            kept.append(file)
        return kept

    def _name_rests(self, files: Sequence[StoredFile]) -> None:
        """Name the journals that end with something other than a whole batch."""
        for file in files:
            if file.footer.rest_bytes:
                start = f"row {file.footer.spans[-1][1]:,} on" if file.footer.spans else "its start on"
                name = file.path.relative_to(self._folder).as_posix()
                why = f"incomplete or damaged from {start}; its last {file.footer.rest_bytes:,} bytes are left out"
                self.skipped.append(SkippedFile(name, why))


def _cut(journal: StoredFile, end: int) -> StoredFile:
    """Return a journal without its rows from a number in its last range on."""
    footer = journal.footer
    first, after = footer.spans[-1]
    spans = (*footer.spans[:-1], (first, end))
    return replace(journal, footer=replace(footer, rows=footer.rows - (after - end), spans=spans))


def _named_rows(holes: Sequence[range]) -> str:
    """Return the numbers of missing rows in words."""
    if not holes:
        return ""
    shown = ", ".join(f"{hole[0]:,} to {hole[-1]:,}" if len(hole) > 1 else f"{hole[0]:,}" for hole in holes[:_SHOWN])
    more = f" and {sum(map(len, holes[_SHOWN:])):,} more" if len(holes) > _SHOWN else ""
    return f" ({'row' if sum(map(len, holes)) == 1 else 'rows'} {shown}{more})"


def _states_rows(worker: Worker) -> bool:
    return worker.closed is not None or bool(worker.rows)


def _stated(worker: Worker | None, table: str) -> tuple[int, Mapping[str, object] | None] | None:
    """Return how many rows a worker says that it wrote to a table; None if it does not, or if that is no count.

    With it, the CRC-32 of each closed file by number; None if the worker states no checksums.
    """
    if worker is None or worker.rows is None or not _states_rows(worker):
        return None
    count, checksums = worker.rows.get(table, 0), None if worker.closed is None else worker.closed.get(table, {})
    if not is_integer(count) or count < 0:
        return None
    return count, checksums if isinstance(checksums, dict) else None
