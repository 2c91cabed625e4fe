"""Compacts a run: rewrites many small files of a table as a few large ones, with the same rows in the same order.

Each compacted file is complete and has its final name before the files that it replaces are removed. A reader that sees
both uses the compacted one (`segments.py`). A compaction can therefore be killed at any moment; the next one removes
its leftovers.
"""

import os
import shutil
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from filelock import FileLock, Timeout
from rlscope_otel.schema import TABLES

from rlscope.errors import ArgumentError, OutputError, RlscopeError, UnreadableDataError, VanishedFileError
from rlscope.trace.closed_files import ClosedFiles
from rlscope.trace.compacted_file import PART_PREFIX, CompactedFile, CompactionSource, fingerprint
from rlscope.trace.files import (
    RUN_FILE,
    SkippedFile,
    StoredFile,
    list_table,
    read_manifest,
    read_workers,
    run_folder,
    stored_file,
)
from rlscope.trace.remote import is_remote, shown_address
from rlscope.trace.segments import is_as_named, is_compacted_name, superfluous

TARGET_BYTES: Final = 128 * 10**6
"""Size at which a compacted file is finished. A source of at least this size is left as it is."""
LOCK_NAME: Final = ".rlscope-compact.lock"
UNFINISHED: Final = ".rlscope-compact.unfinished"
"""Marker file in a new folder, removed when the run in it is complete."""
_ATTEMPTS: Final = 3
"""Attempts at a table whose files vanish while they are copied."""
_SAY_EVERY: Final = 200
"""Files between two progress messages."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """Result of a compaction."""

    path: Path
    """The folder of the compacted run."""
    files_before: int
    """Number of Parquet files."""
    files_after: int
    bytes_before: int
    bytes_after: int
    rows: int
    """Rows in the files that this compaction replaced."""
    left: tuple[SkippedFile, ...]
    """Files that were left as they are, with the reason."""
    recording: tuple[str, ...]
    """Workers that still record, so some of their files were left as they are."""
    leftovers: int
    """Number of leftover files of an earlier compaction that were removed."""
    is_verified: bool
    """Whether the rows were read back and compared before any file was removed."""


def say_nothing(_: str) -> None:
    """Discard a progress message."""


class _Job(NamedTuple):
    """Sources of one table to write into compacted files."""

    folder: Path
    target: Path
    table: str
    sources: tuple[CompactionSource, ...]
    closed: ClosedFiles
    verify: bool


class _Outcome(NamedTuple):
    """Result of a job."""

    rows: int
    left: tuple[SkippedFile, ...]


def compact_run(
    folder: Path,
    out: Path | None = None,
    *,
    verify: bool = False,
    say: Callable[[str], None] = say_nothing,
) -> Compaction:
    """Compact the run in a folder, in place or into a new folder.

    out: the new folder; None to compact in place. verify: read each compacted file back, and compare its number of rows
    and an order-independent checksum with those of the files that it replaces. say: receives progress messages.

    Raises RunFolderError if the folder is not a run, ArgumentError for an address in an object store, OutputError if
    the output folder cannot be written or is not empty, UnreadableDataError if the verification fails, and RlscopeError
    if another compaction is in progress.
    """
    for address in filter(is_remote, (folder, out or "")):
        raise ArgumentError.of(
            shown_address(address),
            found="an address in an object store",
            expected="a folder on this machine",
            next_step="Compact the run where it was recorded, or a local copy, and upload the result.",
        )
    folder = run_folder(folder.resolve())
    read_manifest(folder)
    target = folder if out is None else out.resolve()
    try:
        if target != folder:
            _prepare(folder, target)
        with _locked(target):
            return _Compactor(folder, target, verify, say).run()
    except OSError as error:
        raise OutputError.of(
            str(error.filename or target),
            found=error.strerror or str(error),
            expected="a writable folder with space for the compacted files",
            next_step="No rows were lost. Free disk space or choose another folder, and try again.",
        ) from error


class _Compactor:
    """One compaction of one run."""

    def __init__(self, folder: Path, target: Path, verify: bool, say: Callable[[str], None]) -> None:
        self._folder, self._target, self._verify, self._say = folder, target, verify, say
        self._is_copy = target != folder
        self._left: list[SkippedFile] = []
        self._rows = self._leftovers = 0
        self._closed = ClosedFiles(folder, "", ())

    def run(self) -> Compaction:
        """Compact every table."""
        before = _parquet_files(self._folder)
        bytes_before = sum(path.stat().st_size for path in before)
        if self._is_copy:
            _copy_beside_tables(self._folder, self._target)
        # Read the worker files before listing the data files, so that every file that they count is listed.
        workers, _ = read_workers(self._target)
        manifest = read_manifest(self._folder)
        is_imported = manifest.imported is not None
        self._closed = ClosedFiles(
            self._folder, manifest.run_id, workers, is_imported=is_imported, is_copy=self._is_copy
        )
        for table in TABLES:
            if (self._folder / table).is_dir():
                self._compact_table(table)
        if self._is_copy:
            shutil.copy2(self._folder / RUN_FILE, self._target / RUN_FILE)
            (self._target / UNFINISHED).unlink()
        after = _parquet_files(self._target)
        return Compaction(
            path=self._target,
            files_before=len(before),
            files_after=len(after),
            bytes_before=bytes_before,
            bytes_after=sum(path.stat().st_size for path in after),
            rows=self._rows,
            left=tuple(self._left),
            recording=tuple(sorted(self._closed.recording)),
            leftovers=self._leftovers,
            is_verified=self._verify,
        )

    def _compact_table(self, table: str) -> None:
        """Compact a table, and retry if a recorder merges its files while they are copied."""
        for _ in range(_ATTEMPTS):
            left, rows = list(self._left), self._rows
            try:
                self._attempt(table)
            except (FileNotFoundError, VanishedFileError):
                if not self._is_copy:
                    raise
            else:
                gone = [each for each in self._left[len(left) :] if not os.path.lexists(self._folder / each.path)]
                if not self._is_copy or not gone:
                    return
            self._left, self._rows = left, rows if self._is_copy else self._rows
            if self._is_copy:
                shutil.rmtree(self._target / table, ignore_errors=True)
        raise _vanished(self._folder / table)

    def _attempt(self, table: str) -> None:
        self._leftovers += self._remove_leftovers(table)
        listed, unreadable = list_table(self._folder, table)
        self._left += unreadable
        sources = _sources(listed.files)
        small = [source for source in sources if source.bytes < TARGET_BYTES]
        closed = self._closed.of(table, small)
        # An earlier compacted file holds many workers and is replaced as a whole, so it comes before later files.
        taken = sorted(closed, key=lambda source: not source.is_compacted)
        if len(taken) > 1:
            self._compact(table, taken)
        else:
            self._keep(taken)
        own = set(closed)
        self._keep(source for source in sources if source not in own)
        for skipped in unreadable:
            self._copy(self._folder / skipped.path)
        # A killed recorder may have left files that it had merged.
        self._remove_leftovers(table)

    def _compact(self, table: str, sources: Sequence[CompactionSource]) -> None:
        """Write the sources into as few files as possible."""
        closed = self._closed.about(_workers_of(sources))
        job = _Job(self._folder, self._target, table, tuple(sources), closed, self._verify)
        outcome = _Writer(job, self._say).run()
        self._rows += outcome.rows
        self._left += outcome.left

    def _keep(self, sources: Iterable[CompactionSource]) -> None:
        """Copy sources that are not compacted into the new folder, if there is one."""
        for source in sources:
            self._copy(source.path)

    def _copy(self, path: Path) -> None:
        _copy(path, self._folder, self._target)

    def _remove_leftovers(self, table: str) -> int:
        """Remove unfinished files and files that a compacted file replaces; return how many."""
        if self._is_copy:
            return 0
        folder = self._folder / table
        parts = folder.glob(f"{PART_PREFIX}*.part")
        # A name ending in .parquet.part belongs to a worker with such a name that is writing a file.
        leftovers = {path for path in parts if not path.name.endswith(".parquet.part")}
        # Footers need to be read only if a file is named as a compacted one.
        if any(is_compacted_name(path.name) for path in folder.glob("*.parquet")):
            leftovers |= self._replaced(table)
        for path in leftovers:
            path.unlink(missing_ok=True)
        return len(leftovers)

    def _replaced(self, table: str) -> set[Path]:
        """Return the files whose rows are all in a compacted file; none if a compacted file is damaged."""
        listing, unreadable = self._listed(table)
        compacted = {file.path for file in listing if file.segment is not None}
        if not compacted or not all(map(is_as_named, compacted)):
            return set()
        known = {*(file.path for file in listing), *(self._folder / each.path for each in unreadable)}
        unlisted = [path for path in (self._folder / table).glob("*.parquet") if path not in known]
        return superfluous([*listing, *(each for path in unlisted for each in stored_file(path))])

    def _listed(self, table: str) -> tuple[tuple[StoredFile, ...], list[SkippedFile]]:
        listing, unreadable = list_table(self._folder, table)
        return listing.files, unreadable


class _Writer:
    """Writes the sources of one job into as few files as possible."""

    def __init__(self, job: _Job, say: Callable[[str], None]) -> None:
        self._job, self._say = job, say
        self._is_copy = job.target != job.folder
        self._left: list[SkippedFile] = []
        self._rows = 0

    def run(self) -> _Outcome:
        """Write the files. Raises OSError, UnreadableDataError."""
        job, file = self._job, None
        try:
            for index, source in enumerate(job.sources):
                if index % _SAY_EVERY == 0:
                    self._say(f"compacting {job.table}: {index:,} of {len(job.sources):,} files")
                file = file or CompactedFile(job.target / job.table, job.table)
                why = job.closed.fault(job.table, source) or self._add(file, source)
                if why is not None:
                    self._left.append(SkippedFile(source.path.relative_to(job.folder).as_posix(), why))
                    self._keep(source)
                elif file.bytes >= TARGET_BYTES:
                    self._finish(file)
                    file = None
            if file is not None:
                self._finish(file)
        except BaseException:
            if file is not None:
                file.discard()
            raise
        return _Outcome(self._rows, tuple(self._left))

    def _add(self, file: CompactedFile, source: CompactionSource) -> str | None:
        numbers = source.files[0].numbers
        counted = None if numbers is None else self._job.closed.counted(file.table, numbers.worker_id)
        return file.add(source, counted)

    def _finish(self, file: CompactedFile) -> None:
        """Publish the file and remove the files that it replaces; a single source stays as it is."""
        if len(file.sources) < 2:
            file.discard()
            for source in file.sources:
                self._keep(source)
            return
        file.close()
        if self._job.verify:
            self._compare(file)
        file.publish()
        self._rows += file.rows
        if not self._is_copy:
            for source in file.sources:
                source.path.unlink(missing_ok=True)

    def _compare(self, file: CompactedFile) -> None:
        """Raise UnreadableDataError if the rows of a finished file differ from those of its sources."""
        self._say(f"verifying {file.table}: {file.rows:,} rows")
        expected = fingerprint(file.table, [source.path for source in file.sources])
        found = fingerprint(file.table, [file.part])
        if found != expected:
            raise UnreadableDataError.of(
                file.part,
                found=f"{found[0]:,} rows with the checksum {found[1]:x}",
                expected=f"{expected[0]:,} rows with the checksum {expected[1]:x}, as in the files that it replaces",
                next_step="Only this new file was removed. Check the disk and the memory of this machine.",
            )

    def _keep(self, source: CompactionSource) -> None:
        _copy(source.path, self._job.folder, self._job.target)


def _copy(path: Path, folder: Path, target: Path) -> None:
    """Copy a file of the run into the new folder, if there is one. Raises FileNotFoundError if it has vanished."""
    if target != folder and (_is_inside(path, folder) or not os.path.lexists(path)):
        copied = target / path.relative_to(folder)
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copied)


def _is_inside(path: Path, folder: Path) -> bool:
    """Return whether a path is a regular file in the folder, or a link to one: files elsewhere are not copied."""
    return path.is_file() and path.resolve().is_relative_to(folder)


def _workers_of(sources: Iterable[CompactionSource]) -> set[str]:
    return {file.numbers.worker_id for source in sources for file in source.files if file.numbers is not None}


def _vanished(folder: Path) -> VanishedFileError:
    return VanishedFileError.of(
        folder,
        found=f"files that vanished while they were copied, {_ATTEMPTS} times",
        expected="files that stay until they are copied",
        next_step="The recorder is merging its files. The run was not changed: try again after it has ended.",
    )


def _sources(files: Sequence[StoredFile]) -> list[CompactionSource]:
    """Group the entries of a table by file, in the order of each file's first segment."""
    by_path: dict[Path, list[StoredFile]] = {}
    for file in files:
        by_path.setdefault(file.path, []).append(file)
    return [CompactionSource(path, tuple(own)) for path, own in by_path.items()]


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    lock = FileLock(folder / LOCK_NAME)
    try:
        held = lock.acquire(timeout=0)
    except Timeout as error:
        raise RlscopeError.of(
            folder,
            found="another compaction in progress",
            expected="one compaction at a time",
            next_step="Wait for it to finish.",
        ) from error
    with held:
        try:
            yield
        finally:
            (folder / LOCK_NAME).unlink(missing_ok=True)


