"""Staleness of the trained tokens: over time, whole run, by where it arises, and its cost."""

from typing import Any, Final

import altair as alt
import polars as pl

from rlscope.analysis.result import RunFacts
from rlscope.reports.charts.colors import HEAT, INK, LIMIT, PAGE, STALE, STALE_LIGHT
from rlscope.reports.charts.encoding import (
    HEIGHT,
    Chart,
    amount,
    layered,
    limit_rule,
    series_palette,
    stacked,
    time_axis,
    tip,
    upright_bars,
)
from rlscope.reports.charts.series import drawable, rounded

_SHARES: Final = (0.02, 0.05, 0.1, 0.2, 0.4, 0.7)
"""Thresholds between the colors of the heat map."""
_AGE_TICKS: Final = 10
_SLIGHT_VARIANCE: Final = 0.01
"""Least upper end of the axis, so that rounding errors do not look like a spread."""
_BAR: Final = 0.42
"""Half the width of a bar, in versions: bars do not touch."""
IN_FLIGHT: Final = "during generation"
IN_QUEUE: Final = "in the queue"


def staleness_heat(frame: pl.DataFrame, run: RunFacts) -> Chart:
    """Tokens by staleness over time, with the cap and the 95th percentile of each column."""
    rows = _edges(rounded(drawable(frame, run.started_ns)))
    cells = (
        alt.Chart(rows)
        .mark_rect(strokeWidth=0)
        .encode(
            x=time_axis("start_s"), x2=alt.X2("end_s:Q"), y=_age_axis(frame, run), y2=alt.Y2("row_to:Q"),
            color=alt.Color("share_ratio:Q").scale(type="threshold", domain=list(_SHARES), range=HEAT)
            .legend(orient="bottom", direction="horizontal", title="share of tokens", titleLimit=300,
                    format=".0%", gradientLength=220, gradientThickness=10),
            tooltip=[
                tip("start_s:Q", "from, s", ",.1f"), tip("first_step:Q", "first step", ",d"),
                tip("last_step:Q", "last step", ",d"), tip("staleness_from:Q", "staleness from", ",d"),
                tip("staleness_to:Q", "to", ",d"), tip("share_ratio:Q", "share", ".1%"),
                tip("tokens:Q", "tokens", ",d"), tip("staleness_p95:Q", "95th percentile", ",d"),
            ],
        )
    )  # fmt: skip
    return layered(cells, *_p95_line(rows, run), *_cap(run)).properties(height=HEIGHT)


def staleness_shares(frame: pl.DataFrame, run: RunFacts) -> Chart:
    """One bar per staleness, on the axis of the heat map beside it; bars above the cap have the cap's color."""
    cap = run.max_staleness
    color: Any = alt.value(STALE)
    if cap is not None:
        color = alt.condition(f"datum.staleness_from > {cap}", alt.value(LIMIT), alt.value(STALE))
    bars = (
        alt.Chart(_edges(rounded(frame), _BAR))
        .mark_bar(orient="horizontal")
        .encode(
            x=alt.X("share_ratio:Q").title("share of trained tokens").axis(format=".0%", tickCount=4),
            y=_age_axis(frame, run), y2=alt.Y2("row_to:Q"), color=color,
            tooltip=[
                tip("staleness_from:Q", "staleness from", ",d"), tip("staleness_to:Q", "to", ",d"),
                tip("tokens:Q", "tokens", ",d"), tip("share_ratio:Q", "share", ".1%"),
            ],
        )
    )  # fmt: skip
    return layered(bars, *_cap(run)).properties(height=HEIGHT)


def staleness_parts(frame: pl.DataFrame, run: RunFacts) -> Chart:
    """Mean staleness over time: added in flight below, added in the queue above."""
    rows = rounded(drawable(frame, run.started_ns))
    long = rows.unpivot(
        ["in_flight_mean", "in_queue_mean"], index=["first_step", "last_step", "start_s", "end_s", "staleness_mean"],
        variable_name="part", value_name="versions",
    ).with_columns(
        order=pl.col("part").replace_strict({"in_flight_mean": 0, "in_queue_mean": 1}, return_dtype=pl.Int64),
        part=pl.col("part").replace({"in_flight_mean": IN_FLIGHT, "in_queue_mean": IN_QUEUE}),
    )  # fmt: skip
    is_flat = not any(rows["staleness_mean"])
    scale = alt.Scale(domain=[0, 1]) if is_flat else alt.Scale(zero=True)
    return upright_bars(
        alt.Chart(long), time_axis("start_s"), "end_s",
        y=stacked("versions", "mean staleness, versions").scale(scale),
        color=series_palette("part", {IN_FLIGHT: STALE, IN_QUEUE: STALE_LIGHT}),
        order=alt.Order("order:Q"),
        tooltip=[
            tip("start_s:Q", "from, s", ",.1f"), tip("first_step:Q", "first step", ",d"), tip("part:N", "added"),
            tip("versions:Q", "versions", ",.3~f"), tip("staleness_mean:Q", "total", ",.3~f"),
        ],
    )  # fmt: skip


