"""What every importer is: a name for `--as`, how it knows its files, and how it fills a target from one of them."""

from collections.abc import Callable
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Final

from rlscope.importers.target import ImportOptions, ImportTarget

HEAD_BYTES: Final = 256 * 1024
"""Recognition looks at the names of files and at so many bytes of each, never at a whole one."""
Progress = Callable[[int], None]
"""Called with the bytes that were read since the last call."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file or a folder that was named, with what recognition may look at."""

    path: Path
    head: bytes
    """The first bytes of a file; of a folder none."""

    @property
    def text(self) -> str:
        """The head as text; bytes that are not UTF-8 are replaced."""
        return self.head.decode("utf-8", errors="replace")


@dataclass(frozen=True, slots=True)
class Importer:
    """One kind of file of one framework or engine."""

    name: str
    """Of `--as`: verl, sglang, prime-rl, ..."""
    kind: str
    """What it reads, as in "SGLang engine log"."""
    recognise: Callable[[Source], str | None]
    """What of the source is of this kind, as "12 lines `Decode batch`"; None where nothing is."""
    read: Callable[[Source, ImportTarget, ImportOptions, Progress], str | None]
    """Fills the target and returns the era of the names that were found. Raises ImportFileError where nothing is."""
    is_companion: bool = False
    """Whether it adds to a run that another file tells (an engine's log) rather than telling one."""


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading. Raises OSError, also for a pipe or a device, which may never end."""
    if path.exists() and not path.is_file():
        raise OSError(None, "a pipe or a device, not a file")
    return path.open("rb")


def open_source(path: Path) -> Source:
    """The source with its head. Raises OSError."""
    if path.is_dir():
        return Source(path, b"")
    with open_regular(path) as file:
        return Source(path, file.read(HEAD_BYTES))
