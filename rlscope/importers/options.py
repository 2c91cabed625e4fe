"""Parses command-line options for facts that the files do not state: phases, GPUs, time zone, further files."""

import glob
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from rlscope.errors import ArgumentError, ImportFileError
from rlscope.frameworks.table import NO_LINE, Framework, PhaseKind, PhaseMetric, Placement, Process, read_table
from rlscope.importers.quantities import MOST_GPUS
from rlscope.importers.target import ImportOptions
from rlscope.input_file import did_you_mean

_ROLES: Final = ("trainer", "sampler", "colocated")
"""Roles whose time a log can show."""
_OFFSET: Final = re.compile(r"([+-])(\d\d):?(\d\d)|Z")
OWN: Final = "custom"
"""Name of the framework of `--phases`."""
_STEP: Final = "step"
_PHASES: Final = (_STEP, *map(str, PhaseKind))
_PHASES_EXAMPLE: Final = "Example: --phases step=time/total,generate=time/sampling,train=time/train_step."


def import_options(
    framework: str | None = None,
    gpus: str | None = None,
    gpus_per_engine: int | None = None,
    utc_offset: str | None = None,
    with_files: Sequence[Path] = (),
    engine_logs: Sequence[str] = (),
    table: Path | None = None,
    phases: str | None = None,
) -> ImportOptions:
    """Parse options such as `trainer=8,sampler=8`.

    Raises ArgumentError if one is invalid or contradicts another, ImportFileError if the table is.
    """
    answers = {"--as": framework, "--framework": table, "--phases": phases}
    given = [name for name, value in answers.items() if value is not None]
    if len(given) > 1:
        raise ArgumentError.of(
            " and ".join(given), found="several answers", expected="one framework", next_step="Pass one of them."
        )
    by_role = {} if gpus is None else _gpus_by_role(gpus)
    return ImportOptions(
        framework=framework,
        own=_own_table(table) if table is not None else _own_phases(phases, by_role) if phases is not None else None,
        gpus=by_role,
        gpus_per_engine=gpus_per_engine,
        utc_offset_s=None if utc_offset is None else _offset_s(utc_offset),
        with_files=tuple(with_files),
        engine_logs=tuple(path for pattern in engine_logs for path in _matches(pattern)),
    )


def _own_table(path: Path) -> Framework:
    """Return the user's table, which needs a metric or a timer of training."""
    table = read_table(path)
    console = table.console
    has_timers = console.timer is not NO_LINE and PhaseKind.TRAIN in console.timers.values()
    if not table.known_by and not has_timers:
        raise ImportFileError.of(
            f"{path}, phases",
            found="no metric of training",
            expected="phases whose metrics a metrics file has, or a log as `NAME: VALUE`, or timers of a console",
            next_step="docs/importers.md#your-own-framework shows a table.",
        )
    return table


def _own_phases(text: str, gpus: Mapping[str, int]) -> Framework:
    """Return the table of `step=time/total,generate=time/sampling,train=time/train_step`."""
    step: list[str] = []
    order: list[PhaseMetric] = []
    for part in text.split(","):
        kind, _, metric = (each.strip() for each in part.partition("="))
        if not metric or kind not in _PHASES:
            hint = did_you_mean(kind, _PHASES)
            raise ArgumentError.of(
                "--phases",
                found=repr(part.strip()),
                expected=f"PHASE=METRIC with PHASE one of {', '.join(_PHASES)}",
                next_step=f"{hint} {_PHASES_EXAMPLE}" if hint else _PHASES_EXAMPLE,
            )
        if kind == _STEP:
            step.append(metric)
        else:
            # Generation is the trainer's own work if it shares its GPUs with the samplers, else its wait.
            order.append(PhaseMetric(PhaseKind.TAKE if kind == PhaseKind.GENERATE else PhaseKind(kind), metric))
    if not any(each.kind is PhaseKind.TRAIN for each in order):
        raise ArgumentError.of(
            "--phases", found=repr(text), expected="the metric of training", next_step="Add train=METRIC."
        )
    is_separate = "sampler" in gpus or any(each.kind is PhaseKind.WAIT_SAMPLES for each in order)
    process = Process(tuple(order), tuple(step))
    return Framework(name=OWN, phases={"trainer": process}, placement=Placement(separate=is_separate))


def _gpus_by_role(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in text.split(","):
        role, _, count = part.strip().partition("=")
        if role not in _ROLES or not count.isdecimal() or not 0 < int(count) <= MOST_GPUS:
            raise ArgumentError.of(
                "--gpus",
                found=repr(part),
                expected=f"ROLE=N with ROLE one of {', '.join(_ROLES)}",
                next_step="Example: --gpus trainer=8,sampler=8.",
            )
        if role in found:
            raise ArgumentError.of(
                "--gpus",
                found=f"{role} twice",
                expected="each role once",
                next_step="Give the GPUs of a role together.",
            )
        found[role] = int(count)
    return found


def _offset_s(text: str) -> int:
    found = _OFFSET.fullmatch(text.strip())
    if found is None:
        raise ArgumentError.of(
            "--utc-offset", found=repr(text), expected="an offset from UTC", next_step="Example: --utc-offset +02:00."
        )
    seconds = int(found[2] or 0) * 3600 + int(found[3] or 0) * 60
    return -seconds if found[1] == "-" else seconds


def _matches(pattern: str) -> list[Path]:
    """Return the files that match a pattern. A pattern without a match is kept, so that the error names it."""
    return [Path(name) for name in sorted(glob.glob(pattern))] or [Path(pattern)]
