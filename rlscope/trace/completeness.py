"""Compares the files of a run with what its recorder says it wrote: rows, files and checksums by worker and table.

A worker file states these in `written`. The footer of each data file names its worker, table and number, and each page
has a checksum. Older recorders state only the number of rows, and other programs state nothing. A merged file stands
for the numbers of all files that were merged into it.
"""

import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Final, Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from rlscope_otel.schema import FileNumbers, chained_checksum, joined_checksum

from rlscope.document import computed_field
from rlscope.trace.files import SkippedFile, StoredFile, TableFiles, is_integer, table_of
from rlscope.trace.footers import Merged
from rlscope.trace.segments import is_as_named

State = Literal["complete", "incomplete", "unknown"]
Kind = Literal["missing", "beyond", "changed", "moved"]
_FILES_NAMED: Final = 3
_COUNTS: Final = ("rows", "last_file", "checksum")
"""Keys of a table's entry in `written`."""


@dataclass(frozen=True, slots=True)
class RowGap:
    """A difference between the rows that a worker wrote to a table and the rows in its files."""

    kind: Kind
    """missing: fewer rows than written. beyond: more rows. changed: different content. moved: a file was renamed."""
    table: str
    """Name of the table."""
    worker_id: str
    """Identifier of the worker."""
    rows: int
    """Number of missing or surplus rows; for changed and moved files, the number of their rows."""
    gpu_s: float | None
    """Maximum GPU-seconds of the worker that are affected; None if no time is known."""
    detail: str
    """The gap as a sentence."""

    def __str__(self) -> str:
        said = f"{self.table}: {self.detail}"
        return said if self.gpu_s is None else f"{said}; up to {self.gpu_s:,.3g} GPU-s"


@dataclass(frozen=True, slots=True)
class Completeness:
    """Whether every row that the workers wrote was read."""

    state: State
    """complete, incomplete, or unknown. Unknown means that the row count of some worker was not recorded."""
    gaps: tuple[RowGap, ...] = ()
    """Differences by table and worker."""
    uncounted_workers: tuple[str, ...] = ()
    """Workers for which no worker file states the number of rows."""
    is_verified: bool = False
    """Whether the checksums of all files were compared and agree."""

    @computed_field
    @property
    def missing_rows(self) -> int:
        """Number of rows that were written but are not in any file."""
        return sum(gap.rows for gap in self.gaps if gap.kind == "missing")

    @property
    def concerned_rows(self) -> int:
        """Number of rows that are missing, surplus, changed or moved."""
        return sum(gap.rows for gap in self.gaps)


NOT_KNOWN: Final = Completeness("unknown")


class Checked(NamedTuple):
    """The usable files of each table, and the result of the check."""

    tables: dict[str, TableFiles]
    skipped: list[SkippedFile]
    completeness: Completeness
    unsure: frozenset[str]
    """Tables that may contain duplicate rows."""


class _Stated(NamedTuple):
    """A worker's own count of what it wrote to a table; an old recorder states no last file and no checksum (None)."""

    rows: int
    last_file: int | None
    checksum: int | None
    merged: Mapping[str, object] = {}
    """CRC-32 of each merged file, by `FIRST_LAST`."""


_Files = dict[FileNumbers, StoredFile]
"""Files of one worker and table, by the file numbers that they stand for."""


def check_files(
    folder: Path, run_id: str, workers: Sequence[Mapping[str, object]], tables: Mapping[str, TableFiles]
) -> Checked:
    """Compare the readable files of every table with the workers' counts. Every file that has a checksum is read.

    Raises FileNotFoundError if a file has vanished.
    """
    checker = _Checker(folder, run_id, workers)
    kept = {table: checker.check(table, files) for table, files in tables.items()}
    return Checked(kept, checker.skipped, checker.completeness(), frozenset(checker.unsure))


