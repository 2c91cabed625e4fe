# Polars names numpy in its signatures, and numpy is not installed: hence the unknown member types.
# pyright: reportUnknownMemberType=false
"""What every worker did over time: a lane each, in the ledger's colours, with the weight updates above it.

How high a stretch stands in its lane says which share of it the state held. Waits are hatched, so that colour is not
their only sign. Above all lanes stand the alert rules that fired, a row each, named with their severity.
"""

from typing import Final

import altair as alt
import polars as pl

from rlscope.analysis import RunFacts
from rlscope.report.charts.encoding import SHADE, STACKED_PX, Chart, chart_of, layered, time_axis, tip
from rlscope.report.charts.zoom import FROM, TO, UPDATE
from rlscope.report.series import rounded
from rlscope.report.states import order_of, state_of

_LANE_PX: Final = 30.0
"""Of a lane where there are few."""
_LANES_PX: Final = 420.0
"""Of all lanes where there are many, as far as _LEAST_LANE_PX allows."""
_LEAST_LANE_PX: Final = 11.0
_RULE_PX: Final = 22.0
"""Of the row of an alert rule: its words, and below them the marks."""
_MARK_PX: Final = 5.0
_ABOVE_LANES_PX: Final = 4.0
_SEVERITIES: Final = {
    "info": "var(--info, #0b5c8e)",
    "warning": "var(--warning, #8a5a00)",
    "critical": "var(--critical, #b3261e)",
}


def worker_timeline(
    frame: pl.DataFrame,
    run: RunFacts,
    *,
    states: pl.DataFrame,
    lanes: pl.DataFrame,
    updates: pl.DataFrame,
    firings: pl.DataFrame,
) -> Chart:
    """One view of the workers; `frame` is its table, which the picture has no use for."""
    foot = float(lanes["foot"].max())  # pyright: ignore[reportArgumentType]
    lane_px = max(_LEAST_LANE_PX, min(_LANE_PX, _LANES_PX / foot))
    band_px = _RULE_PX * firings["row"].n_unique()
    y = _down("top", foot, band_px / lane_px)
    tracks = alt.Chart(rounded(lanes)).mark_rect(color=SHADE, aria=False, tooltip=None)
    tracks = tracks.encode(x=time_axis("from_s"), x2="to_s:Q", y=y, y2="foot:Q")
    names = _names(lanes, min(12, lane_px))
    chart = layered(
        tracks, *_rules(updates, y), _states(states, lanes, y), *_ticks(updates, y), names, *_firings(firings, lane_px)
    )
    return chart.properties(height=round(lane_px * foot + band_px))


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
    return [] if rows.is_empty() else [_updates(rows, y).mark_rule(color=UPDATE, opacity=0.28, aria=False)]


def _ticks(updates: pl.DataFrame, y: alt.Y) -> list[alt.Chart]:
    """Applications, above the lane of their engine; nothing without one."""
    rows = updates.filter(pl.col("phase") == "apply")
    return [] if rows.is_empty() else [_updates(rows, y).mark_rule(color=UPDATE, strokeWidth=1.5, aria=False)]


def _updates(rows: pl.DataFrame, y: alt.Y) -> alt.Chart:
    return alt.Chart(rounded(rows, 7)).encode(
        x=time_axis("time_s"), y=y, y2="foot:Q",
        tooltip=[
            tip("what:N", "weights"), tip("version:Q", "version", ",d"),
            tip("versions:Q", "versions of this mark", ",d"), tip("time_s:Q", "at, s", ",.5~g"),
        ],
    )  # fmt: skip


def _names(lanes: pl.DataFrame, font_px: float) -> alt.Chart:
    names = alt.Chart(lanes.select("name", "middle"))
    names = names.mark_text(align="right", baseline="middle", dx=-8, fontSize=font_px, aria=False, tooltip=None)
    return names.encode(x=alt.value(0), y="middle:Q", text="name:N")


def _firings(firings: pl.DataFrame, lane_px: float) -> list[alt.Chart]:
    """The rows of the rules, from the top of the picture to the first lane; nothing where none fired."""
    if firings.is_empty():
        return []
    foot_px = (pl.col("row") + 1 - firings["row"].n_unique()) * _RULE_PX - _ABOVE_LANES_PX
    rows = firings.with_columns(top=(foot_px - _MARK_PX) / lane_px, foot=foot_px / lane_px).drop("row")
    # A stroke keeps in sight what fired for an instant of a long run.
    marks = alt.Chart(rounded(rows, 7)).mark_rect(strokeWidth=1.5, aria=False)
    marks = marks.encode(
        x=time_axis("from_s"), x2="to_s:Q", y="top:Q", y2="foot:Q",
        fill=alt.Fill("severity:N").scale(domain=list(_SEVERITIES), range=list(_SEVERITIES.values())).legend(None),
        stroke=alt.Stroke("severity:N").scale(domain=list(_SEVERITIES), range=list(_SEVERITIES.values())).legend(None),
        tooltip=[
            tip("rule:N", "alert"), tip("severity:N"), tip("value:N"),
            tip("from_s:Q", "from, s", ",.5~g"), tip("to_s:Q", "to, s", ",.5~g"),
        ],
    )  # fmt: skip
    rules = alt.Chart(rows.select("rule", "severity", "top", "foot").unique(maintain_order=True))
    tracks = rules.mark_rect(color=SHADE, aria=False, tooltip=None)
    tracks = tracks.encode(x=alt.value(0), x2=alt.value("width"), y="top:Q", y2="foot:Q")
    names = rules.transform_calculate(words="datum.severity + ': ' + datum.rule")
    names = names.mark_text(align="left", baseline="bottom", dy=-3, fontSize=11, aria=False, tooltip=None)
    return [tracks, marks, names.encode(x=alt.value(0), y="top:Q", text="words:N")]


def _down(column: str, foot: float, band: float) -> alt.Y:
    """From the top of the picture to its foot, in lanes, with a band above them."""
    y = alt.Y(f"{column}:Q").title(None).scale(domain=[foot, -band], nice=False, zero=False)
    return y.axis(minExtent=STACKED_PX, maxExtent=STACKED_PX, labels=False, ticks=False, domain=False, grid=False)
