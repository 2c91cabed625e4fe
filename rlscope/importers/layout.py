"""Place steps in time, with durations as logged and phases in program order. Opens no file and makes no rows.

A step ends when its metrics were written; without times, steps follow each other from a fixed origin. Any part of a
step that no phase covers stays empty, and the ledger shows it as unattributed.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise, starmap
from math import inf
from statistics import median
from typing import Final, NamedTuple, TypeVar

from rlscope.frameworks.table import PhaseKind, Process
from rlscope.importers.quantities import SECOND_NS, to_ns
from rlscope.importers.steps import ProcessSteps, Step, phase_value

_LATE_RATIO: Final = 0.05
"""Tolerance for rows written late: the steps may last longer than the time between their rows by this share."""
_LATE_NS: Final = 60 * SECOND_NS
LONGEST_PAUSE_NS: Final = 600 * SECOND_NS
_LONGEST_PAUSE_STEPS: Final = 10.0
_OUTSIDE: Final = {"auto": "before", "auto_after": "after"}
"""Where phases lie that some releases time inside the step, if this one does not."""
_Name = TypeVar("_Name", bound=str)
Phases = list[tuple[PhaseKind, float]]
"""Kinds of phases with their durations in seconds, in order."""


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

    def of(self, *kinds: PhaseKind) -> list[PlacedPhase]:
        """Return the phases of these kinds."""
        return [piece for piece in self.pieces if piece.kind in kinds]


class Durations(NamedTuple):
    """Durations of a step, and of the phases before it, in it and after it, in seconds."""

    before: Phases
    inside: Phases
    after: Phases
    step_s: float

    @property
    def inside_s(self) -> float:
        """Duration of the phases in the step."""
        return sum(seconds for _, seconds in self.inside)

    def lengths_ns(self) -> tuple[int, int, int]:
        """Return the lengths of the part before the step, of the step, and of the part after it."""
        before_s, after_s = (sum(seconds for _, seconds in parts) for parts in (self.before, self.after))
        return to_ns(before_s), to_ns(self.step_s), to_ns(after_s)


def durations_of(steps: ProcessSteps, is_separate: bool) -> list[Durations]:
    """Return the durations of each step and of its phases that count in this kind of run."""
    left_out = "colocated" if is_separate else "separate"
    process = replace(steps.process, order=tuple(each for each in steps.process.order if each.when != left_out))
    auto_inside = _auto_inside(steps)
    return [_durations(process, step, auto_inside) for step in steps.steps]


def open_ratio(durations: Iterable[Durations]) -> float | None:
    """Return the median share of a step that its phases leave, negative if they exceed it; None without any steps."""
    ratios = [1.0 - each.inside_s / each.step_s for each in durations if each.step_s > 0.0 and each.inside]
    return median(ratios) if ratios else None


def _durations(process: Process, step: Step, auto_inside: frozenset[str]) -> Durations:
    parts: dict[str, Phases] = {"before": [], "inside": [], "after": []}
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
    return Durations(**parts, step_s=inside_s if stated is None else stated)


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


def placed_steps(steps: Sequence[Step], durations: Sequence[Durations], origin_ns: int) -> list[PlacedStep]:
    """Place each step after the previous one. Without times, the first starts at the origin."""
    placed: list[PlacedStep] = []
    ends_ns = _ends_ns(steps, [sum(each.lengths_ns()) for each in durations], origin_ns)
    for step, each, end_ns in zip(steps, durations, ends_ns, strict=True):
        before_ns, inside_ns, after_ns = each.lengths_ns()
        start_ns = end_ns - before_ns - inside_ns - after_ns
        if end_ns > start_ns:
            pieces = (
                *laid_out(each.before, start_ns, start_ns + before_ns),
                *laid_out(each.inside, start_ns + before_ns, end_ns - after_ns),
                *laid_out(each.after, end_ns - after_ns, end_ns),
            )
            placed.append(PlacedStep(step, start_ns, end_ns, tuple(starmap(PlacedPhase, pieces))))
    return placed


def _ends_ns(steps: Sequence[Step], lengths_ns: list[int], origin_ns: int) -> list[int]:
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


def contradicts_times(steps: Sequence[Step], durations: Sequence[Durations]) -> bool:
    """Return whether the steps last longer than the time between their rows, so that the row times mean nothing."""
    stamps = [step.end_ns for step in steps if step.end_ns is not None]
    if len(stamps) < 2:
        return False
    lasted_ns = sum(sum(each.lengths_ns()) for each in durations[1:])
    return lasted_ns > (1.0 + _LATE_RATIO) * (stamps[-1] - stamps[0]) + _LATE_NS


def longest_pause_ns(ends_ns: Sequence[int]) -> float:
    """Return the longest time between two steps after which the run cannot be said to have been down or stood still."""
    periods_ns = [after - before for before, after in pairwise(ends_ns)]
    return max(LONGEST_PAUSE_NS, _LONGEST_PAUSE_STEPS * median(periods_ns)) if periods_ns else inf


def laid_out(
    durations_s: Iterable[tuple[_Name, float]], start_ns: int, end_ns: int
) -> Iterator[tuple[_Name, int, int]]:
    """Yield names with start and end in ns, one after the other within a stretch, if they take any time."""
    for name, seconds in durations_s:
        stop_ns = min(end_ns, start_ns + to_ns(seconds))
        if stop_ns > start_ns:
            yield name, start_ns, stop_ns
        start_ns = stop_ns
