# Polars names numpy in its signatures, and numpy is not installed: hence the unknown member types.
# pyright: reportUnknownMemberType=false
"""What every worker did over time: a lane each, in the ledger's colours, with the weight updates above it.

How high a stretch stands in its lane says which share of it the state held. Waits are hatched, so that colour is not
their only sign.
"""

from typing import Final

import altair as alt
import polars as pl

from rlscope.analysis import RunFacts
from rlscope.report.charts.encoding import SHADE, STACKED_PX, Chart, chart_of, layered, time_axis, tip
from rlscope.report.charts.zoom import FROM, TO
from rlscope.report.series import rounded
from rlscope.report.states import order_of, state_of

_LANE_PX: Final = 30.0
"""Of a lane where there are few."""
_LANES_PX: Final = 420.0
"""Of all lanes where there are many, as far as _LEAST_LANE_PX allows."""
_LEAST_LANE_PX: Final = 11.0
_UPDATE: Final = "var(--state-publishing-weights, #6f4fa3)"


def worker_timeline(
    frame: pl.DataFrame, run: RunFacts, *, states: pl.DataFrame, lanes: pl.DataFrame, updates: pl.DataFrame
) -> Chart:
    """One view of the workers; `frame` is its table, which the picture has no use for."""
    foot = float(lanes["foot"].max())  # pyright: ignore[reportArgumentType]
    lane_px = max(_LEAST_LANE_PX, min(_LANE_PX, _LANES_PX / foot))
    y = _down("top", foot)
    tracks = alt.Chart(rounded(lanes)).mark_rect(color=SHADE, aria=False, tooltip=None)
    tracks = tracks.encode(x=time_axis("from_s"), x2="to_s:Q", y=y, y2="foot:Q")
    names = _names(lanes, foot, min(12, lane_px))
    chart = layered(tracks, *_rules(updates, y), _states(states, lanes, y), *_ticks(updates, y), names)
    return chart.properties(height=round(lane_px * foot))


def shown_first(chart: Chart, from_s: float, to_s: float) -> Chart:
    """The chart with another stretch than the whole run to begin with, in seconds since the run started."""
    return chart.add_params(alt.param(name=FROM, value=from_s), alt.param(name=TO, value=to_s))


def _states(states: pl.DataFrame, lanes: pl.DataFrame, y: alt.Y) -> alt.Chart:
    rows = states.join(lanes.select("lane", "who", "foot", "height"), on="lane").select(
        "start_s", "end_s", "state", "label", pl.col("share_ratio").round(3), "who", "foot", "height"
    )
    names = sorted(rows["state"].unique(), key=order_of)
    colors = [f"var(--lane-{state_of(name).slug}, {state_of(name).light})" for name in names]
    return (
        chart_of(rounded(rows), ["state", "label", "who", "foot", "height"])
        .transform_calculate(top="datum.foot - datum.height * datum.share_ratio")
        .mark_rect(strokeWidth=0, aria=False)
        .encode(
            x=time_axis("start_s"), x2="end_s:Q", y=y, y2="foot:Q",
            color=alt.Color("state:N").scale(domain=names, range=colors).legend(None),
            tooltip=[
                tip("who:N", "worker"), tip("label:N", "state"), tip("share_ratio:Q", "of the time", ".0%"),
                tip("start_s:Q", "from, s", ",.5~g"), tip("end_s:Q", "to, s", ",.5~g"),
            ],
        )
    )  # fmt: skip


def _rules(updates: pl.DataFrame, y: alt.Y) -> list[alt.Chart]:
    """Publications, faint over all lanes; nothing without one."""
    rows = updates.filter(pl.col("phase") == "publish")
    return [] if rows.is_empty() else [_updates(rows, y).mark_rule(color=_UPDATE, opacity=0.28, aria=False)]


def _ticks(updates: pl.DataFrame, y: alt.Y) -> list[alt.Chart]:
    """Applications, above the lane of their engine; nothing without one."""
    rows = updates.filter(pl.col("phase") == "apply")
    return [] if rows.is_empty() else [_updates(rows, y).mark_rule(color=_UPDATE, strokeWidth=1.5, aria=False)]


def _updates(rows: pl.DataFrame, y: alt.Y) -> alt.Chart:
    return alt.Chart(rounded(rows, 7)).encode(
        x=time_axis("time_s"), y=y, y2="foot:Q",
        tooltip=[
            tip("what:N", "weights"), tip("version:Q", "version", ",d"),
            tip("versions:Q", "versions of this mark", ",d"), tip("time_s:Q", "at, s", ",.5~g"),
        ],
    )  # fmt: skip


def _names(lanes: pl.DataFrame, foot: float, font_px: float) -> alt.Chart:
    names = alt.Chart(lanes.select("name", "middle"))
    names = names.mark_text(align="right", baseline="middle", dx=-8, fontSize=font_px, aria=False, tooltip=None)
    return names.encode(x=alt.value(0), y=_down("middle", foot), text="name:N")


def _down(column: str, foot: float) -> alt.Y:
    """From the top of the picture to its foot, in lanes."""
    y = alt.Y(f"{column}:Q").title(None).scale(domain=[foot, 0], nice=False, zero=False)
    return y.axis(minExtent=STACKED_PX, maxExtent=STACKED_PX, labels=False, ticks=False, domain=False, grid=False)
