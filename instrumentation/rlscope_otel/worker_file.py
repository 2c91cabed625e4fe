"""`workers/<worker_id>.json`: who this process is, and how much it wrote and lost.

Every start of a recorder has its own file, named by the id of that start. If the name is taken (by an earlier start of
the worker, or by another worker of that name), the recorder uses `<worker_id>.r1`, `.r2`, ... So the extent, counters
and files of the first start stay correct.
"""

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from rlscope_otel import json_files

_MOST_RESTARTS = 10_000
_MOST_CHARACTERS = 128


@dataclass(frozen=True, slots=True)
class Identity:
    """A worker's description of itself; None for what it does not know."""

    role: str
    gpu_count: int = 0
    gpu_ids: tuple[str, ...] = ()
    device_name: str | None = None
    kv_capacity_tokens: int | None = None
    max_running: int | None = None
    framework: str | None = None
    framework_version: str | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a worker at one flush."""

    run_id: str | None
    """The run that the worker joined. Folders of several nodes, each a run of its own, may be copied into one."""
    last_flush_ns: int
    stopped_ns: int | None
    rows: Mapping[str, int]
    """By table, the rows that it wrote."""
    closed: Mapping[str, Mapping[str, int]]
    """By table and number, the CRC-32 of the Parquet files that took the place of journals, or are about to."""
    dropped: Mapping[str, int]
    open: Sequence[Mapping[str, object]] = ()
    """Phases that it was in the middle of; empty once it stopped."""
    config: Mapping[str, object] = field(default_factory=dict[str, object])
    """The settings of this start: run.json keeps those of the first."""


class WorkerFile:
    """This worker's place among the workers of a run folder."""

    def __init__(self, run_dir: Path, wanted_id: str, started_ns: int) -> None:
        self.worker_id = self._name = wanted_id
        self.claimed = False
        self._folder = run_dir / "workers"
        self._path = self._folder / f"{wanted_id}.json"
        self._started_ns = started_ns

    def claim(self, identity: Identity, progress: Progress) -> None:
        """Take the wanted name, or the first free one after it. Raises OSError when the folder cannot be written."""
        wanted_id = self.worker_id
        for restart in range(_MOST_RESTARTS):
            suffix = f".r{restart}" if restart else ""
            worker_id = wanted_id[: _MOST_CHARACTERS - len(suffix)] + suffix
            path = self._folder / f"{worker_id}.json"
            if not path.exists() and json_files.create_once(path, self._document(worker_id, identity, progress)):
                self.worker_id, self._path = worker_id, path
                self.claimed = True
                return
        raise OSError(f"no free name for worker {wanted_id!r} in {self._folder}")

    def write(self, identity: Identity, progress: Progress) -> None:
        """Replace the file by the present state. Raises OSError when the folder cannot be written."""
        json_files.replace(self._path, self._document(self.worker_id, identity, progress))

    def _document(self, worker_id: str, identity: Identity, progress: Progress) -> dict[str, object]:
        return {
            "worker_id": worker_id,
            "name": self._name,
            "run_id": progress.run_id,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            **_entries(identity),
            "started_ns": self._started_ns,
            "stopped_ns": progress.stopped_ns,
            "last_flush_ns": progress.last_flush_ns,
            "rows": progress.rows,
            "closed": {table: files for table, files in progress.closed.items() if files},
            "dropped": progress.dropped,
            "open": progress.open,
            **({"config": dict(progress.config)} if progress.config else {}),
        }


def _entries(identity: Identity) -> dict[str, object]:
    """Return the fields without copying the values, unlike `asdict`, because this runs at every flush."""
    return {each.name: getattr(identity, each.name) for each in fields(identity)}