def _prepare(folder: Path, target: Path) -> None:
    """Make an empty folder, or empty the folder of an interrupted compaction."""
    if target.is_relative_to(folder) or folder.is_relative_to(target):
        raise OutputError.of(
            target,
            found="a folder inside the run, or one that contains it",
            expected="a folder beside the run",
            next_step="Choose another folder, or omit --out to compact in place.",
        )
    if (target / UNFINISHED).is_file() and not (target / RUN_FILE).exists():
        with _locked(target):
            shutil.rmtree(target, ignore_errors=True)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise OutputError.of(
            target, found="existing files", expected="a new or empty folder", next_step="Choose another folder."
        )
    target.mkdir(parents=True, exist_ok=True)
    (target / UNFINISHED).touch()


def _copy_beside_tables(folder: Path, target: Path) -> None:
    """Copy the worker files and the files beside run.json, except links to other places; run.json is copied last."""
    (target / "workers").mkdir(exist_ok=True)
    for path in (*folder.iterdir(), *(folder / "workers").glob("*.json")):
        if _is_inside(path, folder) and path.name not in (RUN_FILE, LOCK_NAME):
            shutil.copy2(path, target / path.relative_to(folder))


def _parquet_files(folder: Path) -> list[Path]:
    return [path for table in TABLES for path in (folder / table).glob("*.parquet") if path.is_file()]
