"""Staleness of the trained tokens: over time, and in the whole run."""

from typing import Any, Final

import altair as alt
import polars as pl

from rlscope.analysis.result import RunFacts
from rlscope.reports.charts.colors import HEAT, INK, LIMIT, PAGE, STALE
from rlscope.reports.charts.encoding import (
    HEIGHT,
    Chart,
    layered,
    limit_rule,
    time_axis,
    tip,
)
from rlscope.reports.charts.series import drawable, rounded

_SHARES: Final = (0.02, 0.05, 0.1, 0.2, 0.4, 0.7)
"""Thresholds between the colors of the heat map."""
_AGE_TICKS: Final = 10
_BAR: Final = 0.42
"""Half the width of a bar, in versions: bars do not touch."""


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
