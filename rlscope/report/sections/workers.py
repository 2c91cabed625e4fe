# Polars names numpy in its signatures, and numpy is not installed: hence the unknown member types.
# pyright: reportUnknownMemberType=false
"""What every worker did over time: all of them, the worst stretch, and the worst workers where lanes are shared."""

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

import polars as pl

from rlscope.analysis import Analysis, RunFacts
from rlscope.report import numbers
from rlscope.report.charts.encoding import Chart
from rlscope.report.charts.timeline import shown_first, worker_timeline
from rlscope.report.figure import Drawn, Figure, drawn_frame
from rlscope.report.firing_frames import Firings, firings_in, lanes_and_firings
from rlscope.report.states import STATES, State, order_of, state_of
from rlscope.report.timeline_frames import lanes_of, placed, states_of_view, updates_in


class Choice(NamedTuple):
    """One way to look at the workers."""

    label: str
    """Of its button."""
    drawn: Drawn
    stretch_s: tuple[float, float] | None
    """What every chart shows with it, in seconds since the run started; None for the whole run."""


class WorkersSection(NamedTuple):
    """What the section shows."""

    choices: list[Choice]
    figures: list[Drawn]
    """Of the choices, in their order."""
    key: list[State]
    """The states that the pictures have."""
    states: tuple[State, ...]
    """Every state, for the patterns."""
    duration_s: float
    """Of the whole run, which all charts over time show first."""


def workers_section(analysis: Analysis) -> WorkersSection:
    """The section's figures, the whole run first."""
    frame = analysis.answers.get("worker_timeline")
    if frame is None or frame.is_empty():
        nothing = pl.DataFrame()
        draw = partial(worker_timeline, states=nothing, lanes=nothing, updates=nothing, firings=nothing)
        empty = drawn_frame(_figure("All workers", "A lane per worker.", draw), _anchor("all"), None, analysis.run)
        return WorkersSection([], [empty], [], STATES, analysis.run.duration_s)
    choices = [_choice(view, frame, analysis) for view in _VIEWS if view in frame["view"]]
    key = [state_of(name) for name in sorted(frame["state"].unique(), key=order_of)]
    return WorkersSection(choices, [choice.drawn for choice in choices], key, STATES, analysis.run.duration_s)


_VIEWS: Final = ("all", "worst_stretch", "worst_workers")
_HOW_TO_READ: Final = (
    "The colour is the state that held most of each {part}, its height the share of that time, and waits are hatched. "
    "Lines across: new weights are published; ticks above a lane: its engine has them. "
)
_HEALTHY: Final = "Healthy: full lanes without hatching, cut only by thin updates, and no lane unlike its neighbours."


def _choice(view: str, frame: pl.DataFrame, analysis: Analysis) -> Choice:
    run = analysis.run
    states = states_of_view(frame, view, run.started_ns)
    table = lanes_of(states)
    lanes = placed(table)
    updates = updates_in(analysis.answers.get("weight_marks"), lanes, run.started_ns)
    stretch_s = (float(lanes["from_s"].min()), float(lanes["to_s"].max()))  # pyright: ignore[reportArgumentType]
    firings = firings_in(analysis, stretch_s)
    draw = partial(worker_timeline, states=states, lanes=lanes, updates=updates, firings=firings.drawn)
    title, opening = _words(view, table, stretch_s)
    part = numbers.duration(float(states["part_ns"][0]) / 1e9)
    reading = opening + _HOW_TO_READ.format(part=part) + _of_alerts(firings) + _HEALTHY
    is_stretch = view == "worst_stretch"
    figure = _figure(title, reading, partial(_in_stretch, draw, stretch_s) if is_stretch else draw)
    rows = lanes_and_firings(table.drop("lane"), firings)
    return Choice(title, drawn_frame(figure, _anchor(view), rows, run), stretch_s if is_stretch else None)


def _of_alerts(firings: Firings) -> str:
    if firings.all.is_empty():
        return ""
    others = numbers.counted(firings.rules_left_out, "other rule that fired stands", "other rules that fired stand")
    rest = f"; {others} in the numbers below" if firings.rules_left_out else ""
    return f"Above the lanes: the alert rules that fired, and when{rest}. "


def _figure(title: str, reading: str, draw: Callable[[pl.DataFrame, RunFacts], Chart]) -> Figure:
    asked = ("worker_timeline", "weight_marks")
    return Figure(title, reading, "", "waiting_ratio", draw, "no worker wrote anything", True, asked)


def _in_stretch(draw: "partial[Chart]", stretch_s: tuple[float, float], frame: pl.DataFrame, run: RunFacts) -> Chart:
    return shown_first(draw(frame, run), *stretch_s)


def _words(view: str, lanes: pl.DataFrame, stretch_s: tuple[float, float]) -> tuple[str, str]:
    """The title, and the sentence that the reading begins with."""
    workers, shared = int(lanes["worker_count"].sum()), bool((lanes["worker_count"] > 1).any())
    lanes_are = "A lane per worker, trainers first. "
    if shared:
        lanes_are = (
            f"{numbers.count(workers)} workers in {numbers.count(lanes.height)} lanes: those of a role that waited "
            "alike share one, those that waited most are first. "
        )
    if view == "worst_stretch":
        length = numbers.duration(stretch_s[1] - stretch_s[0])
        return f"Worst {length}", "The stretch in which waiting cost most GPU time. " + lanes_are
    if view == "worst_workers":
        return f"Worst {numbers.count(workers)} workers", "Those whose waiting cost most GPU time. " + lanes_are
    return "All workers", lanes_are


def _anchor(view: str) -> str:
    return "figure-workers-" + view.replace("_", "-")
