"""Worker timelines: one lane per worker in the ledger's colors, with weight updates.

A lane stacks the states of a time slice, each as high as its share of the time. Waits are hatched, so that color is not
their only sign. Vertical positions are in lanes: a lane has height 1, with its weight updates in the upper part.
"""

from typing import Final

import altair as alt
import polars as pl

from rlscope import format as fmt
from rlscope.analysis.result import RunFacts
from rlscope.reports.charts.colors import INK, SHADE, UPDATE
from rlscope.reports.charts.encoding import (
    FROM,
    TO,
    Chart,
    chart_of,
    downwards,
    layered,
    time_axis,
    tip,
)
from rlscope.reports.charts.series import rounded
from rlscope.reports.text.states import order_of, state_label, state_of

_HEIGHT: Final = 0.74
"""Height of the states in a lane; the ticks of weight updates are above them."""
_TICK: Final = 0.18
_BETWEEN_ROLES: Final = 0.45
_NAME_CHARACTERS: Final = 16
_TAIL_CHARACTERS: Final = 7
_SLOW: Final = " slow"
_CHARACTER_PX: Final = 7.4
_BESIDE_NAME_PX: Final = 12


def states_of_view(frame: pl.DataFrame, view: str, started_ns: int) -> pl.DataFrame:
    """The stretches of one view, in seconds since the run started, with the labels of their states."""
    rows = frame.filter(pl.col("view") == view)
    words = [state_label(state, reason) for state, reason in rows.select("state", "reason").rows()]
    return rows.with_columns(
        start_s=(pl.col("start_ns") - started_ns) / 1e9,
        end_s=(pl.col("end_ns") - started_ns) / 1e9,
        label=pl.Series(words, dtype=pl.String),
    )


def lanes_of(states: pl.DataFrame) -> pl.DataFrame:
    """A row per lane for the table: its worker, its extent, the share of waiting, and its most frequent state."""
    time_s = pl.col("share_ratio") * (pl.col("end_s") - pl.col("start_s"))
    held = states.group_by("lane", "label").agg(held_s=time_s.sum()).sort("held_s", "label", descending=[True, False])
    most = held.group_by("lane", maintain_order=True).agg(mostly=pl.col("label").first())
    return (
        states.group_by("lane", "role", "worker_id", "worker_count", "waiting_ratio")
        .agg(from_s=pl.col("start_s").min(), to_s=pl.col("end_s").max())
        .join(most, on="lane")
        .sort("lane")
    )


def placed(lanes: pl.DataFrame, slow_engine: str | None = None) -> pl.DataFrame:
    """The lanes with their position, a short name for the label and a full one for the tooltip.

    slow_engine: the engine that the findings call a straggler, whose lane is marked.
    """
    changes = (pl.col("role") != pl.col("role").shift(1)).fill_null(False).cast(pl.Int64).cum_sum()
    rows = lanes.select("role", "worker_id", "worker_count", "waiting_ratio").rows()
    names = [_lane_names(*row, slow_engine=slow_engine) for row in rows]
    return lanes.with_columns(
        foot=pl.int_range(1, pl.len() + 1) + _BETWEEN_ROLES * changes,
        name=pl.Series([short for short, _ in names], dtype=pl.String),
        who=pl.Series([full for _, full in names], dtype=pl.String),
        height=pl.lit(_HEIGHT),
        is_slow=pl.col("worker_id").eq_missing(slow_engine) & pl.lit(slow_engine is not None),
    ).with_columns(top=pl.col("foot") - _HEIGHT, middle=pl.col("foot") - _HEIGHT / 2)