class _Checker:
    """Collects the differences, table by table."""

    def __init__(self, folder: Path, run_id: str, workers: Sequence[Mapping[str, object]]) -> None:
        self.skipped: list[SkippedFile] = []
        self.unsure: set[str] = set()
        self._folder = folder
        self._run_id = run_id
        self._workers = {str(worker["worker_id"]): worker for worker in workers}
        self._gaps: list[RowGap] = []
        self._is_verified = True
        self._is_counted = any(map(_states_rows, workers))
        self._strangers: set[str] = set()
        self._changed: set[Path] = set()
        """Compacted files whose checksum is wrong although every page is readable."""

    def check(self, table: str, files: TableFiles) -> TableFiles:
        """Return the table without files that are damaged or belong elsewhere."""
        owned = self._owned(table, self._without_damaged_compacted(table, files))
        kept: list[StoredFile] = []
        for worker_id in sorted({*owned, *self._workers}):
            kept += self._of_worker(table, worker_id, owned.get(worker_id, {}))
        # Keep the order of the files, so that a faultless run is read in the same order as without this check.
        remaining = {file.path for file in kept}
        return table_of(tuple(file for file in files.files if file.path in remaining))

    def completeness(self) -> Completeness:
        """Return the result over all tables."""
        silent = [worker_id for worker_id, worker in self._workers.items() if not _states_rows(worker)]
        uncounted = tuple(sorted({*silent, *self._strangers}))
        is_unknown = bool(uncounted) or not self._workers
        differs = any(gap.kind != "moved" for gap in self._gaps)
        state: State = "incomplete" if differs else "unknown" if is_unknown else "complete"
        return Completeness(state, tuple(self._gaps), uncounted, self._is_verified and state == "complete")

    def _without_damaged_compacted(self, table: str, files: TableFiles) -> list[StoredFile]:
        """Return the files without compacted ones that have damaged pages or belong to another run."""
        left_out: set[Path] = set()
        compacted: dict[Path, list[StoredFile]] = {}
        for file in files.files:
            if file.segment is not None:
                compacted.setdefault(file.path, []).append(file)
        for path, own in compacted.items():
            why = self._compacted_fault(own)
            if why is not None:
                self._skip(own[0], why, sum(file.footer.rows for file in own))
                left_out.add(path)
                self.unsure.add(table)
        return [file for file in files.files if file.path not in left_out]

    def _compacted_fault(self, own: Sequence[StoredFile]) -> str | None:
        owners = [file.segment.owner for file in own if file.segment is not None]
        is_ours = any(run_id in self._run_ids(worker_id) for run_id, worker_id in owners)
        for run_id, worker_id in owners:
            # If a worker's own file is lost, its rows remain and are reported as rows of an uncounted worker.
            may_be = is_ours and worker_id not in self._workers
            if run_id and run_id not in self._run_ids(worker_id) and not may_be:
                return f"belongs to run {run_id!r} according to its footer"
        try:
            if is_as_named(own[0].path):
                return None
        except FileNotFoundError:
            raise
        except OSError as error:
            return f"cannot be read: {error}"
        why = page_fault(own[0].path)
        self._changed |= {own[0].path} if why is None else set()
        return None if why is None else f"damaged after it was written: {why}"

    def _owned(self, table: str, files: Sequence[StoredFile]) -> dict[str, _Files]:
        """Return the files by worker and number, from the footer, or from the file name if the footer has none."""
        owned: dict[str, _Files] = {}
        misplaced: list[tuple[StoredFile, FileNumbers]] = []
        for file in files:
            named, stamp = owner_of(file.path), file.footer.stamp
            if file.segment is not None:
                owned.setdefault(file.segment.numbers.worker_id, {})[file.segment.numbers] = file
            elif stamp is not None and (stamp.table != table or stamp.run_id not in self._run_ids(stamp.worker_id)):
                self._skip(file, f"belongs to {stamp.table} of run {stamp.run_id!r} according to its footer")
            elif stamp is not None and stamp.numbers != named:
                misplaced.append((file, stamp.numbers))
            else:
                owned.setdefault(named.worker_id, {})[named] = file
        for file, numbers in misplaced:
            if numbers in owned.get(numbers.worker_id, {}):
                self._skip(file, f"a copy of {numbers.name} according to its footer")
                continue
            owned.setdefault(numbers.worker_id, {})[numbers] = file
            detail = f"{file.path.name} was renamed from {numbers.name}; it is read under its original name"
            self._gaps.append(RowGap("moved", table, numbers.worker_id, file.footer.rows, None, detail))
        return owned

    def _run_ids(self, worker_id: str) -> tuple[object, ...]:
        """Return the runs that a worker's files may name: folders of several nodes may have been copied into one."""
        return self._run_id, self._workers.get(worker_id, {}).get("run_id")

    def _skip(self, file: StoredFile, why: str, rows: int | None = None) -> None:
        name, rows = file.path.relative_to(self._folder).as_posix(), file.footer.rows if rows is None else rows
        self.skipped.append(SkippedFile(name, f"{why}; its {rows:,} rows are left out"))

    def _of_worker(self, table: str, worker_id: str, files: _Files) -> list[StoredFile]:
        """Return the usable files of one worker."""
        stated = _stated(self._workers.get(worker_id, {}), table)
        if stated is None:
            self._is_verified = False
            if files:
                self._strangers.add(worker_id)
                # If no worker counts its rows, identical rows may be intended.
                self.unsure |= {table} if self._is_counted else set()
            return list(files.values())
        if stated.last_file is None or stated.checksum is None:
            self._is_verified = False
        else:
            files = self._verified(table, worker_id, files, stated)
        self._count(table, worker_id, files, stated)
        return list(files.values())

    def _verified(self, table: str, worker_id: str, files: _Files, stated: _Stated) -> _Files:
        """Return the files whose pages are undamaged."""
        last_file = stated.last_file or 0
        newer = self._merged_since(worker_id, files, stated).keys()
        if newer:
            # The worker file does not state their checksums yet, but each page has one.
            self._is_verified = False
            sound = self._without_damaged(table, {numbers: files[numbers] for numbers in newer})
            files = {numbers: file for numbers, file in files.items() if numbers not in newer} | sound
        later = {numbers: file for numbers, file in files.items() if numbers.last > last_file}
        counted = {numbers: file for numbers, file in files.items() if numbers.last <= last_file}
        is_changed = any(file.path in self._changed for file in counted.values())
        if not is_changed and _chain(counted, stated.merged, newer) == stated.checksum:
            return counted | self._without_damaged(table, later)
        sound = self._without_damaged(table, counted)
        if sound.keys() == counted.keys() and not _missing(counted, last_file):
            rows = sum(file.footer.rows for file in counted.values())
            detail = f"the files of {worker_id} do not match its checksum ({rows:,} rows)"
            self._gaps.append(self._gap("changed", table, worker_id, rows, counted, detail))
        self.unsure.add(table)
        return sound | self._without_damaged(table, later)

    def _merged_since(self, worker_id: str, files: _Files, stated: _Stated) -> dict[FileNumbers, Merged]:
        """Return the files that a worker, still recording, merged after it wrote the worker file that was read."""
        stamps = {numbers: file.footer.stamp for numbers, file in files.items() if file.segment is None}
        is_recording = self._workers[worker_id].get("stopped_ns") is None
        return {
            numbers: stamp.merged
            for numbers, stamp in stamps.items()
            if is_recording and stamp is not None and stamp.merged is not None and numbers.range not in stated.merged
        }

    def _without_damaged(self, table: str, files: _Files) -> _Files:
        sound: _Files = {}
        for numbers, file in files.items():
            # `_compacted_fault` has already checked the pages of compacted files.
            why = page_fault(file.path) if file.segment is None else None
            if why is None:
                sound[numbers] = file
            else:
                self._skip(file, f"damaged after it was written: {why}")
        return sound

    def _count(self, table: str, worker_id: str, files: _Files, stated: _Stated) -> None:
        """Compare the number of rows. A killed worker may have written a flush that it did not count."""
        last = stated.last_file
        found = sum(file.footer.rows for numbers, file in files.items() if last is None or numbers.last <= last)
        for numbers, merged in self._merged_since(worker_id, files, stated).items():
            found += 0 if last is None or numbers.last <= last else _rows_until(merged, last, stated.rows - found)
        later = sum(file.footer.rows for file in files.values()) - found
        has_stopped = self._workers[worker_id].get("stopped_ns") is not None
        if found < stated.rows:
            detail = f"{stated.rows - found:,} of the {stated.rows:,} rows that {worker_id} wrote are missing"
            detail += _named(_missing(files, last or max((numbers.last for numbers in files), default=0)))
            self._gaps.append(self._gap("missing", table, worker_id, stated.rows - found, files, detail))
        beyond = (found - stated.rows if found > stated.rows else 0) + later
        if beyond:
            self.unsure.add(table)
            if has_stopped or (last is not None and found > stated.rows):
                detail = f"{beyond:,} more rows than the {stated.rows:,} that {worker_id} wrote"
                self._gaps.append(self._gap("beyond", table, worker_id, beyond, files, detail))

    def _gap(
        self, kind: Kind, table: str, worker_id: str, rows: int, files: Mapping[FileNumbers, StoredFile], detail: str
    ) -> RowGap:
        gpus = self._workers[worker_id].get("gpu_count")
        length_ns = _gap_ns(files, self._workers[worker_id], kind)
        gpu_s = gpus * length_ns / 1e9 if isinstance(gpus, int) and gpus and length_ns is not None else None
        return RowGap(kind, table, worker_id, rows, gpu_s, detail)


