"""Lists and checks the files of a run folder. No database is opened here.

A damaged file is skipped and listed with the reason. Only an unknown format or a folder that is not a run is an error.
"""

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from pathlib import Path
from typing import Final, NamedTuple, TypeGuard, cast

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from rlscope_otel.schema import FORMAT_NAME, FORMAT_VERSION, ROLES, TABLES, WORKER_ID_PATTERN, FileNumbers

from rlscope import format as fmt
from rlscope.errors import RunFolderError, VanishedFileError
from rlscope.text_out import LONGEST_TEXT, cleaned, for_terminal, shortened
from rlscope.trace.footers import LATEST_NS, Footer, read_footer, read_metadata
from rlscope.trace.imported import Imported, read_imported
from rlscope.trace.segments import Segment, superfluous

RUN_FILE: Final = "run.json"
_DEEPEST: Final = 6
"""Maximum depth of folders that are searched for runs."""
_GLOBS: Final = frozenset("*?[]{}")
"""Wildcards: a reader would take a name with one of them for several names."""
_HALF_A_PAIR: Final = re.compile(r"\\ud[89a-f]", re.IGNORECASE)
LARGEST_JSON_BYTES: Final = 4 * 10**6
"""Maximum size of run.json or a worker file: the settings of a run take a few kilobytes."""
_LISTINGS: Final = 3
"""Attempts to list a table while its files vanish."""
_MANY_FILES: Final = 20_000
_CPU_S_PER_FILE: Final = 0.0011
"""Extra CPU time of an analysis per file, measured with 7,200 files of 30 s each against the same rows in few files."""
_LEAST_BYTES_TO_DIVIDE: Final = 10**9
"""About 10^8 rows of compacted files: their analysis takes as long as a cluster needs to start and merge answers."""
_MOST_NAME_CHARACTERS: Final = 1_000
_IDENTITY_BITS: Final[Mapping[str, int]] = {"started_ns": 64, "gpu_count": 32}
"""The whole numbers that a worker file must hold, and the width of their column in bits."""
_TIMES: Final = ("started_ns", "stopped_ns", "last_flush_ns")
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
    ]
)


@dataclass(frozen=True, slots=True)
class RunManifest:
    """Contents of run.json."""

    run_id: str
    created_ns: int | None
    config: Mapping[str, object]
    imported: Imported | None = None
    """Origin of an imported run; None if hooks recorded it."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A readable file of a table, or one segment of a compacted file with a footer for that segment."""

    path: Path
    footer: Footer
    segment: Segment | None = None

    @property
    def numbers(self) -> FileNumbers | None:
        """File numbers from the footer or, if it has none, from the name; None if neither has any."""
        if self.segment is not None:
            return self.segment.numbers
        stamp = self.footer.stamp
        return stamp.numbers if stamp is not None else FileNumbers.of(self.path.stem)

    @property
    def claim(self) -> tuple[tuple[str, str], FileNumbers] | None:
        """The run and worker that the file claims to belong to, and its file numbers; None if it has no numbers."""
        numbers, stamp = self.numbers, self.footer.stamp
        run_id = self.segment.run_id if self.segment is not None else stamp.run_id if stamp is not None else ""
        return None if numbers is None else ((run_id, numbers.worker_id), numbers)


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The readable files of one table, and the columns found in them."""

    paths: tuple[Path, ...]
    columns: frozenset[str]
    rows: int
    is_plain: bool = False
    """Whether every column of every file has exactly the contract's type."""
    files: tuple[StoredFile, ...] = ()
    """The files with their footers."""