def updates_in(marks: pl.DataFrame, lanes: pl.DataFrame, started_ns: int) -> pl.DataFrame:
    """The weight updates with their position: publications across all lanes, applications above the engine's lane."""
    total = lanes["foot"].max()
    rows = marks.join(lanes.select("worker_id", "foot"), on="worker_id", how="left").filter(
        (pl.col("phase") == "publish") | pl.col("foot").is_not_null()
    )
    tick_top = pl.col("foot") - 1.0 + (1.0 - _HEIGHT - _TICK) / 2
    publishes = pl.col("phase") == "publish"
    return rows.select(
        "phase", "versions", "version",
        time_s=(pl.col("time_ns") - started_ns) / 1e9,
        what=pl.when(publishes).then(pl.lit("published")).otherwise(pl.lit("applied")),
        top=pl.when(publishes).then(0.0).otherwise(tick_top),
        foot=pl.when(publishes).then(pl.lit(total)).otherwise(tick_top + _TICK),
    )  # fmt: skip


def short_name(name: str, characters: int = _NAME_CHARACTERS) -> str:
    """A name that fits beside a lane, shortened in the middle because workers differ at their ends."""
    if len(name) <= characters:
        return name
    return name[: characters - _TAIL_CHARACTERS - 1] + "…" + name[-_TAIL_CHARACTERS:]


def _lane_names(
    role: str, worker_id: str | None, worker_count: int, waiting_ratio: float, slow_engine: str | None
) -> tuple[str, str]:
    waited = f"waited {fmt.percent(waiting_ratio)} of"
    if worker_id is not None and worker_id == slow_engine:
        name = short_name(worker_id, _NAME_CHARACTERS - len(_SLOW)) + _SLOW
        return name, f"{worker_id} ({role}, slow), {waited} its time"
    if worker_id is not None:
        return short_name(worker_id), f"{worker_id} ({role}), {waited} its time"
    workers = f"{fmt.count(worker_count)} {role}s"
    return workers[:_NAME_CHARACTERS], f"{workers}, {waited} their time"


_LANE_PX: Final = 34.0
"""Height of a lane if there are few."""
_LANES_PX: Final = 340.0
"""Height of all lanes if there are many and _LEAST_LANE_PX allows it."""
_LEAST_LANE_PX: Final = 11.0
_SLOW_COLOR: Final = "var(--warning, #8a5a00)"


def worker_timeline(
    frame: pl.DataFrame,
    run: RunFacts,
    *,
    states: pl.DataFrame,
    lanes: pl.DataFrame,
    updates: pl.DataFrame,
    changes: pl.DataFrame,
    zoom_s: tuple[float, float] | None = None,
) -> Chart:
    """One view of the workers; `frame` is its table, which the chart does not use.

    zoom_s: the stretch that it shows first, in seconds since the run started; None shows what the other charts show.
    """
    foot = float(lanes["foot"].max())  # pyright: ignore[reportArgumentType]
    lane_px = max(_LEAST_LANE_PX, min(_LANE_PX, _LANES_PX / foot))
    names_px = _BESIDE_NAME_PX + round(_CHARACTER_PX * max(map(len, lanes["name"])))
    y = downwards("top", foot, names_px)
    tracks = alt.Chart(rounded(lanes)).mark_rect(color=SHADE, aria=False, tooltip=None)
    tracks = tracks.encode(x=time_axis("from_s"), x2=alt.X2("to_s:Q"), y=y, y2=alt.Y2("foot:Q"))
    chart = layered(
        tracks,
        # Publications are faint lines across all lanes, applications ticks above the lane of their engine.
        *_updates(updates, "publish", y, opacity=0.28),
        _states(states, lanes, y),
        *_outline(lanes, y),
        *_updates(updates, "apply", y, strokeWidth=1.5),
        *_changes(changes, foot, y),
        _names(lanes, min(12, lane_px)),
    )
    if zoom_s is not None:
        chart = chart.add_params(alt.param(name=FROM, value=zoom_s[0]), alt.param(name=TO, value=zoom_s[1]))
    return chart.properties(height=round(lane_px * foot))