def owner_of(path: Path) -> FileNumbers:
    """Return the worker and the numbers in a file's name; number 0 if it has none."""
    return FileNumbers.of(path.stem) or FileNumbers(path.stem, 0, 0)


def page_fault(path: Path) -> str | None:
    """Return why the pages of a file cannot be trusted; None if each matches its checksum or has none.

    Raises FileNotFoundError if the file has vanished.
    """
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for _ in file.iter_batches():
                pass
    except FileNotFoundError:
        raise
    except (OSError, ValueError, MemoryError, pa.ArrowException) as error:
        return str(error)
    return None


def _rows_until(merged: Merged, last: int, expected: int) -> int:
    """Return how many rows of a merged file come from files up to number `last`.

    A part that spans `last` contributes as many rows as are expected, within its size.
    """
    least = sum(rows for number, rows in merged.parts if number <= last)
    across = next((rows for number, rows in merged.parts if number > last), 0) if merged.first <= last else 0
    is_at_an_end = last in (number for number, _ in merged.parts)
    return least if is_at_an_end else min(max(expected, least), least + across)


def _chain(files: _Files, merged: Mapping[str, object], unstated: Collection[FileNumbers]) -> int | None:
    """Return the chained checksum of flushed files; None if a file cannot be read or a merged file has changed.

    merged: the CRC-32 of each merged file, from the worker file. unstated: merged files that it does not list yet.
    """
    checksum = 0
    try:
        for numbers in sorted(files):
            file = files[numbers]
            if file.segment is not None:
                checksum = joined_checksum(checksum, file.segment.checksum, file.segment.files)
                continue
            crc32, stamp = zlib.crc32(file.path.read_bytes()), file.footer.stamp
            if stamp is None or stamp.merged is None:
                checksum = chained_checksum(checksum, numbers.last, crc32)
            elif numbers in unstated or merged.get(numbers.range) == crc32:
                checksum = joined_checksum(checksum, stamp.merged.checksum, stamp.merged.files)
            else:
                return None
    except OSError:
        return None
    return checksum


