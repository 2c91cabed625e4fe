"""`run.json`: which run this folder holds. The first worker creates it; the others join the run.

Its identity is written once. Later workers may add settings that are missing (a sampler often starts before the
trainer, which knows the batch size), but never change one.
"""

import json
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from rlscope_otel import json_files, schema
from rlscope_otel.errors import SetupError

_READ_ATTEMPTS = 20
# Only where the file system has no hard links can a reader meet a file that is still being written.
_READ_PAUSE_S = 0.05


def exists(run_dir: Path) -> bool:
    """Return whether the folder holds a run."""
    # Without pathlib, which would take twice as long: this runs at every flush.
    return os.path.exists(f"{run_dir}/run.json")


def join_run(
    run_dir: Path, run_id: str | None, config: Mapping[str, object], created_ns: int
) -> tuple[str, tuple[str, ...]]:
    """Create run.json, or join the run that it names. Returns its id, and which of these settings differ from its own.

    Raises SetupError when the folder holds another run or another format, OSError when it cannot be written.
    """
    path = run_dir / "run.json"
    new_id = run_id or f"{run_dir.name or 'run'}-{secrets.token_hex(4)}"
    document = {
        "format": schema.FORMAT_NAME,
        "version": schema.FORMAT_VERSION,
        "run_id": new_id,
        "created_ns": created_ns,
        "config": dict(config),
    }
    if not path.exists() and json_files.create_once(path, document):
        return new_id, ()
    found = read(path)
    found_id = _checked(path, found)
    if run_id is not None and found_id != run_id:
        raise SetupError.foreign_folder(path, f"run {found_id!r}", f"run {run_id!r}")
    add_config(run_dir, config)
    known, wanted = config_of(found), json_files.as_read(config)
    return found_id, tuple(name for name in wanted if name in known and known[name] != wanted[name])


def add_config(run_dir: Path, config: Mapping[str, object]) -> bool:
    """Add the settings that run.json lacks; True if it already had them all.

    If two workers add at the same moment, one addition may be lost, so each flush tries again until it is there.
    """
    path = run_dir / "run.json"
    document = with_added(read(path), config) if config else None
    if document is not None:
        json_files.replace(path, document)
    return document is None


def with_added(document: Mapping[str, object], config: Mapping[str, object]) -> dict[str, object] | None:
    """Return the content of run.json with the settings that it lacks. None if it has them all.

    Facts of one model may come from several workers.
    """
    known = config_of(document)
    added = {**config, **known}
    own, model = config.get("model"), known.get("model")
    if isinstance(own, dict) and isinstance(model, dict) and own.get("name") == model.get("name"):
        added["model"] = {**own, **model}
    return None if added == known else {**document, "config": added}


def config_of(document: Mapping[str, object]) -> dict[str, object]:
    """Return the settings in the content of run.json."""
    config = document.get("config")
    return cast("dict[str, object]", config) if isinstance(config, dict) else {}


def read(path: Path) -> dict[str, object]:
    """The file's content. Raises SetupError when it is not a JSON object."""
    for _ in range(_READ_ATTEMPTS):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            time.sleep(_READ_PAUSE_S)
            continue
        if isinstance(document, dict):
            return cast("dict[str, object]", document)
        break
    raise SetupError.foreign_folder(path, "something that is not a JSON object", "an rlscope run")


def _checked(path: Path, document: Mapping[str, object]) -> str:
    found = (document.get("format"), document.get("version"))
    if found != (schema.FORMAT_NAME, schema.FORMAT_VERSION):
        expected = f"format {schema.FORMAT_NAME!r} version {schema.FORMAT_VERSION}"
        raise SetupError.foreign_folder(path, f"format {found[0]!r} version {found[1]!r}", expected)
    return str(document.get("run_id"))
