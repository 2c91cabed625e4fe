"""Copies one worker's part of a run folder to a store, one round at a time.

1. Copy the closed files that are new, and every open journal that has changed, as a whole.
2. Copy the worker file, which states the closed files that are in the store.
3. Remove the journals whose closed files are there.

So at any moment a reader finds every row once, and all rows that the worker file counts. The local files stay.
"""

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple, cast

from rlscope_otel import run_file
from rlscope_otel.journal import SUFFIX
from rlscope_otel.object_store import ObjectStore
from rlscope_otel.schema import FileNumber

_RUN_FILE: Final = "run.json"


class _Journal(NamedTuple):
    """State of a local journal when it was copied."""

    bytes: int
    changed_ns: int


class WorkerCopy:
    """The copy of one worker."""

    def __init__(self, run_dir: Path, worker_id: str, store: ObjectStore) -> None:
        self._run_dir = run_dir
        self._worker_id = worker_id
        self._store = store
        self._closed: dict[str, dict[str, int]] = {}
        """By table and number, the CRC-32 of the closed files in the store."""
        self._journals: dict[str, _Journal | None] = {}
        """By name, the journals in the store. None for one that an earlier process copied."""
        self._run_text = b""
        self._last: bytes | None = None

    def round(self) -> bool:
        """Copy what is new; True once the worker has stopped and its closed files are copied.

        Raises OSError and what the client raises: the next round does what this one did not.
        """
        text = (self._run_dir / self._worker_name).read_bytes()
        document = cast("dict[str, object]", json.loads(text))
        has_stopped = document.get("stopped_ns") is not None
        self._copy_run_file(again=has_stopped)
        if self._last is None:
            self._recall()
        for table, rows in cast("Mapping[str, int]", document["rows"]).items():
            if rows:
                self._copy_table(table)
        if text != self._last:
            self._store.put(self._worker_name, json.dumps({**document, "closed": self._closed}, indent=1).encode())
            self._remove_closed_journals()
            self._last = text
        return has_stopped and not self._journals

    @property
    def _worker_name(self) -> str:
        return f"workers/{self._worker_id}.json"

    def _recall(self) -> None:
        """Find what an earlier process has copied."""
        found = self._store.get(self._worker_name)
        document = cast("dict[str, object]", json.loads(found)) if found is not None else {}
        self._closed = cast("dict[str, dict[str, int]]", document.get("closed") or {})
        for table in cast("Mapping[str, int]", document.get("rows") or {}):
            for name in self._store.names(table):
                if name.endswith(SUFFIX) and self._own(name) is not None:
                    self._journals[f"{table}/{name}"] = None

    def _copy_run_file(self, *, again: bool) -> None:
        """Add the local settings that the store's run file lacks. Workers of other nodes add theirs.

        If `again`, do so even if the local file did not change, because another worker may have written meanwhile.
        """
        text = (self._run_dir / _RUN_FILE).read_bytes()
        if text == self._run_text and not again:
            return
        found = self._store.get(_RUN_FILE)
        if found is None:
            self._store.put(_RUN_FILE, text)
        else:
            added = run_file.with_added(json.loads(found), run_file.config_of(json.loads(text)))
            if added is not None:
                self._store.put(_RUN_FILE, json.dumps(added, indent=1).encode())
        self._run_text = text

    def _copy_table(self, table: str) -> None:
        """Copy the files of a table that are new or have changed."""
        for file in sorted(filter(None, map(self._own, os.listdir(self._run_dir / table)))):
            # Between the two, the journal may be closed.
            if str(file.number) not in self._closed.get(table, {}) and (
                self._copy_closed(table, file)
                or self._copy_journal(f"{table}/{file.stem}{SUFFIX}")
                or self._copy_closed(table, file)
            ):
                # The worker file is to follow, also if this round fails.
                self._last = b""

    def _own(self, name: str) -> FileNumber | None:
        """Return the number of a file of this worker; None for a file of another, or one that is no data."""
        stem, suffix = os.path.splitext(name)
        file = FileNumber.of(stem)
        return file if suffix in (SUFFIX, ".parquet") and file.worker_id == self._worker_id else None

    def _copy_closed(self, table: str, file: FileNumber) -> bool:
        """Copy a closed file; False if there is none."""
        name = f"{table}/{file.stem}.parquet"
        try:
            content = (self._run_dir / name).read_bytes()
        except FileNotFoundError:
            return False
        self._store.put(name, content)
        self._closed.setdefault(table, {})[str(file.number)] = zlib.crc32(content)
        return True

    def _copy_journal(self, name: str) -> bool:
        """Copy a journal that is not as it was at its last copy; False if it is, or is no longer there."""
        path = self._run_dir / name
        try:
            stat = path.stat()
            found = _Journal(stat.st_size, stat.st_mtime_ns)
            if self._journals.get(name) == found:
                return False
            content = path.read_bytes()
        except FileNotFoundError:
            return False
        self._store.put(name, content)
        self._journals[name] = found
        return True

    def _remove_closed_journals(self) -> None:
        for name in list(self._journals):
            table, _, file = name.partition("/")
            if str(FileNumber.of(file.removesuffix(SUFFIX)).number) in self._closed.get(table, {}):
                self._store.remove(name)
                del self._journals[name]