def _states_rows(worker: Mapping[str, object]) -> bool:
    return isinstance(worker.get("written"), dict) or bool(worker.get("rows"))


def _stated(worker: Mapping[str, object], table: str) -> _Stated | None:
    """Return a worker file's counts for a table; None if it has none or they are invalid."""
    written, rows = worker.get("written"), worker.get("rows")
    if isinstance(written, dict):
        own = written.get(table, {"rows": 0, "last_file": 0, "checksum": 0})
        own = own if isinstance(own, dict) else {}
        known = [number for number in map(own.get, _COUNTS) if is_integer(number) and number >= 0]
        if len(known) < len(_COUNTS) or known[1] >= 1 << 31:
            return None
        merged = own.get("merged")
        return _Stated(*known[: len(_COUNTS)], merged=merged if isinstance(merged, dict) else {})
    if isinstance(rows, dict) and rows:
        count = rows.get(table, 0)
        return _Stated(count, None, None) if is_integer(count) and count >= 0 else None
    return None


def _missing(files: Mapping[FileNumbers, StoredFile], last_file: int) -> list[tuple[int, int]]:
    """Return the ranges (first, last) of file numbers up to last_file that no file stands for."""
    missing: list[tuple[int, int]] = []
    expected = 1
    for numbers in sorted(files):
        if expected < numbers.first and expected <= last_file:
            missing.append((expected, min(numbers.first - 1, last_file)))
        expected = max(expected, numbers.last + 1)
    return [*missing, (expected, last_file)] if expected <= last_file else missing


def _named(missing: Sequence[tuple[int, int]]) -> str:
    """Return the numbers of missing files in words."""
    if not missing:
        return ""
    count = sum(last - first + 1 for first, last in missing)
    numbers = chain.from_iterable(range(first, last + 1) for first, last in missing)
    shown = ", ".join(f"{number:06d}" for number in islice(numbers, _FILES_NAMED))
    more = f" and {count - _FILES_NAMED:,} more" if count > _FILES_NAMED else ""
    return f" ({'file' if count == 1 else 'files'} {shown}{more})"


def _gap_ns(files: Mapping[FileNumbers, StoredFile], worker: Mapping[str, object], kind: Kind) -> int | None:
    """Return the duration in which missing rows can lie; for other kinds, the duration that the files cover.

    None if the worker file states no valid start and end.
    """
    start, ends = worker.get("started_ns"), (worker.get("stopped_ns"), worker.get("last_flush_ns"))
    end = next((each for each in ends if isinstance(each, int)), None)
    if not isinstance(start, int) or end is None or end < start:
        return None
    times = sorted(_times(files))
    if kind != "missing":
        return times[-1][1] - times[0][0] if times else end - start
    holes = list(_holes(files, start, end))
    return sum(holes) if holes else end - start


def _times(files: Mapping[FileNumbers, StoredFile]) -> Iterator[tuple[int, int]]:
    for file in files.values():
        if file.footer.first_ns is not None and file.footer.last_ns is not None:
            yield file.footer.first_ns, file.footer.last_ns


def _holes(files: Mapping[FileNumbers, StoredFile], start: int, end: int) -> Iterator[int]:
    """Yield the time, in ns, between the files on either side of each gap in the numbers, and after the last file."""
    before, last_number = start, 0
    for numbers in sorted(files):
        footer = files[numbers].footer
        if footer.first_ns is None or footer.last_ns is None:
            continue
        if numbers.first > last_number + 1:
            yield max(0, footer.first_ns - before)
        before, last_number = max(before, footer.last_ns), numbers.last
    if end > before:
        yield end - before
