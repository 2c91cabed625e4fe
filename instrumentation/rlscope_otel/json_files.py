"""Small JSON files that are created once or replaced as a whole, so that a reader never sees a part."""

import contextlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

Document = Mapping[str, object]


def create_once(path: Path, document: Document) -> bool:
    """Create a complete file unless the name is taken. Returns True in the one process that created it.

    Raises OSError if the folder cannot be written.
    """
    part = _write_part(path, document)
    try:
        os.link(part, path)
    except FileExistsError:
        return False
    except OSError:
        return _create_exclusively(path, document)
    finally:
        part.unlink(missing_ok=True)
    return True


def replace(path: Path, document: Document) -> None:
    """Create or replace a file as a whole. Raises OSError if the folder cannot be written."""
    part = _write_part(path, document)
    try:
        os.replace(part, path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def as_read(document: Document) -> dict[str, object]:
    """Return the document as a reader sees it: tuples as lists, numbers of other libraries as plain numbers."""
    return json.loads(_text(document))


def _write_part(path: Path, document: Document) -> Path:
    """Write the document under a unique name next to the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.part")
    try:
        part.write_text(_text(document), encoding="utf-8")
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    return part


def _create_exclusively(path: Path, document: Document) -> bool:
    """Create a file on a file system without hard links. A reader may see it while it is written."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(_text(document))
    return True


def _text(document: Document) -> str:
    """Return one line per entry. An indent would use Python's slow encoder at every flush."""
    lines = ",\n".join(f" {_ENCODER.encode(key)}: {_ENCODER.encode(value)}" for key, value in document.items())
    return f"{{\n{lines}\n}}"


def _plain(value: object) -> object:
    """Return a NumPy or Torch scalar as a Python number, and anything else as text."""
    item = getattr(value, "item", None)
    return item() if callable(item) else str(value)


_ENCODER = json.JSONEncoder(default=_plain)
