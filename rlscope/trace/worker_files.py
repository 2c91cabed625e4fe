"""Reads the files of the workers, one JSON object for each, and makes the table `workers` of them."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import polars as pl
import pyarrow as pa
from rlscope_otel.schema import ROLES, TABLES, WORKER_ID_PATTERN

from rlscope.errors import RunFolderError
from rlscope.input_file import is_integer
from rlscope.trace.files import SkippedFile, is_plain_name, name_in, unlisted
from rlscope.trace.footers import LATEST_NS
from rlscope.trace.manifest import read_json

_IDENTITY_BITS: Final[Mapping[str, int]] = {"started_ns": 64, "gpu_count": 32}
"""The whole numbers that a worker file must hold, and the width of their column in bits."""
_TIMES: Final = ("started_ns", "stopped_ns", "last_flush_ns")
_OPEN: Final = pa.struct(
    [
        pa.field("doing", pa.large_string()),
        pa.field("reason", pa.large_string()),
        pa.field("version", pa.int64()),
        pa.field("age_ns", pa.int64()),
    ]
)
"""See OpenPhase: an activity, train, or the phase of a weight update."""
WORKERS: Final = pa.schema(
    [
        pa.field("worker_id", pa.large_string()),
        pa.field("role", pa.large_string()),
        pa.field("host", pa.large_string()),
        pa.field("gpu_count", pa.int32()),
        pa.field("gpu_ids", pa.list_(pa.large_string())),
        pa.field("device_name", pa.large_string()),
        pa.field("kv_capacity_tokens", pa.int64()),
        pa.field("max_running", pa.int32()),
        pa.field("started_ns", pa.int64()),
        pa.field("stopped_ns", pa.int64()),
        pa.field("last_flush_ns", pa.int64()),
        pa.field("open", pa.list_(_OPEN)),
        pa.field("is_replaced", pa.bool_()),
    ]
)
_DTYPES: Final[Mapping[pa.DataType, pl.DataType]] = {
    pa.large_string(): pl.String(),
    pa.int64(): pl.Int64(),
    pa.int32(): pl.Int32(),
    pa.bool_(): pl.Boolean(),
}


class OpenPhase(NamedTuple):
    """A phase that had not ended at the last flush."""

    doing: str
    reason: str | None
    version: int | None
    age_ns: int
    """Its length at the last flush, by the worker's own clock."""


@dataclass(frozen=True, slots=True)
class Worker:
    """Statements of a worker in its file. An optional entry that is missing or of another type is None or empty."""

    worker_id: str
    role: str
    started_ns: int
    gpu_count: int
    name: str
    """Name that the recorder requested; all starts of one worker share it."""
    run_id: str | None
    host: str | None
    gpu_ids: tuple[str, ...]
    device_name: str | None
    kv_capacity_tokens: int | None
    max_running: int | None
    stopped_ns: int | None
    last_flush_ns: int | None
    open: tuple[OpenPhase, ...]
    rows: Mapping[str, object] | None
    """Number of rows that it wrote, by table."""
    closed: Mapping[str, object] | None
    """By table, the CRC-32 of each closed file, by number."""
    dropped: Mapping[str, int]
    """Number of rows that capture dropped, by table."""
    config: Mapping[str, object] | None
    is_replaced: bool = False
    """Whether it was started again after its last flush, and so writes no more."""

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Worker":
        """Return the worker of a file's document, which has no fault."""
        get = document.get
        gpu_ids, dropped = get("gpu_ids"), get("dropped")
        counts = dropped.items() if isinstance(dropped, dict) else ()
        return cls(
            worker_id=document["worker_id"],
            role=document["role"],
            started_ns=document["started_ns"],
            gpu_count=document["gpu_count"],
            name=_text(get("name")) or document["worker_id"],
            run_id=_text(get("run_id")),
            host=_text(get("host")),
            gpu_ids=tuple(each for each in gpu_ids if isinstance(each, str)) if isinstance(gpu_ids, list) else (),
            device_name=_text(get("device_name")),
            kv_capacity_tokens=_whole(get("kv_capacity_tokens")),
            max_running=_whole(get("max_running"), 32),
            stopped_ns=get("stopped_ns"),
            last_flush_ns=get("last_flush_ns"),
            open=tuple(_open_phases(document)),
            rows=_object(get("rows")),
            closed=_object(get("closed")),
            dropped={table: count for table, count in counts if is_integer(count) and count > 0 and table in TABLES},
            config=_object(get("config")),
        )

    @property
    def end_ns(self) -> int | None:
        """When it stopped, else its last flush; None if it states neither."""
        return self.last_flush_ns if self.stopped_ns is None else self.stopped_ns

    @property
    def last_ns(self) -> int:
        """The last time that it states."""
        return max(self.started_ns, self.end_ns or 0)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _whole(value: object, bits: int = 64) -> int | None:
    return value if is_integer(value, bits) else None


def _object(value: object) -> Mapping[str, object] | None:
    return cast("dict[str, object]", value) if isinstance(value, dict) else None


class _ReadWorker(NamedTuple):
    """The last read contents of a worker file."""

    state: tuple[int, int, int]
    """Modification time in ns, size in bytes and inode: these change when the file is written."""
    worker: Worker | None
    why: str


KnownWorkers = dict[str, _ReadWorker]
"""Worker files by path, so that only changed files need to be read again."""


