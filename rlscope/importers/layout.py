"""Lays steps out in time: durations as logged, in the order of the program. No file is opened, no row is made.

A step ends when its metrics were written; without times, steps follow each other from a fixed origin. What the phases
of a step leave of it stays empty, and the ledger shows it as unattributed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from rlscope.importers.dialect import Party, PhaseKind, PhaseMetric
from rlscope.importers.steps import PartySteps, Step, phase_value

_LATE_RATIO: Final = 0.05
"""Of the time between the first and the last row: by so much more the steps may last, since rows are written late."""
_LATE_NS: Final = 60 * 10**9


@dataclass(frozen=True, slots=True)
class PlacedPhase:
    """A phase of a step, at its place."""

    kind: PhaseKind
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class PlacedStep:
    """A step with its phases at their places, from start_ns (with what comes before the step) to end_ns."""

    step: Step
    start_ns: int
    end_ns: int
    pieces: tuple[PlacedPhase, ...]


@dataclass(frozen=True, slots=True)
class _Durations:
    """The phases of a step in seconds, and the whole."""

    before: tuple[tuple[PhaseKind, float], ...]
    inside: tuple[tuple[PhaseKind, float], ...]
    after: tuple[tuple[PhaseKind, float], ...]
    step_s: float

    @property
    def inside_s(self) -> float:
        return sum(seconds for _, seconds in self.inside)

    def lengths_ns(self) -> tuple[int, int, int]:
        """Of what comes before the step, of the step, and of what comes after it."""
        before_s, after_s = (sum(seconds for _, seconds in parts) for parts in (self.before, self.after))
        return round(1e9 * before_s), round(1e9 * self.step_s), round(1e9 * after_s)


def placed_steps(steps: PartySteps, origin_ns: int, is_separate: bool) -> tuple[PlacedStep, ...]:
    """The steps at their places, each after the one before it; without times they begin at the origin."""
    return tuple(_place(_counted(steps, is_separate), origin_ns, _auto_is_inside(steps)))


def _counted(steps: PartySteps, is_separate: bool) -> PartySteps:
    """With the phases that count in such a run."""
    left_out = "colocated" if is_separate else "separate"
    phases = tuple(phase for phase in steps.party.phases if phase.when != left_out)
    return replace(steps, party=replace(steps.party, phases=phases))


def open_ratio(steps: PartySteps, is_separate: bool) -> float | None:
    """Median over the steps of what the phases leave of a step, or exceed it by (then negative); None without any."""
    ratios: list[float] = []
    auto_inside, steps = _auto_is_inside(steps), _counted(steps, is_separate)
    for step in steps.steps:
        durations = _durations(steps.party, step, auto_inside, None)
        if durations.step_s > 0.0 and durations.inside:
            ratios.append(1.0 - durations.inside_s / durations.step_s)
    return median(ratios) if ratios else None


def _durations(party: Party, step: Step, auto_inside: bool, previous: Step | None) -> _Durations:
    parts: dict[str, list[tuple[PhaseKind, float]]] = {"before": [], "inside": [], "after": []}
    rest: tuple[int, PhaseKind] | None = None
    for phase in party.phases:
        where = phase.where if phase.where != "auto" else ("inside" if auto_inside else "before")
        seconds = _phase_s(phase, step, previous)
        if phase.name is None:
            rest = len(parts["inside"]), phase.kind
        elif seconds:
            parts[where].append((phase.kind, seconds * step.count))
    inside_s = sum(seconds for _, seconds in parts["inside"])
    stated = next((step.count * step.values[name] for name in party.step if step.values.get(name, 0.0) > 0.0), None)
    if rest is not None and stated is not None and stated > inside_s:
        parts["inside"].insert(rest[0], (rest[1], stated - inside_s))
    return _Durations(
        tuple(parts["before"]), tuple(parts["inside"]), tuple(parts["after"]), inside_s if stated is None else stated
    )


def _phase_s(phase: PhaseMetric, step: Step, previous: Step | None) -> float | None:
    seconds = phase_value(phase, step.values)
    if not phase.is_cumulative or seconds is None:
        return seconds
    before = phase_value(phase, previous.values) if previous is not None else 0.0
    return max(0.0, seconds - (before or 0.0))


def _auto_is_inside(steps: PartySteps) -> bool:
    """Whether the phases whose place differs between releases lie inside the step: where the sums close better so."""
    if not any(phase.where == "auto" for phase in steps.party.phases):
        return True
    inside, outside = list[float](), list[float]()
    for step in steps.steps:
        as_inside = _durations(steps.party, step, True, None)
        inside.append(abs(as_inside.step_s - as_inside.inside_s))
        as_before = _durations(steps.party, step, False, None)
        outside.append(abs(as_before.step_s - as_before.inside_s))
    return sum(inside) <= sum(outside)


def _place(steps: PartySteps, origin_ns: int, auto_inside: bool) -> Iterator[PlacedStep]:
    durations: list[_Durations] = []
    previous: Step | None = None
    for step in steps.steps:
        durations.append(_durations(steps.party, step, auto_inside, previous))
        previous = step
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
    """When each step ended: when it was logged, or before that where the next step must have begun earlier.

    Metrics are written a moment after the step; laid out from the last step back, every duration stays whole.
    """
    ends_ns: list[int] = []
    last_ns = origin_ns
    for step, length_ns in zip(steps, lengths_ns, strict=True):
        last_ns = last_ns + length_ns if step.end_ns is None else step.end_ns
        ends_ns.append(last_ns)
    for index in range(len(steps) - 2, -1, -1):
        ends_ns[index] = min(ends_ns[index], ends_ns[index + 1] - lengths_ns[index + 1])
    return ends_ns


def contradicts_times(steps: PartySteps, is_separate: bool) -> bool:
    """Whether the steps last longer than the time between the rows that state them, so that these mean nothing."""
    counted, auto_inside = _counted(steps, is_separate), _auto_is_inside(steps)
    lengths_ns = [sum(_durations(counted.party, step, auto_inside, None).lengths_ns()) for step in counted.steps]
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