def effective_share(frame: pl.DataFrame, run: RunFacts) -> Chart:
    """Draw the effective sample size over tokens, by staleness; the size of a dot is its number of tokens."""
    y = alt.Y("effective_share_ratio:Q").title("effective / trained tokens")
    return _by_age(frame, y.scale(domain=[0, 1]).axis(format=".0%", tickCount=5))


def ratio_variance(frame: pl.DataFrame, run: RunFacts) -> Chart:
    """The variance of the importance ratio by staleness."""
    y = amount("ratio_variance", "variance of the importance ratio")
    most = float(frame["ratio_variance"].max() or 0.0)  # pyright: ignore[reportArgumentType]
    return _by_age(frame, y.scale(domain=[0, _SLIGHT_VARIANCE]) if most < _SLIGHT_VARIANCE else y)


def _by_age(frame: pl.DataFrame, y: alt.Y) -> Chart:
    # Ticks at existing versions only: on a short axis Vega also puts ticks between them.
    ages = sorted(frame["staleness"])[:: -(-frame.height // _AGE_TICKS)]
    x = alt.X("staleness:Q").title("staleness, versions").axis(values=ages, format=",d")
    base = alt.Chart(rounded(frame)).encode(
        x=x.scale(nice=False, padding=14), y=y,
        tooltip=[
            tip("staleness:Q", "staleness", ",d"), tip("tokens:Q", "tokens", ",d"),
            tip("effective_share_ratio:Q", "effective share", ".1%"),
            tip("ratio_variance:Q", "variance of w", ",.3~g"), tip("ratio_mean:Q", "mean of w", ",.4~f"),
        ],
    )  # fmt: skip
    dots = base.mark_circle(opacity=1, color=STALE, stroke=PAGE, strokeWidth=1.5)
    size = alt.Size("tokens:Q").legend(None).scale(range=[40, 260], zero=True)
    return layered(base.mark_line(color=STALE), dots.encode(size=size)).properties(height=HEIGHT)


def _edges(rows: pl.DataFrame, half: float = 0.5) -> pl.DataFrame:
    """Each bin of staleness extends half a version beyond its ends."""
    return rows.with_columns(row_from=pl.col("staleness_from") - half, row_to=pl.col("staleness_to") + half)


def _age_axis(frame: pl.DataFrame, run: RunFacts) -> alt.Y:
    """Return the axis that all charts of a run share: from the freshest token to beyond the stalest and the cap."""
    least = min(0, int(frame["staleness_from"].min() or 0))  # pyright: ignore[reportArgumentType]
    oldest = int(frame["staleness_to"].max() or 0)  # pyright: ignore[reportArgumentType]
    most = max(oldest, 0 if run.max_staleness is None else run.max_staleness + 1)
    # Vega also puts ticks at halves, which would be labeled as whole versions.
    ages = list(range(least, most + 1)) if most - least < _AGE_TICKS else alt.Undefined
    return (
        alt.Y("row_from:Q").title("staleness, versions").axis(tickMinStep=1, format=",d", tickCount=6, values=ages)
        .scale(domain=[least - 0.5, most + 0.5], nice=False, padding=0)
    )  # fmt: skip


def _p95_line(rows: pl.DataFrame, run: RunFacts) -> list[alt.Chart]:
    """The 95th percentile as a step line with an outline."""
    line = rows.select("start_s", "end_s", "staleness_p95").unique("start_s").sort("start_s").drop_nulls()
    if line.is_empty():
        return []
    closing = line.tail(1).with_columns(start_s=pl.col("end_s"))
    base = alt.Chart(pl.concat([line, closing])).encode(x=alt.X("start_s:Q"), y=alt.Y("staleness_p95:Q"))
    steps: dict[str, Any] = {"interpolate": "step-after", "strokeJoin": "miter"}
    return [
        base.mark_line(color=PAGE, strokeWidth=4, opacity=0.85, **steps),
        base.mark_line(color=INK, strokeWidth=1.5, **steps),
    ]


def _cap(run: RunFacts) -> list[alt.Chart]:
    """The cap, drawn above the highest staleness it allows."""
    cap = run.max_staleness
    return [] if cap is None else limit_rule(cap + 0.5, f"cap {cap}")
