"""GPU time by state: per role, and over time."""

import altair as alt
import polars as pl

from rlscope.analysis.result import RunFacts
from rlscope.reports.charts.colors import DISCARDED, INK, PAGE
from rlscope.reports.charts.encoding import (
    STACKED_PX,
    Chart,
    chart_of,
    layered,
    stacked,
    state_color,
    time_axis,
    tip,
    upright_bars,
)
from rlscope.reports.charts.series import drawable, rounded
from rlscope.reports.text.states import order_of, state_label, state_of


def ledger_total(frame: pl.DataFrame, run: RunFacts) -> Chart:
    """A bar per role, divided by state; `frame` holds role, state, reason, gpu_s and share_ratio."""
    tips = [tip("role:N"), tip("label:N", "state"), tip("gpu_s:Q", "GPU-seconds", ",.1f")]
    return share_bars(_with_labels(frame), "role", [*tips, tip("share_ratio:Q", "share", ".1%")], 0.72, 48)


def share_bars(rows: pl.DataFrame, column: str, tooltip: list[alt.Tooltip], band: float, bar_px: int) -> Chart:
    """Draw a bar for each name in a column, in the order of the rows, divided by state."""
    names = list(dict.fromkeys(rows[column]))
    x = alt.X("share_ratio:Q").stack("zero").title("share of the role's GPU time").axis(format="%", tickCount=5)
    bars = alt.Chart(rounded(rows)).mark_bar(height={"band": band}, stroke=PAGE, strokeWidth=1).encode(
        x=x.scale(domain=[0, 1], nice=False), y=alt.Y(f"{column}:N").title(None).sort(names),
        color=_state_color(rows), order=alt.Order("order:Q"), tooltip=tooltip,
    )  # fmt: skip
    return bars.properties(height=bar_px * len(names))


def ledger_timeline(frame: pl.DataFrame, run: RunFacts) -> Chart:
    """Draw the states of one role over time, stacked up to its number of GPUs."""
    rows = _with_labels(drawable(frame, run.started_ns))
    # The grid of buckets extends beyond the run at both ends.
    rows = rows.with_columns(
        pl.col("bucket_start_s").clip(lower_bound=0.0), pl.col("bucket_end_s").clip(upper_bound=run.duration_s)
    ).filter(pl.col("bucket_start_s") < pl.col("bucket_end_s"))
    rows = rows.with_columns(gpus=pl.col("gpu_s") / (pl.col("bucket_end_s") - pl.col("bucket_start_s")))
    rows = rows.select("bucket_start_s", "bucket_end_s", "state", "label", "order", "gpus", "gpu_s")
    axis = alt.Axis(minExtent=STACKED_PX, maxExtent=STACKED_PX, tickMinStep=1, tickCount=5, format=",~f")
    return upright_bars(
        chart_of(rounded(rows), ["state", "label", "order"]), time_axis("bucket_start_s"), "bucket_end_s",
        y=stacked("gpus", "GPUs").axis(axis), color=_state_color(rows), order=alt.Order("order:Q"),
        tooltip=[
            tip("bucket_start_s:Q", "from, s", ",.1f"), tip("label:N", "state"),
            tip("gpus:Q", "GPUs", ",.2f"), tip("gpu_s:Q", "GPU-seconds", ",.2f"),
        ],
    )  # fmt: skip


def gpu_use(frame: pl.DataFrame, run: RunFacts) -> Chart:
    """Draw GPU use by role and state; `frame` holds role, state, read_s, busy_ratio and sm_active_ratio."""
    states = ["decoding" if state == "engine_rows" else state for state in frame["state"]]
    words = ["forward passes" if state == "engine_rows" else state_label(state, None) for state in frame["state"]]
    rows = frame.with_columns(
        order=pl.Series([order_of(state) for state in states], dtype=pl.Int64),
        state=pl.Series(states, dtype=pl.String),
        label=pl.Series([f"{role}: {word}" for role, word in zip(frame["role"], words, strict=True)], dtype=pl.String),
    ).sort("role", "order", descending=[True, False])
    base = alt.Chart(rounded(rows)).encode(
        y=alt.Y("label:N").title(None).sort(list(rows["label"])).axis(labelLimit=200),
        tooltip=[
            tip("label:N", "state"), tip("read_s:Q", "time read, s", ",.1f"), tip("busy_ratio:Q", "kernel ran", ".1%"),
            tip("sm_active_ratio:Q", "SMs active", ".1%"),
        ],
    )  # fmt: skip
    x = alt.X("busy_ratio:Q").title("share of the time read").axis(format="%", tickCount=5)
    bars = base.mark_bar(height={"band": 0.6}).encode(x=x.scale(domain=[0, 1], nice=False), color=_state_color(rows))
    ticks = base.mark_tick(color=INK, thickness=2.5, height={"band": 0.85}).encode(x=alt.X("sm_active_ratio:Q"))
    return layered(bars, ticks).properties(height=26 * rows.height)


def _with_labels(frame: pl.DataFrame) -> pl.DataFrame:
    pairs = frame.select("state", "reason").rows()
    return frame.with_columns(
        label=pl.Series([state_label(state, reason) for state, reason in pairs], dtype=pl.String),
        order=pl.Series([order_of(state) for state, _ in pairs], dtype=pl.Int64),
    )


def _state_color(rows: pl.DataFrame) -> alt.Color:
    names = sorted(rows["state"].unique(), key=order_of)
    colors = [DISCARDED if name == "discarded" else state_color(state_of(name)) for name in names]
    return alt.Color("state:N").scale(domain=names, range=colors).legend(None)
