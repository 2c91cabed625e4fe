"""The files of a run folder, each checked before anything reads it. No database is opened here.

A damaged file is skipped and listed with the reason. Only an unknown format, or a folder that is no run, is an error.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeGuard, cast

import pyarrow as pa
import pyarrow.parquet as pq
from rlscope_otel.schema import FORMAT_NAME, FORMAT_VERSION, ROLES, WORKER_ID_PATTERN, arrow_schema

from rlscope.errors import RunFolderError
from rlscope.trace.imported import Imported, read_imported

_MAGIC: Final = b"PAR1"
_SMALLEST_PARQUET_BYTES: Final = 12
_IDENTITY_BITS: Final[Mapping[str, int]] = {"started_ns": 64, "gpu_count": 32}
"""The whole numbers that a worker file must hold, and the width of their column."""
_TIMES: Final = ("started_ns", "stopped_ns", "last_flush_ns")
_LATEST_NS: Final = 1 << 62
"""In the year 2116: a later time is no clock's, and lengths added to it do not fit 64 bits."""


@dataclass(frozen=True, slots=True)
class RunManifest:
    """run.json."""

    run_id: str
    created_ns: int | None
    config: Mapping[str, object]
    imported: Imported | None = None
    """Where the run comes from, if no hook recorded it."""


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The readable files of one table, and the columns found in them."""

    paths: tuple[Path, ...]
    columns: frozenset[str]
    rows: int


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A file of the run folder that was not read."""

    path: str
    why: str


def read_manifest(folder: Path) -> RunManifest:
    """Read run.json. Raises RunFolderError for what is no run, or a format that this version does not know."""
    path = folder / "run.json"
    if not folder.is_dir():
        raise RunFolderError.of(
            folder,
            found="a file" if folder.exists() else "nothing",
            expected="the folder of a run",
            next_step="Pass the folder that RLSCOPE_RUN_DIR named while the run was recorded.",
        )
    if not path.is_file():
        raise RunFolderError.of(
            folder,
            found="no run.json",
            expected="the folder of a run, which holds run.json, workers/ and a folder per table",
            next_step="Pass the folder that RLSCOPE_RUN_DIR named while the run was recorded.",
        )
    return _manifest(path, _json_object(path))


def _json_object(path: Path) -> Mapping[str, object]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunFolderError.of(
            path, found=f"text that is not JSON ({error})", expected="a JSON object", next_step="Restore the file."
        ) from error
    if not isinstance(document, dict):
        raise RunFolderError.of(
            path, found=f"a JSON {type(document).__name__}", expected="a JSON object", next_step="Restore the file."
        )
    return cast("Mapping[str, object]", document)


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
        run_id=str(document.get("run_id") or path.parent.name),
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
    return isinstance(value, int) and value >= _LATEST_NS


def _late_fault(key: str, value: object) -> str:
    fix = "correct the time" if key == "started_ns" else "correct it, or write null where it is not known"
    return f"{key} is {value}, expected nanoseconds since 1970, before the year 2116 (2^62); {fix}"


def list_table(folder: Path, table: str) -> tuple[TableFiles, list[SkippedFile]]:
    """The files of one table in the order (worker, sequence), and those whose footer shows that they cannot be read.

    Damage inside a file does not show in its footer.
    """
    good: list[Path] = []
    skipped: list[SkippedFile] = []
    columns: set[str] = set()
    rows = 0
    for path in _parquet_files(folder / table):
        why, schema, file_rows = _check(path, table)
        if why is not None:
            skipped.append(SkippedFile(_name(folder, path), why))
            continue
        good.append(path)
        columns.update(schema)
        rows += file_rows
    return TableFiles(tuple(good), frozenset(columns), rows), skipped


def table_fault(path: Path, table: str) -> str | None:
    """Why a file of a table cannot be read, by its envelope and footer; None when it can."""
    return _check(path, table)[0]


def _parquet_files(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        return iter(())
    return iter(sorted((path for path in folder.iterdir() if path.suffix == ".parquet"), key=_worker_and_sequence))


def _worker_and_sequence(path: Path) -> tuple[str, int, str]:
    worker_id, _, sequence = path.stem.rpartition("-")
    return (worker_id, int(sequence), "") if sequence.isdecimal() else (path.stem, -1, path.stem)


def _check(path: Path, table: str) -> tuple[str | None, list[str], int]:
    try:
        why = _envelope_fault(path)
        if why is not None:
            return why, [], 0
        file = pq.ParquetFile(path)
        found = file.schema_arrow
        return _schema_fault(found, table), found.names, file.metadata.num_rows
    except (OSError, ValueError, pa.ArrowException) as error:
        return f"cannot be read: {error}", [], 0


def _envelope_fault(path: Path) -> str | None:
    size_bytes = path.stat().st_size
    if size_bytes < _SMALLEST_PARQUET_BYTES:
        return f"{size_bytes} bytes long, too short for a Parquet file"
    with path.open("rb") as file:
        head = file.read(4)
        file.seek(-4, 2)
        tail = file.read(4)
    if head != _MAGIC or tail != _MAGIC:
        return "no Parquet magic bytes at its start and end: cut off or not a Parquet file"
    return None


def _schema_fault(found: pa.Schema, table: str) -> str | None:
    for field in arrow_schema(table):
        index = found.get_field_index(field.name)
        if index < 0:
            if not field.nullable:
                return f"column {field.name} is missing, expected {field.type}"
        elif not _reads_as(found.field(index).type, field.type):
            return f"column {field.name} is {found.field(index).type}, expected {field.type}"
    return None


def _reads_as(found: pa.DataType, expected: pa.DataType) -> bool:
    """Whether a stored type can be cast to the contract's without losing anything but width."""
    if found == expected or pa.types.is_null(found):
        return True
    if pa.types.is_dictionary(found):
        return _reads_as(found.value_type, expected)
    if pa.types.is_integer(expected):
        return pa.types.is_integer(found)
    if pa.types.is_floating(expected):
        return pa.types.is_floating(found) or pa.types.is_integer(found)
    if pa.types.is_string(expected):
        return pa.types.is_string(found) or pa.types.is_large_string(found)
    if pa.types.is_list(expected):
        is_list = pa.types.is_list(found) or pa.types.is_large_list(found)
        return is_list and _reads_as(found.value_type, expected.value_type)
    if pa.types.is_struct(expected):
        return pa.types.is_struct(found) and all(
            found.get_field_index(field.name) >= 0
            and _reads_as(found.field(found.get_field_index(field.name)).type, field.type)
            for field in expected
        )
    return False


def _name(folder: Path, path: Path) -> str:
    return path.relative_to(folder).as_posix()
