"""The checks of `rlscope doctor`, which are its JSON document."""

from dataclasses import dataclass
from pathlib import Path

from rlscope.document import Document
from rlscope.reports.text.doctor import Check


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
class DoctorReport(Document):
    """Output of `rlscope doctor --json`: the data that a run has, and the data that each result lacks."""

    checks: tuple[Check, ...]
    """All data that the analysis can use, in the order in which it is needed."""
    beside: tuple[OtherFile, ...]
    """Files next to the given one."""
