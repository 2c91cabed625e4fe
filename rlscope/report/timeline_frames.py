# Polars names numpy in its signatures, and numpy is not installed: hence the unknown member types.
# pyright: reportUnknownMemberType=false
"""What the timeline of the workers is drawn from: where each lane lies, what it is called, and the marks in it.

Lengths down the picture are in lanes: a lane is 1 high, with its updates in the upper part. No picture is made here.
"""

from typing import Final

import polars as pl

from rlscope.analysis import Analysis
from rlscope.report import numbers
from rlscope.report.states import state_label

_HEIGHT: Final = 0.74
"""Of the states in a lane; above them stand the ticks of the weight updates."""
_TICK: Final = 0.18
_BETWEEN_ROLES: Final = 0.45
_NAME_CHARACTERS: Final = 11
_TAIL_CHARACTERS: Final = 5
_TICKS_MAX: Final = 240
_UPDATES: Final = {
    "phase": pl.String,
    "versions": pl.Int64,
    "version": pl.Int64,
    "time_s": pl.Float64,
    "what": pl.String,
    "top": pl.Float64,
    "foot": pl.Float64,
}


def states_of_view(frame: pl.DataFrame, view: str, started_ns: int) -> pl.DataFrame:
    """The stretches of one view, in seconds since the run started, with the state and its reason in words."""
    rows = frame.filter(pl.col("view") == view)
    words = [state_label(state, reason) for state, reason in rows.select("state", "reason").rows()]
    return rows.with_columns(
        start_s=(pl.col("start_ns") - started_ns) / 1e9,
        end_s=(pl.col("end_ns") - started_ns) / 1e9,
        label=pl.Series(words, dtype=pl.String),
    )


def lanes_of(states: pl.DataFrame) -> pl.DataFrame:
    """A row per lane, as a table shows it: whose it is, how long, which share waited, and what it did most."""
    time_s = pl.col("share_ratio") * (pl.col("end_s") - pl.col("start_s"))
    held = states.group_by("lane", "label").agg(held_s=time_s.sum()).sort("held_s", "label", descending=[True, False])
    most = held.group_by("lane", maintain_order=True).agg(mostly=pl.col("label").first())
    return (
        states.group_by("lane", "role", "worker_id", "worker_count", "waiting_ratio")
        .agg(from_s=pl.col("start_s").min(), to_s=pl.col("end_s").max())
        .join(most, on="lane")
        .sort("lane")
    )


def placed(lanes: pl.DataFrame) -> pl.DataFrame:
    """The lanes with their place, and what they are called: short beside them, in full where one is pointed at."""
    changes = (pl.col("role") != pl.col("role").shift(1)).fill_null(False).cast(pl.Int64).cum_sum()
    rows = lanes.select("role", "worker_id", "worker_count", "waiting_ratio").rows()
    names = [_names(*row) for row in rows]
    return lanes.with_columns(
        foot=pl.int_range(1, pl.len() + 1) + _BETWEEN_ROLES * changes,
        name=pl.Series([short for short, _ in names], dtype=pl.String),
        who=pl.Series([full for _, full in names], dtype=pl.String),
        height=pl.lit(_HEIGHT),
    ).with_columns(top=pl.col("foot") - _HEIGHT, middle=pl.col("foot") - _HEIGHT / 2)


def updates_in(marks: pl.DataFrame | None, lanes: pl.DataFrame, started_ns: int) -> pl.DataFrame:
    """The weight updates with their place: publications over all lanes, applications above the engine's lane."""
    if marks is None or marks.is_empty():
        return pl.DataFrame(schema=_UPDATES)
    total = lanes["foot"].max()
    rows = marks.join(lanes.select("worker_id", "foot"), on="worker_id", how="left").filter(
        (pl.col("phase") == "publish") | pl.col("foot").is_not_null()
    )
    tick_top = pl.col("foot") - 1.0 + (1.0 - _HEIGHT - _TICK) / 2
    publishes = pl.col("phase") == "publish"
    return rows.select(
        "phase", "versions", "version",
        time_s=(pl.col("time_ns") - started_ns) / 1e9,
        what=pl.when(publishes).then(pl.lit("published")).otherwise(pl.lit("taken in")),
        top=pl.when(publishes).then(0.0).otherwise(tick_top),
        foot=pl.when(publishes).then(pl.lit(total)).otherwise(tick_top + _TICK),
    )  # fmt: skip


def update_moments(analysis: Analysis) -> list[float]:
    """When weights were published, in seconds since the run started: one moment of each stretch that has any."""
    run, marks = analysis.run, analysis.answers.get("weight_marks")
    if marks is None or marks.is_empty() or run.duration_s <= 0:
        return []
    moments = marks.filter(pl.col("phase") == "publish").select(
        time_s=((pl.col("time_ns") - run.started_ns) / 1e9).round(6)
    )
    stretch = (pl.col("time_s") * _TICKS_MAX / run.duration_s).floor()
    return sorted(moments.group_by(stretch).agg(first_s=pl.col("time_s").min())["first_s"])


def short_name(name: str) -> str:
    """A name that fits beside a lane; what is left out is in its middle, for ends tell workers apart."""
    if len(name) <= _NAME_CHARACTERS:
        return name
    return name[: _NAME_CHARACTERS - _TAIL_CHARACTERS - 1] + "…" + name[-_TAIL_CHARACTERS:]


def _names(role: str, worker_id: str | None, worker_count: int, waiting_ratio: float) -> tuple[str, str]:
    waited = f"waited {numbers.percent(waiting_ratio)} of"
    if worker_id is not None:
        return short_name(worker_id), f"{worker_id} ({role}), {waited} its time"
    workers = f"{numbers.count(worker_count)} {role}s"
    return workers[:_NAME_CHARACTERS], f"{workers}, {waited} their time"
