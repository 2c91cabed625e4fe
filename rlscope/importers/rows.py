"""What every carrier gives: rows of named numbers, with the step and the time that the file states, if any.

A carrier knows the form of a file and nothing of frameworks. It streams: no file is held whole, a line or record that
cannot be read is counted and left out, and nothing that a file contains is evaluated or unpickled.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from rlscope.importers.importer import ImportSource, Progress
from rlscope.importers.quantities import epoch_ns, real
from rlscope.trace.imported import SourceFile

_DEEPEST: Final = 4
_STEP_NAMES: Final = ("step", "_step", "global_step", "train/global_step")
_TIME_NAMES: Final = ("_timestamp", "timestamp", "time", "wall_time")
_NESTED: Final = ("data", "metrics")
"""Under which some writers put the metrics beside the step."""


@dataclass(frozen=True, slots=True)
class MetricRow:
    """What one record states."""

    time_ns: int | None
    """When it was written, UTC epoch; None where the file has no times."""
    step: float | None
    """The step that the file itself names, of any size; None where it names none."""
    values: Mapping[str, float]


class GpuReading(NamedTuple):
    """One reading of one GPU of the machine that logs."""

    time_ns: int
    gpu: int
    busy_ratio: float | None
    sm_active_ratio: float | None
    memory_used_bytes: float | None
    power_w: float | None


@dataclass(slots=True)
class Tally:
    """What is counted while a file is read, and what it says about the run besides its rows."""

    lines: int = 0
    bad_lines: int = 0
    bytes: int = 0
    config: dict[str, Any] = field(default_factory=dict[str, Any])
    """Settings of the run as the framework wrote them, nested as they were."""
    overrides: dict[str, int] = field(default_factory=dict[str, int])
    """Settings on the command line, by their dotted names; the config counts before them."""
    is_config_unread: bool = False
    """Whether a dictionary is printed over several lines, as a config is, and cannot be read."""
    host: str | None = None
    gpu_readings: list[GpuReading] = field(default_factory=list[GpuReading])
    """Every few seconds one a GPU: some ten thousand a day."""

    def source_file(self, path: Path) -> SourceFile:
        """What is kept of the file in run.json."""
        return SourceFile(str(path), self.bytes, self.lines, self.bad_lines)


@dataclass(frozen=True, slots=True)
class Carrier:
    """One form of files."""

    name: str
    """console, jsonl, wandb, tensorboard, csv, ..."""
    files: tuple[str, ...]
    """Patterns of the names of such files in a folder, the likeliest first."""
    fits: Callable[[ImportSource], bool]
    """Whether a file has this form, by its name and its first bytes."""
    rows: Callable[[Path, Tally, Progress], Iterator[MetricRow]]


def row_of(document: Mapping[str, Any]) -> MetricRow | None:
    """A row of one JSON object, as most writers of metrics write it; None where it holds no number."""
    flat: dict[str, float] = {}
    _flatten(document, "", flat, _DEEPEST)
    step = next((flat[name] for name in _STEP_NAMES if name in flat and not math.isnan(flat[name])), None)
    stamp = next((flat[name] for name in _TIME_NAMES if name in flat), None)
    if flat.keys() <= {*_STEP_NAMES, *_TIME_NAMES}:
        return None
    return MetricRow(epoch_ns(stamp), step, flat)


def _flatten(value: Mapping[str, Any], prefix: str, into: dict[str, float], depth: int) -> None:
    for name, held in value.items():
        full = name if prefix in ("", *(f"{nested}/" for nested in _NESTED)) else prefix + name
        if isinstance(held, int | float):
            into[full] = real(held)
        elif isinstance(held, dict) and depth:
            _flatten(held, f"{full}/", into, depth - 1)


def parsed_json(text: str | bytes) -> Any:  # noqa: ANN401
    """The value of a JSON text; None for what is not JSON, or is nested too deeply."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
