"""The files of a run folder, each checked before anything reads it. No database is opened here.

A damaged file is skipped and listed with the reason. Only an unknown format, or a folder that is no run, is an error.
"""

import json
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeGuard, cast

from rlscope_otel.schema import FORMAT_NAME, FORMAT_VERSION, ROLES, WORKER_ID_PATTERN

from rlscope.errors import RunFolderError
from rlscope.text_out import cleaned, for_terminal
from rlscope.trace.footers import LATEST_NS, Footer, read_footer
from rlscope.trace.imported import Imported, read_imported

RUN_FILE: Final = "run.json"
_GLOBS: Final = "*?[]{}"
"""By these a reader takes one name for several."""
_HALF_A_PAIR: Final = re.compile(r"\\ud[89a-f]", re.IGNORECASE)
LARGEST_JSON_BYTES: Final = 4 * 10**6
"""Of run.json or a worker file: the settings of a run are a few kilobytes."""
_MOST_NAME_CHARACTERS: Final = 1_000
_IDENTITY_BITS: Final[Mapping[str, int]] = {"started_ns": 64, "gpu_count": 32}
"""The whole numbers that a worker file must hold, and the width of their column."""
_TIMES: Final = ("started_ns", "stopped_ns", "last_flush_ns")


@dataclass(frozen=True, slots=True)
class RunManifest:
    """run.json."""

    run_id: str
    created_ns: int | None
    config: Mapping[str, object]
    imported: Imported | None = None
    """Where the run comes from, if no hook recorded it."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A readable file of a table."""

    path: Path
    footer: Footer


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The readable files of one table, and the columns found in them."""

    paths: tuple[Path, ...]
    columns: frozenset[str]
    rows: int
    is_plain: bool = False
    """Whether every column of every file has exactly the contract's type."""
    files: tuple[StoredFile, ...] = ()
    """The same files, each with its footer."""


