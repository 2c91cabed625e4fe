"""Reads the files of the workers, one JSON object for each, and makes the table `workers` of them."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import Final, NamedTuple, cast

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
        pa.field("doing", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("version", pa.int64()),
        pa.field("age_ns", pa.int64()),
    ]
)
"""A phase that had not ended at the last flush: an activity, train, or the phase of a weight update."""
WORKERS: Final = pa.schema(
    [
        pa.field("worker_id", pa.string()),
        pa.field("role", pa.string()),
        pa.field("host", pa.string()),
        pa.field("gpu_count", pa.int32()),
        pa.field("gpu_ids", pa.list_(pa.string())),
        pa.field("device_name", pa.string()),
        pa.field("kv_capacity_tokens", pa.int64()),
        pa.field("max_running", pa.int32()),
        pa.field("started_ns", pa.int64()),
        pa.field("stopped_ns", pa.int64()),
        pa.field("last_flush_ns", pa.int64()),
        pa.field("open", pa.list_(_OPEN)),
    ]
)


class _ReadWorker(NamedTuple):
    """The last read contents of a worker file."""

    state: tuple[int, int, int]
    """Modification time in ns, size in bytes and inode: these change when the file is written."""
    document: dict[str, object] | None
    why: str


KnownWorkers = dict[str, _ReadWorker]
"""Worker files by path, so that only changed files need to be read again."""


def read_workers(folder: Path, known: KnownWorkers | None = None) -> tuple[list[dict[str, object]], list[SkippedFile]]:
    """Return the valid documents of workers/*.json, and the files that are invalid.

    known: cache of earlier calls, which this call updates.
    """
    documents: list[dict[str, object]] = []
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
        if found.document is None:
            skipped.append(SkippedFile(name_in(folder, Path(name)), found.why))
        else:
            documents.append(dict(found.document))
    return documents, skipped


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
        document = dict(read_json(path, plain_bytes=state[1] if is_plain else None))
    except RunFolderError as error:
        return _ReadWorker(state, None, str(error))
    if "open" in document:
        document["open"] = _open_phases(document)
    why = _worker_fault(document, path)
    return _ReadWorker(state, document if why is None else None, why or "")


def _open_phases(document: Mapping[str, object]) -> list[Mapping[str, object]]:
    """Return the entries of `open` that can be read, with their age by the worker's own clock."""
    given, flushed_ns = document.get("open"), document.get("last_flush_ns")
    entries = (
        [cast("dict[str, object]", each) for each in given if isinstance(each, dict)] if isinstance(given, list) else []
    )
    return [
        {**each, "age_ns": flushed_ns - since_ns}
        for each in entries
        if isinstance(each.get("doing"), str)
        and is_integer(since_ns := each.get("since_ns"))
        and is_integer(flushed_ns)
        and flushed_ns >= since_ns
    ]


def host_of(worker: Mapping[str, object]) -> str | None:
    """Return the host in a worker's document; None if it is missing or not a string."""
    host = worker.get("host")
    return host if isinstance(host, str) else None


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
    return next((_late_fault(key, document[key]) for key in _TIMES if _is_too_late(document.get(key))), None)


def _is_too_late(value: object) -> bool:
    return isinstance(value, int) and value >= LATEST_NS


def _late_fault(key: str, value: object) -> str:
    fix = "correct the time" if key == "started_ns" else "correct it, or write null if it is unknown"
    return f"{key} is {value}, expected nanoseconds since 1970, before the year 2116 (2^62); {fix}"


def dropped_rows(workers: Sequence[Mapping[str, object]]) -> dict[str, int]:
    """Return the number of rows that capture dropped, by table, from the documents of worker files."""
    dropped: dict[str, int] = {}
    for worker in workers:
        counts = worker.get("dropped")
        if not isinstance(counts, dict):
            continue
        for table, count in counts.items():  # pyright: ignore[reportUnknownVariableType]
            if table in TABLES and is_integer(count) and count > 0:
                dropped[table] = dropped.get(table, 0) + count
    return dropped


def identity_gaps(workers: Sequence[Mapping[str, object]]) -> tuple[str, ...]:
    """Return a sentence for each worker file without an end time, or one sentence if there is no worker file."""
    if not workers:
        return ("workers/: no readable worker file, so GPU time cannot be accounted for",)
    return tuple(
        f"workers/{worker['worker_id']}.json: last_flush_ns is missing; the worker is assumed to end at its last row"
        for worker in workers
        if not isinstance(worker.get("last_flush_ns"), int) and not isinstance(worker.get("stopped_ns"), int)
    )


def workers_table(documents: Sequence[Mapping[str, object]]) -> pa.Table:
    """Return the documents of worker files as a table with the schema WORKERS."""
    return pa.table([_column([each.get(field.name) for each in documents], field.type) for field in WORKERS], WORKERS)


def _column(values: list[object], kind: pa.DataType) -> pa.Array:
    """Return a column of values, with NULL for values of another type: a wrong optional entry counts as missing."""
    # pyarrow's conversion would import pandas, and polars would make a series of each list.
    if pa.types.is_list(kind) and pa.types.is_struct(kind.value_type):
        rows = [cast("list[dict[str, object]]", value) if isinstance(value, list) else [] for value in values]
        flat = list(chain(*rows))
        fields = [_column([each.get(field.name) for each in flat], field.type) for field in kind.value_type]
        ends = pl.Series([0, *accumulate(map(len, rows))], dtype=pl.Int32)
        return pa.ListArray.from_arrays(
            ends.to_arrow(), pa.StructArray.from_arrays(fields, fields=list(kind.value_type))
        )
    if pa.types.is_list(kind):
        lists = [cast("list[object]", value) if isinstance(value, list) else [] for value in values]
        names = [[name for name in own if isinstance(name, str)] for own in lists]
        ends = pl.Series([0, *accumulate(map(len, names))], dtype=pl.Int32)
        return pa.ListArray.from_arrays(ends.to_arrow(), _column(list(chain(*names)), pa.string()))
    if pa.types.is_string(kind):
        texts = [value if isinstance(value, str) else None for value in values]
        return pl.Series(texts, dtype=pl.String).to_arrow().cast(kind)
    bits = kind.bit_width
    numbers = [value if is_integer(value, bits) else None for value in values]
    return pl.Series(numbers, dtype=pl.Int64).to_arrow().cast(kind)