def _states(states: pl.DataFrame, lanes: pl.DataFrame, y: alt.Y) -> alt.Chart:
    rows = (
        _stacked(states)
        .join(lanes.select("lane", "who", "foot", "height"), on="lane")
        .select(
            "start_s", "end_s", "state", "label", pl.col("share_ratio", "from_ratio").round(3), "who", "foot", "height"
        )
    )
    names = sorted(rows["state"].unique(), key=order_of)
    colors = [f"var(--lane-{state_of(name).slug}, {state_of(name).light})" for name in names]
    return (
        chart_of(rounded(rows), ["state", "label", "who", "foot", "height"])
        .transform_calculate(
            below="datum.foot - datum.height * datum.from_ratio",
            top="datum.below - datum.height * datum.share_ratio",
        )
        .mark_rect(strokeWidth=0, aria=False)
        .encode(
            x=time_axis("start_s"), x2=alt.X2("end_s:Q"), y=y, y2=alt.Y2("below:Q"),
            color=alt.Color("state:N").scale(domain=names, range=colors).legend(None),
            tooltip=[
                tip("who:N", "worker"), tip("label:N", "state"), tip("share_ratio:Q", "share of time", ".0%"),
                tip("start_s:Q", "from, s", ",.5~g"), tip("end_s:Q", "to, s", ",.5~g"),
            ],
        )
    )  # fmt: skip


def _outline(lanes: pl.DataFrame, y: alt.Y) -> list[alt.Chart]:
    """A frame around the lane of the slow engine; nothing without one."""
    slow = lanes.filter("is_slow").select("from_s", "to_s", "top", "foot")
    if slow.is_empty():
        return []
    frame = alt.Chart(rounded(slow)).mark_rect(fillOpacity=0, stroke=_SLOW_COLOR, strokeWidth=2, aria=False)
    return [frame.encode(x=time_axis("from_s"), x2=alt.X2("to_s:Q"), y=y, y2=alt.Y2("foot:Q"))]


def _stacked(states: pl.DataFrame) -> pl.DataFrame:
    """Each state with the share of those below it, work at the bottom."""
    order = pl.Series([order_of(name) for name in states["state"]], dtype=pl.Int64)
    ordered = states.with_columns(order=order).sort("lane", "start_s", "order", "label")
    below = pl.col("share_ratio").cum_sum().over("lane", "start_s") - pl.col("share_ratio")
    return ordered.with_columns(from_ratio=below)


def _changes(changes: pl.DataFrame, foot: float, y: alt.Y) -> list[alt.Chart]:
    """Moments at which something changed for good, dashed lines across all lanes; nothing without one."""
    if changes.is_empty():
        return []
    rows = alt.Chart(rounded(changes.with_columns(top=0.0, foot=foot), 7))
    lines = rows.mark_rule(color=INK, strokeWidth=1.5, strokeDash=[5, 3], aria=False)
    told = [tip("what:N", "changed"), tip("time_s:Q", "time, s", ",.5~g")]
    return [lines.encode(x=time_axis("time_s"), y=y, y2=alt.Y2("foot:Q"), tooltip=told)]


def _updates(updates: pl.DataFrame, phase: str, y: alt.Y, **style: float) -> list[alt.Chart]:
    """The publications or applications of weights as lines; nothing without one."""
    rows = updates.filter(phase=phase)
    if rows.is_empty():
        return []
    lines = alt.Chart(rounded(rows, 7)).mark_rule(color=UPDATE, aria=False, **style).encode(  # type: ignore[arg-type]
        x=time_axis("time_s"), y=y, y2=alt.Y2("foot:Q"),
        tooltip=[
            tip("what:N", "weights"), tip("version:Q", "version", ",d"),
            tip("versions:Q", "versions merged", ",d"), tip("time_s:Q", "time, s", ",.5~g"),
        ],
    )  # fmt: skip
    return [lines]


def _names(lanes: pl.DataFrame, font_px: float) -> alt.Chart:
    names = alt.Chart(lanes.select("name", "middle", "is_slow"))
    names = names.mark_text(align="right", baseline="middle", dx=-8, fontSize=font_px, aria=False, tooltip=None)
    color = alt.condition("datum.is_slow", alt.value(_SLOW_COLOR), alt.value(INK))
    return names.encode(x=alt.XValue(0), y=alt.Y("middle:Q"), text=alt.Text("name:N"), color=color)
