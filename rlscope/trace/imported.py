"""What is known of a run that no hook recorded: the `imported` entry of its run.json, and how sure each table is."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any, Final, Literal

from pydantic import TypeAdapter, ValidationError

Clock = Literal["wall", "local", "relative"]
"""wall: times of a known zone. local: times of an unknown zone, taken as UTC. relative: no file has times of its own,
so durations are right and dates are not."""
COMPLETE_RATIO: Final = 0.95
"""A worker of which less of its time is covered by the files gives no verdict."""


class Certainty(StrEnum):
    """How a table of an imported run came to be."""

    RECORDED = "recorded"
    """The file states each value and its time."""
    PLACED = "placed"
    """Durations are recorded; their place inside a training step is the order of the program."""
    INFERRED = "inferred"
    """Derived from recorded values by a rule, which is named."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file that was read, and how much of it could not be."""

    name: str
    bytes: int
    lines: int
    """Lines of text, or records of a binary file."""
    bad_lines: int = 0
    """Those of them that could not be read; they are left out."""


@dataclass(frozen=True, slots=True)
class TableOrigin:
    """How sure the rows of one table are."""

    certainty: Certainty
    rule: str | None = None
    """How the rows were inferred, in a few words; None for what is recorded or placed."""


@dataclass(frozen=True, slots=True)
class Imported:
    """Where an imported run comes from, and what its files cannot say."""

    framework: str
    """verl, SkyRL, ...: whose names were found."""
    era: str | None
    """Which of the framework's sets of names, where there are several."""
    carriers: tuple[str, ...]
    """console, jsonl, wandb, tensorboard, csv, ...: kinds of the files."""
    files: tuple[SourceFile, ...]
    clock: Clock
    """What the times of the files mean."""
    tables: Mapping[str, TableOrigin] = field(default_factory=dict[str, TableOrigin])
    coverage: Mapping[str, float] = field(default_factory=dict[str, float])
    """By worker: share of its extent (0 to 1) that the files cover, such as 500 of 999 steps."""
    is_thinned: bool = False
    """Whether steps are missing at regular intervals, as in exports of at most 500 rows."""
    notes: tuple[str, ...] = ()
    """What cannot be known, and the file or flag that would bring it; one sentence each."""
    no_verdict: tuple[str, ...] = ()
    """Why what the files hold is no ground for a verdict; empty where it is one."""

    @property
    def is_dated(self) -> bool:
        """Whether it is known when the run was: its times are wall-clock times of a known zone."""
        return self.clock == "wall"

    @property
    def refusal(self) -> str | None:
        """Why there is no verdict, in one clause; None where nothing speaks against one."""
        short = [worker for worker, ratio in self.coverage.items() if ratio < COMPLETE_RATIO]
        reasons = self.no_verdict or tuple(f"the files cover {self.coverage[each]:.0%} of {each}" for each in short)
        return "; ".join(reasons) or None


@cache
def _model() -> TypeAdapter[Imported]:
    return TypeAdapter(Imported)


def read_imported(raw: object) -> Imported | None:
    """The `imported` entry of run.json; None where there is none, and for one that does not fit."""
    try:
        return None if raw is None else _model().validate_python(raw)
    except ValidationError:
        return None


def as_document(imported: Imported) -> dict[str, Any]:
    """The entry as run.json holds it."""
    return asdict(imported)
