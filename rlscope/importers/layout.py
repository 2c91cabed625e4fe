"""Place steps in time, with durations as logged and phases in program order. Opens no file and makes no rows.

A step ends when its metrics were written; without times, steps follow each other from a fixed origin. Any part of a
step that no phase covers stays empty, and the ledger shows it as unattributed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import median
from typing import Final

from rlscope.frameworks.table import PhaseKind, Process
from rlscope.importers.steps import ProcessSteps, Step, phase_value

_LATE_RATIO: Final = 0.05
"""Tolerance for rows written late: the steps may last longer than the time between their rows by this share."""
_LATE_NS: Final = 60 * 10**9
_OUTSIDE: Final = {"auto": "before", "auto_after": "after"}
"""Where phases lie that some releases time inside the step, if this one does not."""


@dataclass(frozen=True, slots=True)
class PlacedPhase:
    """A phase of a step, placed in time."""

    kind: PhaseKind
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class PlacedStep:
    """A step with its phases, placed in time. start_ns includes the phases before the step."""

    step: Step
    start_ns: int
    end_ns: int
    pieces: tuple[PlacedPhase, ...]


@dataclass(frozen=True, slots=True)
class _Durations:
    """Durations of a step and its phases, in seconds."""

    before: tuple[tuple[PhaseKind, float], ...]
    inside: tuple[tuple[PhaseKind, float], ...]
    after: tuple[tuple[PhaseKind, float], ...]
    step_s: float

    @property
    def inside_s(self) -> float:
        return sum(seconds for _, seconds in self.inside)

    def lengths_ns(self) -> tuple[int, int, int]:
        """Return the lengths of the part before the step, of the step, and of the part after it."""
        before_s, after_s = (sum(seconds for _, seconds in parts) for parts in (self.before, self.after))
        return round(1e9 * before_s), round(1e9 * self.step_s), round(1e9 * after_s)


def placed_steps(steps: ProcessSteps, origin_ns: int, is_separate: bool) -> tuple[PlacedStep, ...]:
    """Place each step after the previous one. Without times, the first starts at the origin."""
    return tuple(_place(_counted(steps, is_separate), origin_ns, _auto_inside(steps)))


def _counted(steps: ProcessSteps, is_separate: bool) -> ProcessSteps:
    """Keep only the phases that count in this kind of run."""
    left_out = "colocated" if is_separate else "separate"
    phases = tuple(phase for phase in steps.process.order if phase.when != left_out)
    return replace(steps, process=replace(steps.process, order=phases))


def open_ratio(steps: ProcessSteps, is_separate: bool) -> float | None:
    """Return the median share of a step that its phases leave, negative if they exceed it; None without any steps."""
    ratios: list[float] = []
    auto_inside, steps = _auto_inside(steps), _counted(steps, is_separate)
    for step in steps.steps:
        durations = _durations(steps.process, step, auto_inside)
        if durations.step_s > 0.0 and durations.inside:
            ratios.append(1.0 - durations.inside_s / durations.step_s)
    return median(ratios) if ratios else None


def _durations(process: Process, step: Step, auto_inside: frozenset[str]) -> _Durations:
    parts: dict[str, list[tuple[PhaseKind, float]]] = {"before": [], "inside": [], "after": []}
    rest: tuple[int, PhaseKind] | None = None
    for phase in process.order:
        where = "inside" if phase.metric in auto_inside else _OUTSIDE.get(phase.where, phase.where)
        seconds = phase_value(phase, step.values)
        if phase.metric is None or (phase.is_rest and seconds is None):
            rest = len(parts["inside"]), phase.kind
        elif seconds:
            parts[where].append((phase.kind, seconds * step.count))
    inside_s = sum(seconds for _, seconds in parts["inside"])
    stated = next((step.count * step.values[name] for name in process.step if step.values.get(name, 0.0) > 0.0), None)
    if rest is not None and stated is not None and stated > inside_s:
        parts["inside"].insert(rest[0], (rest[1], stated - inside_s))
    return _Durations(
        tuple(parts["before"]), tuple(parts["inside"]), tuple(parts["after"]), inside_s if stated is None else stated
    )


def _auto_inside(steps: ProcessSteps) -> frozenset[str]:
    """Return the metrics of those phases whose place differs between releases that lie inside the step here.

    They are the phases with which the sums close best; without a difference, all of them.
    """
    phases = [phase for phase in steps.process.order if phase.where in _OUTSIDE]
    found = [step for step in steps.steps if any(phase_value(phase, step.values) for phase in phases)]
    names = [phase.metric or "" for phase in phases if any(phase_value(phase, step.values) for step in found)]

    def open_s(inside: frozenset[str]) -> float:
        durations = (_durations(steps.process, step, inside) for step in found)
        return sum(abs(each.step_s - each.inside_s) for each in durations)

    sizes = range(len(names), -1, -1)
    return min((frozenset(each) for size in sizes for each in combinations(names, size)), key=open_s)


def _place(steps: ProcessSteps, origin_ns: int, auto_inside: frozenset[str]) -> Iterator[PlacedStep]:
    durations = [_durations(steps.process, step, auto_inside) for step in steps.steps]
    ends_ns = _ends_ns(steps.steps, [sum(each.lengths_ns()) for each in durations], origin_ns)
    for step, each, end_ns in zip(steps.steps, durations, ends_ns, strict=True):
        before_ns, inside_ns, after_ns = each.lengths_ns()
        start_ns = end_ns - before_ns - inside_ns - after_ns
        if end_ns > start_ns:
            pieces = (
                *_row_of_pieces(each.before, start_ns, start_ns + before_ns),
                *_row_of_pieces(each.inside, start_ns + before_ns, end_ns - after_ns),
                *_row_of_pieces(each.after, end_ns - after_ns, end_ns),
            )
            yield PlacedStep(step, start_ns, end_ns, pieces)


def _ends_ns(steps: tuple[Step, ...], lengths_ns: list[int], origin_ns: int) -> list[int]:
    """Return when each step ended: when it was logged, or earlier if the next step must have begun before that.

    Metrics are written shortly after their step. Laying out from the last step backwards keeps every duration whole.
    """
    ends_ns: list[int] = []
    last_ns = origin_ns
    for step, length_ns in zip(steps, lengths_ns, strict=True):
        last_ns = last_ns + length_ns if step.end_ns is None else step.end_ns
        ends_ns.append(last_ns)
    for index in range(len(steps) - 2, -1, -1):
        ends_ns[index] = min(ends_ns[index], ends_ns[index + 1] - lengths_ns[index + 1])
    return ends_ns


def contradicts_times(steps: ProcessSteps, is_separate: bool) -> bool:
    """Return whether the steps last longer than the time between their rows, so that the row times mean nothing."""
    counted, auto_inside = _counted(steps, is_separate), _auto_inside(steps)
    lengths_ns = [sum(_durations(counted.process, step, auto_inside).lengths_ns()) for step in counted.steps]
    stamps = [step.end_ns for step in counted.steps if step.end_ns is not None]
    if len(stamps) < 2:
        return False
    return sum(lengths_ns[1:]) > (1.0 + _LATE_RATIO) * (stamps[-1] - stamps[0]) + _LATE_NS


def _row_of_pieces(parts: tuple[tuple[PhaseKind, float], ...], start_ns: int, end_ns: int) -> Iterator[PlacedPhase]:
    for kind, seconds in parts:
        stop_ns = min(end_ns, start_ns + round(1e9 * seconds))
        if stop_ns > start_ns:
            yield PlacedPhase(kind, start_ns, stop_ns)
        start_ns = stop_ns
