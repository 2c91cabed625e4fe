"""The checks of `rlscope doctor`, which are its JSON document."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rlscope.document import Document
from rlscope.reports.answer import InBlocks
from rlscope.reports.blocks import Block, Bullets, Check, Checks, Part


@dataclass(frozen=True, slots=True)
class OtherFile:
    """Another file that may belong to the same run."""

    path: Path
    """Path of the file."""
    kind: str
    """Kind of file, detected from its contents."""
    how: str
    """Flag to pass the file with."""


@dataclass(frozen=True, slots=True)
class DoctorReport(InBlocks, Document):
    """Output of `rlscope doctor --json`: the data that a run has, and the data that each result lacks."""

    checks: tuple[Check, ...]
    """All data that the analysis can use, in the order in which it is needed."""
    beside: tuple[OtherFile, ...]
    """Files next to the given one."""

    @property
    def blocks(self) -> Iterable[Block]:
        """The checks, then the files beside the given one."""
        yield Checks(self.checks)
        if self.beside:
            files = [f"{file.path}: {file.kind}; {file.how}" for file in self.beside]
            yield Part("Other files in the folder, perhaps of the same run", [Bullets(files, "·")])
