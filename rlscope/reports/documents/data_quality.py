"""Gaps in the data as JSON: a part of the analysis document, and the document of `rlscope doctor`."""

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
    """Reason why it was not read."""


class ClockStepJson(Document):
    """A moment at which a clock was set."""

    at_ns: int
    """Approximate time by that clock, in UTC epoch nanoseconds."""
    by_s: Figure
    """Seconds that the clock was set forward; negative if it was set back."""


class ClockOffsetJson(Document):
    """A host whose clock disagrees with another host's."""

    host: str
    """The host."""
    against: str
    """The host that it is compared with; the same host if that clock was set during the run."""
    offset_s: Figure
    """Difference of the clocks, in seconds; positive if this host's clock is ahead. If the clock drifts or was set, the
    value at the start of the run. If the uncertainty is null, the difference is at least this."""
    uncertainty_s: Figure
    """Uncertainty, in seconds, of the offset and of every corrected time that is compared with a time of the other
    host; null if it is unknown."""
    is_corrected: bool = False
    """Whether the host's times are corrected throughout this document."""
    drift_ratio: Figure = 0.0
    """Seconds that the clock gains per second; 0 if the run is too short to show a drift."""
    steps: tuple[ClockStepJson, ...] = ()
    """Times at which the clock was set during the run."""


class SampledEngineJson(Document):
    """An engine that was polled from outside instead of recorded at each pass."""

    worker_id: str
    """Identifier of the worker."""
    interval_s: Figure
    """Median time between two readings, in seconds."""
    knows_busy: bool
    """Whether the engine itself counts its time in forward passes."""


class TableOriginJson(Document):
    """Certainty of the rows of one table."""

    certainty: Certainty
    """recorded: the file has every value and its time. placed: durations are recorded, and their place within a step
    follows the order of the program. inferred: derived by a rule."""
    rule: str | None
    """Rule that the rows were inferred with; null for recorded and placed rows."""


class SourceFileJson(Document):
    """A file that was imported."""

    name: str
    """Name of the file."""
    bytes: int
    """Bytes read."""
    lines: int
    """Lines of text, or records of a binary file."""
    bad_lines: int
    """Unreadable lines, which are left out."""


class ImportedJson(Document):
    """Origin of a run that was imported instead of recorded by hooks."""

    framework: str
    """Framework whose names appear in the files."""
    era: str | None
    """Version of the framework's names; null if the framework has only one."""
    carriers: tuple[str, ...]
    """Kinds of the files."""
    files: tuple[SourceFileJson, ...]
    """The files."""
    clock: Clock
    """wall: times in a known time zone. local: times in an unknown time zone, taken as UTC. relative: the files have no
    absolute times, so dates mean nothing."""
    tables: Mapping[str, TableOriginJson]
    """Certainty of the rows, by table."""
    coverage: Mapping[str, float]
    """Share of each worker's steps, 0 to 1, that the files contain, by worker."""
    is_incomplete: bool
    """Whether so many steps are missing that their time is left out."""
    notes: tuple[str, ...]
    """Gaps in the data, each with the file or flag that would fill it."""
    no_verdict: tuple[str, ...]
    """Reasons why the files do not support a verdict; empty if they do."""


class RowGapJson(Document):
    """Rows of one worker and table that differ from those that the worker wrote."""

    kind: Kind
    """missing: fewer rows than the worker wrote. beyond: more rows. changed: different content. moved: a file was
    renamed."""
    table: str
    """Name of the table."""
    worker_id: str
    """Identifier of the worker."""
    rows: int
    """Number of missing or extra rows; for changed or moved files, the number of rows affected."""
    gpu_s: Figure
    """Upper bound of the worker's GPU-seconds that the rows cover."""
    detail: str
    """The gap as a sentence."""


class CompletenessJson(Document):
    """Whether every row that the workers wrote was read."""

    state: State
    """complete, incomplete, or unknown. Unknown means that the row count of some worker was not recorded."""
    is_verified: bool
    """Whether the checksums of all files were compared and match."""
    missing_rows: int
    """Rows that were written but not found."""
    gaps: tuple[RowGapJson, ...]
    """Differences, by table and worker."""
    uncounted_workers: tuple[str, ...]
    """Workers whose row counts were not recorded."""


class DataQualityJson(Document):
    """Gaps in the data."""

    skipped_files: tuple[SkippedFileJson, ...]
    """Files that were not read."""
    dropped_rows: Mapping[str, int]
    """Rows that the recorder dropped, by table."""
    workers_without_end: tuple[str, ...]
    """Workers that never reported their end because they were killed or are still running."""
    clock_offsets: tuple[ClockOffsetJson, ...]
    """Hosts whose clocks disagree."""
    gaps: tuple[str, ...]
    """All other gaps, one sentence each."""
    sampled_engines: tuple[SampledEngineJson, ...]
    """Engines that were polled from outside."""
    completeness: CompletenessJson
    """Whether every row that the workers wrote was read."""
    imported: ImportedJson | None
    """Origin of an imported run; null for a run recorded by hooks."""


class PieceJson(Document):
    """One piece of data that the analysis can use."""

    name: str
    """Name of the data."""
    status: Status
    """Whether the data is present."""
    found: str
    """Description of the data that was found."""
    adds: str
    """Results that the missing data would add; empty if nothing is missing."""
    how: str
    """The line of code, flag or file that adds the missing data; empty if nothing is missing."""


class BesideJson(Document):
    """Another file that may belong to the same run."""

    path: str
    """Path of the file."""
    kind: str
    """Kind of file, detected from its contents."""
    how: str
    """Flag to pass the file with."""


class DoctorDocument(Document):
    """Output of `rlscope doctor --json`: the data that a run has, and the data that each result lacks."""

    model_config = ConfigDict(title="rlscope doctor --json")

    schema_version: Literal[1]
    """Version of this contract."""
    pieces: tuple[PieceJson, ...]
    """All data that the analysis can use, in the order in which it is needed."""
    beside: tuple[BesideJson, ...]
    """Files next to the given one."""


def doctor_document(checks: Iterable[Check], beside: Iterable[tuple[Path, str, str]]) -> DoctorDocument:
    """Return the document of all checks; beside: path, kind and flag of other files."""
    return DoctorDocument(
        schema_version=SCHEMA_VERSION,
        pieces=tuple(PieceJson.read(each) for each in checks),
        beside=tuple(BesideJson(path=str(path), kind=kind, how=how) for path, kind, how in beside),
    )
