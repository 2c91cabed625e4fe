"""The interface of importers: a name for `--as`, a function to recognize files, and one to read them into a target."""

import gzip
import os
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Final

from rlscope.errors import ImportFileError
from rlscope.frameworks.table import Framework
from rlscope.importers.target import ImportTarget

_GZIP: Final = b"\x1f\x8b"
_CHUNK_BYTES: Final = 1 << 20
LARGEST_UNPACKED_BYTES: Final = 16 << 30
"""Largest contents of a compressed file that are unpacked into a temporary folder."""
HEAD_BYTES: Final = 256 * 1024
"""Recognition reads the names of files and this many bytes of each, never a whole file."""
FURTHER_BYTES: Final = 16 << 20
"""Recognition reads this many bytes of a file whose head tells nothing: a log begins with the start of every worker."""
Progress = Callable[[int], None]
"""Called with the number of bytes read since the last call."""


def no_progress(_bytes: int) -> None:
    """Ignore progress in bytes."""


@dataclass(frozen=True, slots=True)
class ImportSource:
    """A file or folder, with the bytes that recognition may read."""

    path: Path
    head: bytes
    """The first bytes of a file; empty for a folder."""
    own: Framework | None = None
    """The user's own table, if any."""
    size: int = 0
    """Bytes of a file, which may grow while its head stays the same."""
    later: tuple[Path, ...] = ()
    """Files that the same run wrote after it was started again, in order."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """All files of the run, in order."""
        return (self.path, *self.later)

    @property
    def text(self) -> str:
        """The head as text; bytes that are not UTF-8 are replaced."""
        return self.head.decode("utf-8", errors="replace")


@dataclass(frozen=True, slots=True)
class Importer:
    """Importer of one kind of file of a framework or engine."""

    name: str
    """Value of `--as`: verl, sglang, prime-rl, ..."""
    kind: str
    """Kind of file, for example "SGLang engine log"."""
    recognize: Callable[[ImportSource], bool]
    """Returns whether the file is of this kind, by its name and its head."""
    read: Callable[[ImportSource, ImportTarget, Progress], None]
    """Fills the target. Raises ImportFileError if there is nothing to read."""
    is_companion: bool = False
    """Whether the file, such as an engine log, only adds to a run that another file describes."""
    is_console: bool = False
    """Whether the file is a console whose lines tell the trainer's time, which no metric in it does."""


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading. Raises OSError, also if it is a pipe or a device, which may never end."""
    if path.exists() and not path.is_file():
        raise OSError(None, "a pipe or a device, not a file")
    return path.open("rb")


def unpacked(path: Path, folder: Path) -> Path:
    """Return a file, or its contents under the folder if it is compressed with gzip. Raises ImportFileError."""
    with suppress(OSError), open_regular(path) as file:
        if file.read(len(_GZIP)) == _GZIP:
            # The paths of files of the same name still differ.
            return _unpack(path, folder / os.path.abspath(path).lstrip("/").removesuffix(".gz"))
    return path


def _unpack(path: Path, into: Path) -> Path:
    try:
        into.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path) as packed, into.open("wb") as file:
            while chunk := packed.read(_CHUNK_BYTES):
                file.write(chunk)
                if file.tell() > LARGEST_UNPACKED_BYTES:
                    raise ImportFileError.of(
                        path,
                        found=f"a compressed file with more than {LARGEST_UNPACKED_BYTES:,} bytes",
                        expected="a smaller one",
                        next_step="Unpack it and pass the file inside.",
                    )
        os.utime(into, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    except (OSError, EOFError, zlib.error) as error:
        raise ImportFileError.of(
            path,
            found=f"a file that cannot be unpacked ({error})",
            expected="a whole file, compressed with gzip",
            next_step=f"Unpack what there is of it, and pass that: zcat {path.name} > {into.name}.",
        ) from error
    return into


def open_source(path: Path, own: Framework | None = None, head_bytes: int = HEAD_BYTES) -> ImportSource:
    """Read the head of a source. Raises OSError if it cannot be read."""
    if path.is_dir():
        return ImportSource(path, b"", own)
    with open_regular(path) as file:
        return ImportSource(path, file.read(head_bytes).removeprefix(BOM_UTF8), own, path.stat().st_size)
