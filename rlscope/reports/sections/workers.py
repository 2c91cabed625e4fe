"""Worker timelines: all workers, the worst stretch, the worst workers, and the lasting changes as marks."""

from collections.abc import Sequence
from functools import partial
from typing import Final

import polars as pl

from rlscope import format as fmt
from rlscope.analysis.result import AnalysisResult, Finding
from rlscope.reports.blocks import Block, Legend, Nothing, Switch, View
from rlscope.reports.charts.timeline import lanes_of, placed, states_of_view, updates_in, worker_timeline
from rlscope.reports.figure import Figure, drawn_frame
from rlscope.reports.text.shifts import event_sentence
from rlscope.reports.text.states import order_of, state_of


def changes_in(analysis: AnalysisResult, stretch_s: tuple[float, float]) -> pl.DataFrame:
    """The events of the run within a stretch: time_s since the run started, and what changed."""
    started_ns = analysis.run.started_ns
    times_s = [(event.time_ns - started_ns) / 1e9 for event in analysis.events]
    told = [event_sentence(event, started_ns) for event in analysis.events]
    rows = pl.DataFrame({"time_s": times_s, "what": told}, schema={"time_s": pl.Float64, "what": pl.String})
    return rows.filter(pl.col("time_s").is_between(*stretch_s))


def workers_section(analysis: AnalysisResult) -> Sequence[Block]:
    """Return the blocks of the section, the whole run first."""
    frame = analysis.answers["worker_timeline"]
    if frame.is_empty():
        return [Nothing(_NO_WORKER)]
    views = [_view(view, frame, analysis) for view in _VIEWS if view in frame["view"]]
    shown = Switch("workers", "Workers and stretch shown", views) if len(views) > 1 else views[0].block
    key = Legend("Colors of the lanes", [state_of(name) for name in sorted(set(frame["state"]), key=order_of)])
    return [key, shown]


_NO_WORKER: Final = "no worker recorded anything"
_VIEWS: Final = ("all", "worst_stretch", "worst_workers")
_HOW_TO_READ: Final = (
    "Each {part} interval stacks the worker's states by their share of its time. Hatched: waits. Vertical lines: new "
    "weights published. Ticks above a lane: its engine has applied them. "
)
_DASHED: Final = "Dashed lines: lasting changes, described under What changed. "
_HEALTHY: Final = "Healthy: full lanes without hatching, only short gaps for updates, and lanes that look alike."


def _view(view: str, frame: pl.DataFrame, analysis: AnalysisResult) -> View:
    """Return a view of the workers."""
    run = analysis.run
    states = states_of_view(frame, view, run.started_ns)
    table = lanes_of(states)
    engine = slow_engine_of(analysis.findings)
    lanes = placed(table, engine)
    updates = updates_in(analysis.answers["weight_marks"], lanes, run.started_ns)
    stretch_s = (float(lanes["from_s"].min()), float(lanes["to_s"].max()))  # pyright: ignore[reportArgumentType]
    changes = changes_in(analysis, stretch_s)
    title, opening = _words(view, table, stretch_s)
    part = fmt.duration(float(states["part_ns"][0]) / 1e9)
    dashed = "" if changes.is_empty() else _DASHED
    outlined = ", so its lane is outlined" if lanes["is_slow"].any() else ""
    slow = f"{engine} is slow{outlined}: lanes show whether an engine works, not how fast. " if engine else ""
    reading = opening + _HOW_TO_READ.format(part=part) + dashed + slow + _HEALTHY
    zoom_s = stretch_s if view == "worst_stretch" else None
    figure = Figure(
        title, reading, f"workers_{view}", "waiting_ratio",
        partial(worker_timeline, states=states, lanes=lanes, updates=updates, changes=changes, zoom_s=zoom_s),
        _NO_WORKER, True, ("worker_timeline", "weight_marks"),
    )  # fmt: skip
    return View(view, title, drawn_frame(figure, table.drop("lane"), run), zoom_s)


def slow_engine_of(found: Sequence[Finding]) -> str | None:
    """Return the engine that the findings call a straggler; None if there is none."""
    return next((str(each.evidence["worker_id"]) for each in found if each.rule == "straggling_engine"), None)


def _words(view: str, lanes: pl.DataFrame, stretch_s: tuple[float, float]) -> tuple[str, str]:
    """The title, and the first sentence of the caption."""
    workers, shared = int(lanes["worker_count"].sum()), bool((lanes["worker_count"] > 1).any())
    lanes_are = "One lane per worker, trainers first. "
    if shared:
        lanes_are = (
            f"{fmt.count(workers)} workers in {fmt.count(lanes.height)} lanes: workers of a role with similar waits "
            "share a lane, the longest waits first. "
        )
    if view == "worst_stretch":
        length = fmt.duration(stretch_s[1] - stretch_s[0])
        return f"Worst {length}", "The stretch with the most GPU time lost to waiting. " + lanes_are
    if view == "worst_workers":
        return f"Worst {fmt.count(workers)} workers", "The workers with the most GPU time lost to waiting. " + lanes_are
    return "All workers", lanes_are
