"""Reads run.json and other JSON files of a run. A folder without a run, or with one of another format, is an error."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from rlscope_otel.schema import FORMAT_NAME, FORMAT_VERSION

from rlscope.errors import RunFolderError
from rlscope.input_file import is_integer
from rlscope.text_out import LONGEST_TEXT, as_bytes, cleaned, shortened
from rlscope.trace.files import irregularity
from rlscope.trace.imported import Imported, read_imported

RUN_FILE: Final = "run.json"
_DEEPEST: Final = 6
"""Maximum depth of folders that are searched for runs."""
_HALF_A_PAIR: Final = re.compile(r"\\ud[89a-f]", re.IGNORECASE)
LARGEST_JSON_BYTES: Final = 4 * 10**6
"""Maximum size of run.json or a worker file: the settings of a run take a few kilobytes."""
_MOST_NAME_CHARACTERS: Final = 1_000


@dataclass(frozen=True, slots=True)
class RunManifest:
    """Contents of run.json."""

    run_id: str
    created_ns: int | None
    config: Mapping[str, object]
    imported: Imported | None = None
    """Origin of an imported run; None if hooks recorded it."""


def run_folder(path: Path) -> Path:
    """Return the run folder that a path refers to: the folder of a run.json, otherwise the path itself.

    Raises RunFolderError if the path cannot be looked up, such as one with a name that is too long.
    """
    try:
        path.exists()
    except OSError as error:
        expected, found = "the path of a run", error.strerror or str(error)
        raise RunFolderError.of(path, found=found, expected=expected, next_step="Check the path.") from error
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
    if as_bytes(str(folder)) != os.fsencode(folder):
        raise RunFolderError.of(
            folder, found="a name that is not UTF-8", expected="one that DuckDB can open", next_step="Rename it."
        )
    if not path.exists():
        raise RunFolderError.of(
            folder,
            found="no run.json",
            expected="the folder of a run, which holds run.json, workers/ and a folder per table",
            next_step="Pass the folder that RLSCOPE_RUN_DIR was set to while the run was recorded.",
        )
    return _manifest(path, read_json(path))


def read_json(path: Path, *, plain_bytes: int | None = None) -> Mapping[str, object]:
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