def table_of(files: tuple[StoredFile, ...]) -> TableFiles:
    """A table that consists of these files."""
    return TableFiles(
        paths=tuple(file.path for file in files),
        columns=frozenset(name for file in files for name in file.footer.columns),
        rows=sum(file.footer.rows for file in files),
        is_plain=all(file.footer.is_plain for file in files),
        files=files,
    )


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A file of the run folder that was not read."""

    path: str
    why: str


def read_manifest(folder: Path) -> RunManifest:
    """Read run.json. Raises RunFolderError for what is no run, or a format that this version does not know."""
    path = folder / RUN_FILE
    if not folder.is_dir():
        raise RunFolderError.of(
            folder,
            found="a file" if folder.exists() else "nothing",
            expected="the folder of a run",
            next_step="Pass the folder that RLSCOPE_RUN_DIR named while the run was recorded.",
        )
    if not path.exists():
        raise RunFolderError.of(
            folder,
            found="no run.json",
            expected="the folder of a run, which holds run.json, workers/ and a folder per table",
            next_step="Pass the folder that RLSCOPE_RUN_DIR named while the run was recorded.",
        )
    return _manifest(path, _json_object(path))


def _json_object(path: Path) -> Mapping[str, object]:
    why = irregularity(path, path.parent if path.name == RUN_FILE else path.parent.parent)
    if why is not None:
        raise RunFolderError.of(path, found=why, expected="a JSON file of its own", next_step="Copy the file there.")
    try:
        if path.stat().st_size > LARGEST_JSON_BYTES:
            raise ValueError(f"more than {LARGEST_JSON_BYTES:,} bytes")
        text = path.read_text(encoding="utf-8")
        document = json.loads(text)
        # Half of a pair is no character, and no table can hold it.
        document = cleaned(document) if _HALF_A_PAIR.search(text) else document
    except (OSError, ValueError, RecursionError) as error:
        raise RunFolderError.of(
            path, found=f"text that is not JSON ({error})", expected="a JSON object", next_step="Restore the file."
        ) from error
    if not isinstance(document, dict):
        raise RunFolderError.of(
            path, found=f"a JSON {type(document).__name__}", expected="a JSON object", next_step="Restore the file."
        )
    return cast("Mapping[str, object]", document)


def irregularity(path: Path, folder: Path) -> str | None:
    """Why a file of a run folder is not opened: it is a pipe or a device, or a link that leads out of the folder."""
    if not path.name.isprintable() or any(mark in path.name for mark in _GLOBS):
        return "a file whose name can stand for others, or cannot be printed"
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            return "a folder"
        if not stat.S_ISREG(mode):
            return "a pipe, a socket or a device"
        if not path.resolve().is_relative_to(folder.resolve()):
            return "a link that leads out of the run folder"
    except (OSError, RuntimeError) as error:
        return f"what cannot be opened ({error})"
    return None


def _manifest(path: Path, document: Mapping[str, object]) -> RunManifest:
    found = (document.get("format"), document.get("version"))
    if found != (FORMAT_NAME, FORMAT_VERSION):
        raise RunFolderError.of(
            path,
            found=f"format {found[0]!r} version {found[1]!r}",
            expected=f"format {FORMAT_NAME!r} version {FORMAT_VERSION}",
            next_step="Analyse it with the rlscope version that matches the rlscope-otel that recorded it.",
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
    """Whether a value of a JSON file is a whole number that a signed column of that width can hold."""
    return isinstance(value, int) and not isinstance(value, bool) and -(1 << (bits - 1)) <= value < 1 << (bits - 1)


def read_workers(folder: Path) -> tuple[list[dict[str, object]], list[SkippedFile]]:
    """The documents of workers/*.json that hold what the analysis cannot do without, and the files that do not."""
    documents: list[dict[str, object]] = []
    skipped: list[SkippedFile] = []
    for path in sorted((folder / "workers").glob("*.json")):
        try:
            document = dict(_json_object(path))
        except RunFolderError as error:
            skipped.append(SkippedFile(_name(folder, path), str(error)))
            continue
        why = _worker_fault(document, path)
        if why is None:
            documents.append(document)
        else:
            skipped.append(SkippedFile(_name(folder, path), why))
    return documents, skipped


def host_of(worker: Mapping[str, object]) -> str | None:
    """The host of a worker, by the document of its file; None where it states none that can be one."""
    host = worker.get("host")
    return host if isinstance(host, str) else None


def _worker_fault(document: Mapping[str, object], path: Path) -> str | None:
    if document.get("worker_id") != path.stem or not re.fullmatch(WORKER_ID_PATTERN, path.stem):
        return f"worker_id is {document.get('worker_id')!r}, expected {path.stem!r}, the name of the file"
    if document.get("role") not in ROLES:
        return f"role is {document.get('role')!r}, expected one of {', '.join(ROLES)}"
    for key, bits in _IDENTITY_BITS.items():
        value = document.get(key)
        if not is_integer(value, bits) or value < 0:
            return f"{key} is {value!r}, expected a whole number, at least 0, of {bits} bits"
    for key in ("stopped_ns", "last_flush_ns"):
        value = document.get(key)
        if value is not None and not is_integer(value):
            return f"{key} is {value!r}, expected a whole number or null, of 64 bits"
    return next((_late_fault(key, document[key]) for key in _TIMES if _is_too_late(document.get(key))), None)


def _is_too_late(value: object) -> bool:
    return isinstance(value, int) and value >= LATEST_NS


def _late_fault(key: str, value: object) -> str:
    fix = "correct the time" if key == "started_ns" else "correct it, or write null where it is not known"
    return f"{key} is {value}, expected nanoseconds since 1970, before the year 2116 (2^62); {fix}"


def list_table(folder: Path, table: str) -> tuple[TableFiles, list[SkippedFile]]:
    """The files of one table in the order (worker, sequence), and those whose footer shows that they cannot be read.

    Damage inside a file does not show in its footer.
    """
    stored: list[StoredFile] = []
    skipped: list[SkippedFile] = []
    for path in _parquet_files(folder / table):
        footer = irregularity(path, folder) or read_footer(path, table)
        if isinstance(footer, str):
            skipped.append(SkippedFile(_name(folder, path), footer))
            continue
        stored.append(StoredFile(path, footer))
    return table_of(tuple(stored)), skipped


def table_fault(path: Path, table: str) -> str | None:
    """Why a file of a table cannot be read, by its envelope and footer; None when it can."""
    footer = irregularity(path, path.parent.parent) or read_footer(path, table)
    return footer if isinstance(footer, str) else None


def _parquet_files(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        return iter(())
    return iter(sorted((path for path in folder.iterdir() if path.suffix == ".parquet"), key=_worker_and_sequence))


def _worker_and_sequence(path: Path) -> tuple[str, int, str]:
    worker_id, _, sequence = path.stem.rpartition("-")
    return (worker_id, int(sequence), "") if sequence.isdecimal() else (path.stem, -1, path.stem)


def _name(folder: Path, path: Path) -> str:
    return for_terminal(path.relative_to(folder).as_posix())
