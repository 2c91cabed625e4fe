"""Merges a worker's small files into larger ones, in slices between the flushes, on the flush thread.

The files on disk are consistent at every moment, even if the process is killed:

1. A merged file is written beside its parts under a temporary name, and synced.
2. The worker file, written with the next flush, states its checksum. A reader takes no notice: the parts are there.
3. It is renamed. A reader sees it and its parts, and leaves the parts out, since their numbers lie inside its own.
4. The parts are removed, long after: who listed the folder before can still read them.

Only files that the worker file counts are merged.
"""

import os
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from rlscope_otel import schema
from rlscope_otel.faults import Faults
from rlscope_otel.merged_file import MergedFile, sync_folder
from rlscope_otel.parquet import Stamp
from rlscope_otel.stored_files import Levels, StoredFile, TableFiles

_REMOVED_AT_ONCE = 50
# What a reader that listed the folder in the last moments of the worker may still want.
_KEPT_AT_END_S = 60.0


class _Retired(NamedTuple):
    """A file that was merged into another one and is still there."""

    table: str
    path: Path
    range: str
    since_s: float


class Merger:
    """The files of one worker."""

    def __init__(self, run_dir: Path, levels: Levels, faults: Faults) -> None:
        self.merged: dict[str, dict[str, int]] = {}
        """By table and `FIRST_LAST`, the CRC-32 of the merged files that are there, or about to be."""
        self._run_dir = run_dir
        self._faults = faults
        self._kept_s = min(levels.intervals_s, default=0.0)
        self._files = {table: TableFiles(levels) for table in schema.TABLES}
        self._counted: Mapping[str, int] = {}
        self._owner = ("", "")
        self._job: MergedFile | None = None
        self._retired: deque[_Retired] = deque()
        self._rests_until_s = 0.0

    def add(self, table: str, sequence: int, rows: int, path: Path, crc32: int) -> None:
        """A file was flushed."""
        try:
            size_bytes = path.stat().st_size
        except OSError:
            return
        self._files[table].add(StoredFile.flushed(sequence, rows, size_bytes, crc32, time.monotonic()))

    def stated(self, run_id: str, worker_id: str, last_files: Mapping[str, int]) -> None:
        """The worker file is on disk: it counts files up to these numbers, and states every file of `merged`."""
        self._owner = run_id, worker_id
        self._counted = last_files
        if self._job is not None and self._job.is_complete:
            job, self._job = self._job, None
            self._finish(job)

    def step(self) -> bool:
        """Do a slice of work. Returns False if there is none at the moment."""
        now_s = time.monotonic()
        if self._remove(now_s - self._kept_s):
            return True
        if self._job is None and now_s >= self._rests_until_s:
            self._job = self._next_job(now_s)
        job = self._job
        if job is None or job.is_complete:
            return False
        try:
            job.step()
        except Exception as error:  # A library may fail in any way on what it reads; the parts are still there.
            self._give_up(job, error)
            return True
        if job.is_complete:
            self.merged.setdefault(job.table, {})[job.numbers.range] = job.crc32
        return True

    def cancel(self) -> None:
        """Stop what is half done, for the disk may need the room, and do nothing for a while."""
        self._rests_until_s = time.monotonic() + self._kept_s
        if self._job is not None:
            self._drop(self._job)

    def end(self) -> None:
        """The worker ends. Removes what has been of no use for a while."""
        if self._job is not None:
            self._drop(self._job)
        while self._remove(time.monotonic() - min(self._kept_s, _KEPT_AT_END_S)):
            pass

    def _next_job(self, now_s: float) -> MergedFile | None:
        run_id, worker_id = self._owner
        for table, files in self._files.items():
            parts = files.due(now_s, self._counted.get(table, 0))
            if parts:
                own = (run_id, table, worker_id, parts[-1].last)
                stamp: Stamp = dict(zip(schema.STAMP_KEYS, own, strict=True))
                return MergedFile(self._run_dir / table, stamp, (table, worker_id), parts)
        return None

    def _finish(self, job: MergedFile) -> None:
        """Give the file its name."""
        try:
            os.replace(job.temporary, job.path)
        except OSError as error:
            self._give_up(job, error)
            return
        sync_folder(job.folder)
        now_s = time.monotonic()
        self._files[job.table].replace(job.parts, StoredFile.of(job.parts, job.bytes, now_s))
        for part in job.parts:
            numbers = schema.FileNumbers(job.worker_id, part.first, part.last)
            self._retired.append(_Retired(job.table, job.folder / numbers.name, numbers.range, now_s))

    def _give_up(self, job: MergedFile, error: Exception) -> None:
        self._faults.note(f"cannot merge files of {job.table}", error)
        self._rests_until_s = time.monotonic() + self._kept_s
        self._drop(job)
        if isinstance(error, FileNotFoundError):
            self._files[job.table].forget()
        elif not isinstance(error, OSError) or error.errno is None:
            # What the library finds in a damaged file is an OSError too, but one without a number of the system.
            self._files[job.table].leave(job.parts)

    def _drop(self, job: MergedFile) -> None:
        self._job = None
        self.merged.get(job.table, {}).pop(job.numbers.range, None)
        job.cancel()

    def _remove(self, until_s: float) -> bool:
        """Remove some of the files that were merged before a time; False if there are none."""
        found = False
        for _ in range(_REMOVED_AT_ONCE):
            if not self._retired or self._retired[0].since_s > until_s:
                break
            found = True
            retired = self._retired.popleft()
            try:
                retired.path.unlink(missing_ok=True)
            except OSError as error:
                self._faults.note(f"cannot remove merged files of {retired.table}", error)
            else:
                self.merged.get(retired.table, {}).pop(retired.range, None)
        return found
