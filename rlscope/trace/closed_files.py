"""Selects the files of a run that can be compacted: those that their worker will not write, merge or count again.

If a recorder merges its own files, they are left alone until it has ended. Otherwise all but its newest file can be
compacted while it records.
"""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Final, cast

from rlscope_otel.schema import TABLES

from rlscope.trace.compacted_file import CompactionSource
from rlscope.trace.files import is_integer
from rlscope.trace.segments import file_crc32, is_as_named

SILENT_NS: Final = 3_600 * 10**9
"""A worker without a stop time that has written nothing for this long was killed."""
WRITES_NS: Final = 600 * 10**9
"""A recording worker writes its worker file at least this often, whatever its host's clock says."""
SETTLED_NS: Final = 600 * 10**9
"""Minimum age of the files of a recording worker: `rlscope watch` has read them by then."""


class ClosedFiles:
    """Snapshot of what the worker files state about a run's data files."""

    def __init__(
        self,
        folder: Path,
        run_id: str,
        workers: Iterable[Mapping[str, object]],
        *,
        is_imported: bool = False,
        is_copy: bool = False,
    ) -> None:
        self.recording: set[str] = set()
        """Workers that were found to be still recording."""
        self._folder = folder
        self._run_id = run_id
        self._workers = {str(worker["worker_id"]): worker for worker in workers}
        self._is_finished = is_imported or is_copy
        self._now_ns = time.time_ns()

    def about(self, workers: Collection[str]) -> "ClosedFiles":
        """Return a copy limited to some workers."""
        own = copy(self)
        own._workers = {name: self._workers[name] for name in workers if name in self._workers}
        own.recording = set()
        return own

    def of(self, table: str, sources: Sequence[CompactionSource]) -> list[CompactionSource]:
        """Return the sources that can be compacted, in their given order."""
        newest: dict[str, int] = {}
        for source in sources:
            for file in source.files:
                if file.numbers is not None:
                    newest[file.numbers.worker_id] = max(file.numbers.last, newest.get(file.numbers.worker_id, 0))
        return [source for source in sources if self._is_closed(table, source, newest)]

    def counted(self, table: str, worker_id: str) -> int | None:
        """Return the number of the last file that the worker counts, None if unknown; a killed one may have more."""
        return _whole(self._stated(table, worker_id).get("last_file"))

    def fault(self, table: str, source: CompactionSource) -> str | None:
        """Return how a file contradicts its name, its footer or its checksum; None if it does not."""
        numbers, stamp = source.files[0].numbers, source.files[0].footer.stamp
        if source.is_compacted:
            return None if is_as_named(source.path) else "its content does not match the checksum in its name"
        if numbers is None:
            return "neither its name nor its footer names its worker"
        if stamp is None:
            return None
        if (stamp.table, numbers.name) != (table, source.path.name):
            return f"it was written as {stamp.table}/{numbers.name}"
        if stamp.run_id not in (self._run_id, self._workers.get(numbers.worker_id, {}).get("run_id")):
            # A reader would leave out the whole compacted file if it held rows of another run.
            return f"it belongs to run {stamp.run_id!r} according to its footer"
        if stamp.merged is None:
            return None
        merged = self._stated(table, numbers.worker_id).get("merged")
        checksums = cast("Mapping[str, object]", merged) if isinstance(merged, dict) else {}
        is_sound = checksums.get(numbers.range) == file_crc32(source.path)
        return None if is_sound else "its content does not match its recorder's checksum"

    def _is_closed(self, table: str, source: CompactionSource, newest: Mapping[str, int]) -> bool:
        numbers = source.files[0].numbers
        if self._is_finished or source.is_compacted or numbers is None:
            return True
        if not self._is_recording(numbers.worker_id, source.path):
            return True
        self.recording.add(numbers.worker_id)
        if self._merges(numbers.worker_id) or not self._is_settled(source.path):
            return False
        counted = self.counted(table, numbers.worker_id)
        return numbers.last < newest[numbers.worker_id] and (counted is None or numbers.last <= counted)

    def _merges(self, worker_id: str) -> bool:
        """Return whether the recorder of a worker has merged files, according to its worker file."""
        return any("merged" in self._stated(table, worker_id) for table in TABLES)

    def _is_recording(self, worker_id: str, path: Path) -> bool:
        worker = self._workers.get(worker_id)
        if worker is None:
            # If a worker has no worker file, only the age of its data files is known.
            return not self._is_settled(path, SILENT_NS)
        if worker.get("stopped_ns") is not None:
            return False
        # The age of the file is by this machine's clock; times in it are by the host's clock, which may be wrong.
        record = self._folder / "workers" / f"{worker_id}.json"
        if not self._is_settled(record, WRITES_NS):
            return True
        heard_ns = _whole(worker.get("last_flush_ns")) or _whole(worker.get("started_ns")) or 0
        return self._now_ns - heard_ns <= SILENT_NS and not self._is_settled(record, SILENT_NS + 1)

    def _is_settled(self, path: Path, age_ns: int = SETTLED_NS) -> bool:
        try:
            return self._now_ns - path.stat().st_mtime_ns >= age_ns
        except OSError:
            return False

    def _stated(self, table: str, worker_id: str) -> Mapping[str, object]:
        """Return a worker's own count of what it wrote to a table; empty if it has none."""
        written = self._workers.get(worker_id, {}).get("written")
        tables = cast("Mapping[str, object]", written) if isinstance(written, dict) else {}
        stated = tables.get(table)
        return cast("Mapping[str, object]", stated) if isinstance(stated, dict) else {}


def _whole(value: object) -> int | None:
    return value if is_integer(value) else None