def table_of(files: tuple[StoredFile, ...]) -> TableFiles:
    """Return the table that consists of these files."""
    return TableFiles(
        paths=tuple(dict.fromkeys(file.path for file in files)),
        columns=frozenset(name for file in files for name in file.footer.columns),
        rows=sum(file.footer.rows for file in files),
        is_plain=all(file.footer.is_plain for file in files),
        files=files,
    )


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A file of the run folder that was not read."""

    path: str
    """Path of the file."""
    why: str
    """Reason why it was not read."""


def run_folder(path: Path) -> Path:
    """Return the run folder that a path refers to: the folder of a run.json, otherwise the path itself."""
    return path.parent if path.name == RUN_FILE and path.is_file() else path


def runs_below(folder: Path, depth: int = 0) -> Iterator[Path]:
    """Yield the run folders in and below a folder, sorted by name; run folders themselves are not searched."""
    if (folder / RUN_FILE).is_file():
        yield folder
    elif depth < _DEEPEST:
        with suppress(PermissionError):
            for inner in sorted(folder.iterdir()):
                if inner.is_dir() and not inner.is_symlink() and not inner.name.startswith("."):
                    yield from runs_below(inner, depth + 1)


def read_manifest(folder: Path) -> RunManifest:
    """Read run.json. Raises RunFolderError if the folder is not a run, or its format version is unknown."""
    path = folder / RUN_FILE
    if os.path.isdir(folder) and not os.access(folder, os.R_OK | os.X_OK):
        raise RunFolderError.of(
            folder,
            found="a folder that you may not read",
            expected="a run folder that you may read",
            next_step="Ask for permission to list it and read its files, or for a copy.",
        )
    if not folder.exists():
        raise RunFolderError.of(
            folder, found="no such file or folder", expected="the folder of a run", next_step="Check the path."
        )
    if not os.path.isdir(folder):
        raise RunFolderError.of(
            folder,
            found="a file",
            expected="the folder of a run",
            next_step="Pass the folder that RLSCOPE_RUN_DIR was set to while the run was recorded.",
        )
    if not path.exists():
        raise RunFolderError.of(
            folder,
            found="no run.json",
            expected="the folder of a run, which holds run.json, workers/ and a folder per table",
            next_step="Pass the folder that RLSCOPE_RUN_DIR was set to while the run was recorded.",
        )
    return _manifest(path, _json_object(path))


def _json_object(path: Path, *, plain_bytes: int | None = None) -> Mapping[str, object]:
    """Return the JSON object in a file. plain_bytes: its size, if it is known to be a regular file with a plain name.

    Raises RunFolderError if the file is not a regular one in the run folder, or holds no JSON object.
    """
    known = plain_bytes is not None
    why = None if known else irregularity(path, path.parent if path.name == RUN_FILE else path.parent.parent)
    if why is not None:
        raise RunFolderError.of(
            path, found=why, expected="a regular file in the run folder", next_step="Copy the file there."
        )
    try:
        if (path.stat().st_size if plain_bytes is None else plain_bytes) > LARGEST_JSON_BYTES:
            raise ValueError(f"more than {LARGEST_JSON_BYTES:,} bytes")
        text = path.read_bytes().decode("utf-8")
        document = json.loads(text)
        # Half of a surrogate pair is not a character, and no table can hold it.
        document = cleaned(document) if "\\u" in text and _HALF_A_PAIR.search(text) else document
        document = cleaned(document, shortened) if len(text) > LONGEST_TEXT else document
    except (OSError, ValueError, RecursionError) as error:
        raise RunFolderError.of(
            path, found=f"unreadable JSON ({error})", expected="a JSON object", next_step="Restore the file."
        ) from error
    if not isinstance(document, dict):
        raise RunFolderError.of(
            path, found=f"a JSON {type(document).__name__}", expected="a JSON object", next_step="Restore the file."
        )
    return cast("Mapping[str, object]", document)


def irregularity(path: Path, folder: Path) -> str | None:
    """Return why a file of a run folder is not opened, such as a pipe or a link to another place; None if it can be."""
    if not _is_plain_name(path.name):
        return "a file whose name holds wildcards or unprintable characters"
    try:
        if _is_plainly_inside(path, folder):
            return None
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            return "a folder"
        if not stat.S_ISREG(mode):
            return "a pipe, a socket or a device"
        if not path.resolve().is_relative_to(folder.resolve()):
            return "a link that points outside the run folder"
    except (OSError, RuntimeError) as error:
        return f"a file that cannot be opened ({error})"
    return None


def _is_plain_name(name: str) -> bool:
    return name.isprintable() and _GLOBS.isdisjoint(name)


def _is_plainly_inside(path: Path, folder: Path) -> bool:
    """Return whether the path is a regular file in the folder or one level below, without links: nearly all are."""
    holder = path.parent
    is_held = holder == folder or (holder.parent == folder and stat.S_ISDIR(os.lstat(holder).st_mode))
    return is_held and stat.S_ISREG(os.lstat(path).st_mode)


def _manifest(path: Path, document: Mapping[str, object]) -> RunManifest:
    found = (document.get("format"), document.get("version"))
    if found != (FORMAT_NAME, FORMAT_VERSION):
        raise RunFolderError.of(
            path,
            found=f"format {found[0]!r} version {found[1]!r}",
            expected=f"format {FORMAT_NAME!r} version {FORMAT_VERSION}",
            next_step="Analyze it with the rlscope version that matches the rlscope-otel that recorded it.",
        )
    config = document.get("config")
    created_ns = document.get("created_ns")
    return RunManifest(
        run_id=str(document.get("run_id") or path.parent.name)[:_MOST_NAME_CHARACTERS],
        created_ns=created_ns if is_integer(created_ns) else None,
        config=cast("Mapping[str, object]", config) if isinstance(config, dict) else {},
        imported=read_imported(document.get("imported")),
    )


def is_integer(value: object, bits: int = 64) -> TypeGuard[int]:
    """Return whether a JSON value is a whole number that fits in a signed column of that width."""
    # `isinstance` would accept True. This runs half a million times for ten thousand workers.
    return type(value) is int and (value if value >= 0 else ~value).bit_length() < bits


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
        return [], [SkippedFile("workers", _unlisted(error))]
    for name, state, is_plain in states:
        before = None if known is None else known.get(name)
        found = before if before is not None and before.state == state else _read_worker(Path(name), state, is_plain)
        if known is not None:
            known[name] = found
        if found.document is None:
            skipped.append(SkippedFile(_name(folder, Path(name)), found.why))
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
                is_plain = is_folder and entry.is_file(follow_symlinks=False) and _is_plain_name(entry.name)
                yield entry.path, (facts.st_mtime_ns, facts.st_size, facts.st_ino), is_plain


def _read_worker(path: Path, state: tuple[int, int, int], is_plain: bool) -> _ReadWorker:
    try:
        document = dict(_json_object(path, plain_bytes=state[1] if is_plain else None))
    except RunFolderError as error:
        return _ReadWorker(state, None, str(error))
    why = _worker_fault(document, path)
    return _ReadWorker(state, document if why is None else None, why or "")


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


def list_table(folder: Path, table: str) -> tuple[TableFiles, list[SkippedFile]]:
    """Return the files of a table, ordered by worker and first number, and the files with an unreadable footer.

    Files that were merged into another file are left out. Damage inside a page does not show in the footer.

    Raises VanishedFileError if files vanish during every attempt to list them.
    """
    for _ in range(_LISTINGS):
        stored, skipped, has_vanished = _listed(folder, table)
        # The rows of a vanished file are in another file by now: its recorder merged it after the folder was listed.
        if not has_vanished:
            break
    else:
        raise VanishedFileError.of_run(folder)
    left_out = superfluous(stored)
    remaining = [file for file in stored if file.path not in left_out]
    merged = _merged_elsewhere([file for file in remaining if file.segment is None])
    return table_of(tuple(sorted((file for file in remaining if file.path not in merged), key=_in_order))), skipped


def _listed(folder: Path, table: str) -> tuple[list[StoredFile], list[SkippedFile], bool]:
    """Return the current files of a table, those that cannot be read, and whether some vanished in the meantime."""
    stored: list[StoredFile] = []
    skipped: list[SkippedFile] = []
    has_vanished = False
    try:
        paths = _parquet_files(folder / table)
    except OSError as error:
        return [], [SkippedFile(table, _unlisted(error))], False
    for path in paths:
        footer = irregularity(path, folder) or read_footer(path, table)
        if isinstance(footer, str):
            skipped.append(SkippedFile(_name(folder, path), footer))
            has_vanished = has_vanished or not os.path.lexists(path)
            continue
        stored += _stored(path, footer)
    return stored, skipped, has_vanished


def stored_file(path: Path) -> list[StoredFile]:
    """Return a file of a table as one entry, or as one per segment of a compacted file; empty if it cannot be read."""
    footer = irregularity(path, path.parent.parent) or read_footer(path, path.parent.name)
    return [] if isinstance(footer, str) else _stored(path, footer)


def _stored(path: Path, footer: Footer) -> list[StoredFile]:
    """Return a file as one entry, or as one per segment of a compacted file."""
    if not footer.segments:
        return [StoredFile(path, footer)]
    times = [time for each in footer.segments for time in (each.first_ns, each.last_ns) if time is not None]
    # If the segment list disagrees with the rows about the times, the rows are right.
    agrees = bool(times) and (min(times), max(times)) == (footer.first_ns, footer.last_ns)
    return [
        StoredFile(path, replace(footer, rows=each.rows, segments=(), **(each.times if agrees else {})), each)
        for each in footer.segments
    ]


def _in_order(file: StoredFile) -> tuple[str, int, int, str]:
    if file.segment is None:
        return _worker_and_numbers(file.path)
    worker_id, first, last = file.segment.numbers
    return worker_id, first, last, ""


def _merged_elsewhere(stored: Sequence[StoredFile]) -> set[Path]:
    """Return the files whose numbers lie within those of another file of the same run, table and worker.

    A recorder removes the files that it merged only after the merged file has its name, so both may exist. The footer
    takes precedence over the name, so a copy under another name hides nothing.
    """
    ranges: dict[tuple[str, ...], list[tuple[int, int, Path]]] = {}
    for file in stored:
        stamp = file.footer.stamp
        numbers = stamp.numbers if stamp is not None else FileNumbers.of(file.path.stem)
        if numbers is not None:
            owner = (stamp.run_id, stamp.table) if stamp is not None else ()
            ranges.setdefault((*owner, numbers.worker_id), []).append((numbers.first, -numbers.last, file.path))
    return {path for own in ranges.values() for path in _inside_others(sorted(own))}


def _inside_others(ranges: Sequence[tuple[int, int, Path]]) -> Iterator[Path]:
    """Yield the paths of ranges that lie within a different range. ranges: sorted by (first, -last)."""
    furthest, before, covered = -1, (-1, 1), False
    for first, negative_last, path in ranges:
        # Two files with the same range are copies of each other, so neither lies within the other.
        covered = covered if (first, negative_last) == before else -negative_last <= furthest
        before = (first, negative_last)
        furthest = max(furthest, -negative_last)
        if covered:
            yield path


def many_files_note(folder: Path) -> str | None:
    """Return a note on the cost of analyzing very many small files, and what to do first; None for a run of few files.

    Only lists names.
    """
    count = sum(1 for _ in _parquet_entries(folder))
    if count < _MANY_FILES:
        return None
    return (
        f"{count:,} files: opening them costs about {fmt.duration(count * _CPU_S_PER_FILE)} of CPU time per analysis. "
        f"Run `rlscope compact {folder}` first, or let the recorder merge its files."
    )


def table_metadata(path: Path, table: str) -> pq.FileMetaData | str:
    """Return the Parquet footer of a table's file, or why the file cannot be read."""
    return irregularity(path, path.parent.parent) or read_metadata(path, table)