def read_workers(folder: Path, known: KnownWorkers | None = None) -> tuple[list[Worker], list[SkippedFile]]:
    """Return the workers of workers/*.json, and the files that are invalid.

    known: cache of earlier calls, which this call updates.
    """
    workers: list[Worker] = []
    skipped: list[SkippedFile] = []
    try:
        states = sorted(_json_files(folder / "workers"))
    except OSError as error:
        return [], [SkippedFile("workers", unlisted(error))]
    for name, state, is_plain in states:
        before = None if known is None else known.get(name)
        found = before if before is not None and before.state == state else _read_worker(Path(name), state, is_plain)
        if known is not None:
            known[name] = found
        if found.worker is None:
            skipped.append(SkippedFile(name_in(folder, Path(name)), found.why))
        else:
            workers.append(found.worker)
    return with_replaced(workers), skipped


def with_replaced(workers: Sequence[Worker]) -> list[Worker]:
    """Tell which workers were started again. One that flushes after the start of its namesake lives beside it."""
    last_start_ns: dict[str, int] = {}
    for each in workers:
        last_start_ns[each.name] = max(each.started_ns, last_start_ns.get(each.name, 0))
    return [
        replace(each, is_replaced=True)
        if each.stopped_ns is None and last_start_ns[each.name] > (each.last_flush_ns or each.started_ns)
        else each
        for each in workers
    ]


def _json_files(folder: Path) -> Iterator[tuple[str, tuple[int, int, int], bool]]:
    """Yield each path, its state (see `_ReadWorker`), and whether it needs no check by `irregularity`."""
    if not folder.is_dir():
        return
    is_folder = not folder.is_symlink()
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".json"):
                facts = entry.stat(follow_symlinks=not entry.is_symlink() or os.path.exists(entry.path))
                is_plain = is_folder and entry.is_file(follow_symlinks=False) and is_plain_name(entry.name)
                yield entry.path, (facts.st_mtime_ns, facts.st_size, facts.st_ino), is_plain


def _read_worker(path: Path, state: tuple[int, int, int], is_plain: bool) -> _ReadWorker:
    try:
        document = read_json(path, plain_bytes=state[1] if is_plain else None)
    except RunFolderError as error:
        return _ReadWorker(state, None, str(error))
    why = _worker_fault(document, path)
    return _ReadWorker(state, Worker.of(document) if why is None else None, why or "")


def _open_phases(document: Mapping[str, Any]) -> Iterator[OpenPhase]:
    """Yield the entries of `open` that can be read."""
    entries, flushed_ns = document.get("open"), _whole(document.get("last_flush_ns"))
    if not isinstance(entries, list) or flushed_ns is None:
        return
    for each in entries:
        phase = _object(each) or {}
        doing, since_ns = phase.get("doing"), phase.get("since_ns")
        if isinstance(doing, str) and is_integer(since_ns) and since_ns <= flushed_ns:
            yield OpenPhase(doing, _text(phase.get("reason")), _whole(phase.get("version")), flushed_ns - since_ns)


def _worker_fault(document: Mapping[str, object], path: Path) -> str | None:
    name = path.stem
    if document.get("worker_id") != name or not re.fullmatch(WORKER_ID_PATTERN, name):
        return f"worker_id is {document.get('worker_id')!r}, expected {name!r}, the name of the file"
    if document.get("role") not in ROLES:
        return f"role is {document.get('role')!r}, expected one of {', '.join(ROLES)}"
    for key, bits in _IDENTITY_BITS.items():
        value = document.get(key)
        if not is_integer(value, bits) or value < 0:
            return f"{key} is {value!r}, expected a {bits}-bit whole number of at least 0"
    for key in ("stopped_ns", "last_flush_ns"):
        value = document.get(key)
        if value is not None and not is_integer(value):
            return f"{key} is {value!r}, expected a 64-bit whole number or null"
    for key in _TIMES:
        value = document.get(key)
        if isinstance(value, int) and value >= LATEST_NS:
            fix = "correct the time" if key == "started_ns" else "correct it, or write null if it is unknown"
            return f"{key} is {value}, expected nanoseconds since 1970, before the year 2116 (2^62); {fix}"
    return None


def dropped_rows(workers: Sequence[Worker]) -> dict[str, int]:
    """Return the number of rows that capture dropped, by table."""
    dropped: Counter[str] = Counter()
    for worker in workers:
        dropped.update(worker.dropped)
    return dict(dropped)


def identity_gaps(workers: Sequence[Worker]) -> tuple[str, ...]:
    """Return a sentence for each worker file without an end time, or one sentence if there is no worker file."""
    if not workers:
        return ("workers/: no readable worker file, so GPU time cannot be accounted for",)
    return tuple(
        f"workers/{worker.worker_id}.json: last_flush_ns is missing; the worker is assumed to end at its last row"
        for worker in workers
        if worker.end_ns is None
    )


def workers_table(workers: Sequence[Worker]) -> pa.Table:
    """Return the workers as a table with the schema WORKERS."""
    return pa.table(
        [_column([getattr(each, field.name) for each in workers], field.type) for field in WORKERS], WORKERS
    )


def _column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    # pyarrow's conversion would import pandas and its cast pyarrow.compute; polars would make a series of each list.
    if pa.types.is_list(kind):
        ends = pl.Series([0, *accumulate(map(len, values))], dtype=pl.Int32).to_arrow()
        return pa.ListArray.from_arrays(ends, _column([*chain(*values)], kind.value_type))
    if pa.types.is_struct(kind):
        fields = [_column([getattr(each, field.name) for each in values], field.type) for field in kind]
        return pa.StructArray.from_arrays(fields, fields=list(kind))
    return pl.Series(values, dtype=_DTYPES[kind]).to_arrow()
