"""Small JSON files that are created once or replaced as a whole, so that a reader never sees a part."""

import contextlib
import errno
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
        _remove(part)
    return True


def replace(path: Path, document: Document) -> None:
    """Create or replace a file as a whole. Raises OSError if the folder cannot be written."""
    part = _write_part(path, document)
    try:
        os.replace(part, path)
    except OSError:
        _remove(part)
        raise


def as_read(document: Document) -> dict[str, object]:
    """Return the document as a reader sees it: tuples as lists, numbers of other libraries as plain numbers."""
    return json.loads(_text(document))


def _write_part(path: Path, document: Document) -> str:
    """Write the document under a unique name next to the path."""
    folder, name = os.path.split(path)
    part = f"{folder}/.{name}.{os.getpid()}.{secrets.token_hex(4)}.part"
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
    try:
        descriptor = os.open(part, flags, 0o644)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(part, flags, 0o644)
    try:
        content = _text(document).encode()
        try:
            # In one call, without the buffer of a file object: this runs at every flush.
            if os.write(descriptor, content) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), part)
        finally:
            os.close(descriptor)
    except OSError:
        _remove(part)
        raise
    return part


def _remove(part: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(part)


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
    """Return one line per value. An indent would use Python's slow encoder at every flush."""
    return _ENCODER.encode(document)


def _plain(value: object) -> object:
    """Return a NumPy or Torch scalar as a Python number, and anything else as text."""
    item = getattr(value, "item", None)
    return item() if callable(item) else str(value)


_ENCODER = json.JSONEncoder(default=_plain, separators=(",\n", ": "))
