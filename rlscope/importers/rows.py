"""Output of every carrier: rows of named numbers, with the step and the time if the file states them.

A carrier knows a file format and nothing about frameworks. It streams: no file is held whole, an unreadable line or
record is counted and skipped, and no content of a file is evaluated or unpickled.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, Final, cast

from rlscope.importers.importer import ImportSource, Progress, no_progress
from rlscope.importers.quantities import epoch_ns, real
from rlscope.trace.imported import SourceFile

_DEEPEST: Final = 4
_STEP_NAMES: Final = ("step", "_step", "global_step", "train/global_step")
_TIME_NAMES: Final = ("_timestamp", "timestamp", "time", "wall_time", "recorded_at")
_NESTED: Final = ("data", "metrics")
"""Keys under which some writers put the metrics, beside the step."""


@dataclass(frozen=True, slots=True)
class MetricRow:
    """Content of one record."""

    time_ns: int | None
    """When the row was written, UTC epoch; None if the file has no times."""
    step: float | None
    """The step that the file itself states, of any size; None if it states none."""
    values: Mapping[str, float]


@dataclass(slots=True)
class Tally:
    """Counts kept while a file is read, and what the file says about the run besides its rows."""

    progress: Progress = no_progress
    """Called with the bytes that were counted."""
    lines: int = 0
    bad_lines: int = 0
    bytes: int = 0
    config: dict[str, Any] = field(default_factory=dict[str, Any])
    """Settings of the run as the framework wrote them, with their nesting."""
    earlier: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Settings of earlier starts of the run, whose place these took."""
    overrides: dict[str, float] = field(default_factory=dict[str, float])
    """Settings from the command line or a YAML text, by dotted name; the config takes precedence."""
    is_config_unread: bool = False
    """Whether a dictionary that is printed over several lines, as a config is, could not be read."""
    is_local: bool = False
    """Whether times of the rows are local, without a zone."""

    def count(self, size: int) -> None:
        """Count bytes that were read."""
        self.bytes += size
        self.progress(size)

    def source_file(self, path: Path) -> SourceFile:
        """Return the entry of this file for run.json."""
        return SourceFile(str(path), self.bytes, self.lines, self.bad_lines)


@dataclass(frozen=True, slots=True)
class Carrier:
    """One file format."""

    name: str
    """Name of the format: console, jsonl, wandb, tensorboard, csv, ..."""
    files: tuple[str, ...]
    """Patterns for the names of such files in a folder, most likely first."""
    fits: Callable[[ImportSource], bool]
    """Returns whether a file has this format, judged by its name and its first bytes."""
    rows: Callable[[Path, Tally], Iterator[MetricRow]]


def begins_with(magic: bytes) -> Callable[[ImportSource], bool]:
    """Return the test of a format whose files begin with these bytes."""
    return lambda source: source.head.startswith(magic)


def row_of(document: Mapping[str, Any]) -> MetricRow | None:
    """Return the row of one JSON object in the form that most metric writers use; None if it holds no number."""
    flat: dict[str, float] = {}
    _flatten(document, "", flat, _DEEPEST)
    step = next((flat[name] for name in _STEP_NAMES if name in flat and not math.isnan(flat[name])), None)
    stamps = (instant_ns(flat.get(name, document.get(name))) for name in _TIME_NAMES)
    if flat.keys() <= {*_STEP_NAMES, *_TIME_NAMES}:
        return None
    return MetricRow(next(filter(None, stamps), None), step, flat)


def joined_by_step(rows: Iterable[MetricRow]) -> Iterator[MetricRow]:
    """Join consecutive rows of a step, as some writers add each metric by itself; the time is that of the last."""
    for step, group in groupby(rows, key=lambda row: row.step):
        values, time_ns = dict[str, float](), None
        for row in group:
            values.update(row.values)
            time_ns = row.time_ns
        yield MetricRow(time_ns, step, values)


def instant_ns(stamp: object) -> int | None:
    """Parse a time: seconds or milliseconds since the epoch, or ISO 8601 text, which is UTC if it names no zone.

    None for anything else.
    """
    if isinstance(stamp, int | float):
        return epoch_ns(stamp) or epoch_ns(stamp / 1e3)
    try:
        moment = datetime.fromisoformat(str(stamp))
    except ValueError:
        return None
    return epoch_ns((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())


def _flatten(value: Mapping[str, Any], prefix: str, into: dict[str, float], depth: int) -> None:
    for name, held in value.items():
        full = name if prefix in ("", *(f"{nested}/" for nested in _NESTED)) else prefix + name
        if isinstance(held, int | float):
            into[full] = real(held)
        elif isinstance(held, dict) and depth:
            _flatten(held, f"{full}/", into, depth - 1)


def parsed_json(text: str | bytes) -> Any:  # noqa: ANN401
    """Parse a JSON text; None if it is not JSON or is nested too deeply."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def mapping(value: object) -> dict[str, Any]:
    """Return a JSON object; empty for anything else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def items(value: object) -> list[object]:
    """Return the items of a JSON list; empty for anything else."""
    return cast("list[object]", value) if isinstance(value, list) else []
