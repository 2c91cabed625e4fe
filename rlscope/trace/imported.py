"""Origin of an imported run: the `imported` entry of its run.json, with the certainty of each table."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Final, Literal

from pydantic import TypeAdapter, ValidationError

from rlscope.document import LEFT_OUT

Clock = Literal["wall", "local", "relative"]
"""wall: times in a known time zone. local: times in an unknown zone, read as UTC. relative: the files have no absolute
times, so durations are right but dates are not."""
ReportedKind = Literal["staleness", "throughput", "mean_length", "longest_length"]
"""Meaning of a metric that a framework reports, by the key of its table that names the metric."""
COMPLETE_RATIO: Final = 0.95
"""Minimum share of each worker's time that the files must cover for a verdict."""


class Certainty(StrEnum):
    """Origin of the rows of an imported table."""

    RECORDED = "recorded"
    """The file states each value and its time."""
    PLACED = "placed"
    """Durations are recorded; they are placed within a training step in the order of the program."""
    INFERRED = "inferred"
    """The rows are derived from recorded values by a named rule."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A source file of an import, and how much of it could not be read."""

    name: str
    """Name of the file."""
    bytes: int
    """Bytes read."""
    lines: int
    """Lines of text, or records of a binary file."""
    bad_lines: int = 0
    """Lines or records that could not be read and were left out."""


@dataclass(frozen=True, slots=True)
class TableOrigin:
    """Certainty of the rows of one table."""

    certainty: Certainty
    """recorded: the file has every value and its time. placed: durations are recorded, and their place within a step
    follows the order of the program. inferred: derived by a rule."""
    rule: str | None = None
    """Rule that inferred the rows, in a few words; None if they are recorded or placed."""


@dataclass(frozen=True, slots=True)
class Imported:
    """Origin of an imported run, and the limits of its files."""

    framework: str
    """Framework whose metric names were found, such as verl or SkyRL."""
    carriers: tuple[str, ...]
    """Kinds of the files: console, jsonl, wandb, tensorboard, csv, ..."""
    files: tuple[SourceFile, ...]
    """The files."""
    clock: Clock
    """wall: times in a known time zone. local: times in an unknown time zone, taken as UTC. relative: the files have no
    absolute times, so dates mean nothing."""
    tables: Mapping[str, TableOrigin] = field(default_factory=dict[str, TableOrigin])
    """Certainty of the rows, by table."""
    metrics: Annotated[Mapping[ReportedKind, tuple[str, ...]], LEFT_OUT] = field(
        default_factory=dict[ReportedKind, tuple[str, ...]]
    )
    """Names of the reported metrics that hold the staleness of a step, tokens per second, or the mean or the longest
    response length, in the framework's own terms."""
    coverage: Mapping[str, float] = field(default_factory=dict[str, float])
    """Share of each worker's duration (0 to 1) that the files cover, such as 500 of 999 steps."""
    is_incomplete: bool = False
    """Whether less than 95% of the steps of a worker are in its files."""
    thinned_evenly: tuple[str, ...] = ()
    """Workers whose missing steps are spread evenly over the run, so that shares of time hold for all steps."""
    notes: tuple[str, ...] = ()
    """Missing facts, each with the file or flag that would provide it, as sentences."""
    no_verdict: tuple[str, ...] = ()
    """Reasons why the files do not support a verdict; empty if they do."""

    @property
    def is_dated(self) -> bool:
        """Whether the date of the run is known: its times are wall-clock times in a known time zone."""
        return self.clock == "wall"

    @property
    def refusal(self) -> str | None:
        """Reason why there is no verdict, as one clause; None if a verdict is possible."""
        even = self.thinned_evenly
        short = [worker for worker, ratio in self.coverage.items() if ratio < COMPLETE_RATIO and worker not in even]
        reasons = self.no_verdict or tuple(f"the files cover {self.coverage[each]:.0%} of {each}" for each in short)
        return "; ".join(reasons) or None


@cache
def _model() -> TypeAdapter[Imported]:
    return TypeAdapter(Imported)


def read_imported(raw: object) -> Imported | None:
    """Return the `imported` entry of run.json; None if it is missing or invalid."""
    try:
        return None if raw is None else _model().validate_python(raw)
    except ValidationError:
        return None


def as_document(imported: Imported) -> dict[str, Any]:
    """Return the entry in the form that run.json holds."""
    return asdict(imported)