def _parquet_entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    for table in TABLES:
        try:
            with os.scandir(folder / table) as entries:
                yield from (entry for entry in entries if entry.name.endswith(".parquet"))
        except OSError:
            continue


def small_run_note(folder: Path) -> str | None:
    """Return a note that the run is too small to profit from a cluster; None for a larger run."""
    stored = 0
    for entry in _parquet_entries(folder):
        stored += entry.stat(follow_symlinks=False).st_size
        # Stop early: a run may have a million small files.
        if stored >= _LEAST_BYTES_TO_DIVIDE:
            return None
    return (
        f"{fmt.size(stored)} of files: below about {fmt.size(_LEAST_BYTES_TO_DIVIDE)}, or 100 million rows, one "
        "process is faster than a cluster."
    )


def _parquet_files(folder: Path) -> list[Path]:
    """Return the Parquet files of a table by worker and number. Raises OSError if the folder cannot be listed."""
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if path.suffix == ".parquet"), key=_worker_and_numbers)


def _unlisted(error: OSError) -> str:
    return f"a folder that cannot be listed ({error.strerror})"


def _worker_and_numbers(path: Path) -> tuple[str, int, int, str]:
    numbers = FileNumbers.of(path.stem)
    if numbers is None:
        return path.stem, -1, -1, path.stem
    return numbers.worker_id, numbers.first, numbers.last, ""


def _name(folder: Path, path: Path) -> str:
    return for_terminal(path.relative_to(folder).as_posix())
