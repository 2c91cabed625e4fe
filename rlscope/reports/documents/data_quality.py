"""What the analysis could not see, as JSON: a part of its document, and the document of `rlscope doctor`."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict

from rlscope.reports.documents import SCHEMA_VERSION, Document, Figure
from rlscope.reports.text.doctor import Check, Status
from rlscope.trace.completeness import Kind, State
from rlscope.trace.imported import Certainty, Clock


class SkippedFileJson(Document):
    """A file of the run that was not read."""

    path: str
    """Path of the file."""
    why: str
    """Why it was not read."""


class ClockStepJson(Document):
    """A moment at which a clock was set."""

    at_ns: int
    """About when, by that clock, UTC epoch."""
    by_s: Figure
    """Seconds that it was set forward by; negative for back."""


class ClockOffsetJson(Document):
    """A host whose clock disagrees with another host's."""

    host: str
    """The host."""
    against: str
    """The host that it is compared with; the same host where that one's clock was set during the run."""
    offset_s: Figure
    """Seconds by which the clock is ahead, at the start of the run where it drifts or was set; at least that where the
    uncertainty is null."""
    uncertainty_s: Figure
    """Uncertainty of the offset, in seconds, and of every corrected time that is compared with one of the other host;
    null if it is not known."""
    is_corrected: bool = False
    """Whether the host's times are corrected in everything that this document states."""
    drift_ratio: Figure = 0.0
    """Seconds that the clock gains in each second; 0 where the run is too short to show a drift."""
    steps: tuple[ClockStepJson, ...] = ()
    """When the clock was set during the run."""


class SampledEngineJson(Document):
    """An engine that was polled from outside, not recorded at each pass."""

    worker_id: str
    """Identifier of the worker."""
    interval_s: Figure
    """Median time between two readings, in seconds."""
    knows_busy: bool
    """Whether the engine counts its time in forward passes itself."""


class TableOriginJson(Document):
    """How sure the rows of one table are."""

    certainty: Certainty
    """recorded: the file states each value and its time. placed: durations are recorded, their place inside a step is
    the order of the program. inferred: derived by a rule."""
    rule: str | None
    """How the rows were inferred; null for what is recorded or placed."""


class SourceFileJson(Document):
    """A file that was imported."""

    name: str
    """Its name."""
    bytes: int
    """Bytes read."""
    lines: int
    """Lines of text, or records of a binary file."""
    bad_lines: int
    """Those of them that could not be read and are left out."""


class ImportedJson(Document):
    """Where a run comes from that no hook recorded."""

    framework: str
    """Whose names were found."""
    era: str | None
    """Which of the framework's sets of names; null where it has one."""
    carriers: tuple[str, ...]
    """Kinds of the files."""
    files: tuple[SourceFileJson, ...]
    """The files."""
    clock: Clock
    """wall: times of a known zone. local: times of an unknown zone, taken as UTC. relative: no file has times of its
    own, so dates mean nothing."""
    tables: Mapping[str, TableOriginJson]
    """How sure the rows of each table are."""
    coverage: Mapping[str, float]
    """By worker, the share of its steps, 0 to 1, that the files hold."""
    is_thinned: bool
    """Whether so many steps are missing that their time is left out."""
    notes: tuple[str, ...]
    """What cannot be known, and the file or flag that would bring it."""
    no_verdict: tuple[str, ...]
    """Why the files are no ground for a verdict; empty where they are one."""


class RowGapJson(Document):
    """Rows of one worker and table that are not as the worker wrote them."""

    kind: Kind
    """missing: fewer than it wrote. beyond: more. changed: other content. moved: a file has another's name."""
    table: str
    """Name of the table."""
    worker_id: str
    """Identifier of the worker."""
    rows: int
    """Rows that are missing or beyond; of what was changed or moved, the rows that it concerns."""
    gpu_s: Figure
    """GPU-seconds of the worker that they concern, at most."""
    detail: str
    """The same as a sentence."""


class CompletenessJson(Document):
    """Whether every row that the workers wrote was read."""

    state: State
    """complete, incomplete, or unknown: nobody stated how many rows some worker wrote."""
    is_verified: bool
    """Whether the checksums of all files were compared, and agree."""
    missing_rows: int
    """Rows that were written and are not there."""
    gaps: tuple[RowGapJson, ...]
    """What differs, by table and worker."""
    uncounted_workers: tuple[str, ...]
    """Workers of which nobody stated how many rows they wrote."""


class DataQualityJson(Document):
    """What the analysis could not see."""

    skipped_files: tuple[SkippedFileJson, ...]
    """Files that were not read."""
    dropped_rows: Mapping[str, int]
    """Rows that recording dropped, by table."""
    workers_without_end: tuple[str, ...]
    """Workers that never reported their end: killed, or still running."""
    clock_offsets: tuple[ClockOffsetJson, ...]
    """Hosts whose clocks disagree."""
    gaps: tuple[str, ...]
    """Everything else that is missing, one sentence each."""
    sampled_engines: tuple[SampledEngineJson, ...]
    """Engines that were polled from outside."""
    completeness: CompletenessJson
    """Whether every row that the workers wrote was read."""
    imported: ImportedJson | None
    """Where an imported run comes from; null for a run that hooks recorded."""


class PieceJson(Document):
    """One thing that answers need."""

    name: str
    """What it is."""
    status: Status
    """Whether it is there."""
    found: str
    """What was found of it, in words."""
    adds: str
    """What could be answered with it that cannot be now; empty where all of it is there."""
    how: str
    """The line of code, the flag or the file that brings it; empty where all of it is there."""


class BesideJson(Document):
    """Another file, perhaps of the same run."""

    path: str
    """Its path."""
    kind: str
    """What it is, by its content."""
    how: str
    """The flag that it is passed with."""


class DoctorDocument(Document):
    """What `rlscope doctor --json` prints: what is there of a run, and what is missing for which answer."""

    model_config = ConfigDict(title="rlscope doctor --json")

    schema_version: Literal[1]
    """Version of this contract."""
    pieces: tuple[PieceJson, ...]
    """Everything that answers need, in the order in which they need it."""
    beside: tuple[BesideJson, ...]
    """Files beside the one that was asked about."""


def doctor_document(checks: Iterable[Check], beside: Iterable[tuple[Path, str, str]]) -> DoctorDocument:
    """All pieces; beside: path, kind and flag of other files."""
    return DoctorDocument(
        schema_version=SCHEMA_VERSION,
        pieces=tuple(PieceJson.read(each) for each in checks),
        beside=tuple(BesideJson(path=str(path), kind=kind, how=how) for path, kind, how in beside),
    )
