"""The engines over time: running requests, waiting requests and KV cache use, on one time axis.

The charts have one line per engine up to LINES_MAX. With more engines, they have a band, the median, and lines for a
few engines.
"""

from collections.abc import Sequence
from typing import Final

import altair as alt
import polars as pl

from rlscope.analysis.result import RunFacts
from rlscope.reports.charts.colors import BAND, LIMIT
from rlscope.reports.charts.encoding import (
    LINES_MAX,
    Chart,
    amount_axis,
    layered,
    limit_rule,
    series_colors,
    time_axis,
    tip,
)
from rlscope.reports.charts.series import drawable, rounded, stepped

MIDDLE: Final = (0.1, 0.9)
"""The quantiles of the engines that the band spans."""
MEDIAN: Final = "median engine"
_HEIGHT: Final = 120
_ROOM: Final = 1.08
"""Height of the axis relative to the highest line, so that a limit is not drawn on the upper edge."""


def kv_use(frame: pl.DataFrame, run: RunFacts, *, named: Sequence[str]) -> Chart:
    """Draw the tokens in the KV caches, with a line at the capacity if all engines share it and it is near."""
    capacities = frame["kv_capacity_tokens"].drop_nulls().unique()
    most = float(frame["kv_used_mean_tokens"].max() or 0.0)  # pyright: ignore[reportArgumentType]
    # A capacity far above the lines would flatten them.
    capacity = int(capacities[0]) if len(capacities) == 1 and capacities[0] <= 3.0 * most else None
    limit = capacity, f"capacity {capacity or 0:,}", LIMIT
    return over_time(frame, run, column="kv_used_mean_tokens", title="KV tokens in use", named=named, limit=limit)


def over_time(
    frame: pl.DataFrame,
    run: RunFacts,
    *,
    column: str,
    title: str,
    named: Sequence[str],
    limit: tuple[int | None, str, str] = (None, "", LIMIT),
) -> Chart:
    """Draw a column of the engines over time; limit: value, name and color of a line across the chart."""
    known = frame.drop_nulls(column).select("worker_id", "bucket_start_ns", column)
    middle = _middle(known, column) if known["worker_id"].n_unique() > LINES_MAX else None
    lines, series = known.filter(pl.col("worker_id").is_in(list(named))), list(named)
    if middle is not None:
        lines = pl.concat([lines, middle.select(pl.lit(MEDIAN).alias("worker_id"), "bucket_start_ns", column)])
        series = [MEDIAN, *named]
    drawn = stepped(drawable(lines, run.started_ns), "worker_id")
    most = max(float(known[column].max() or 0.0), limit[0] or 0)  # pyright: ignore[reportArgumentType]
    y = alt.Y(f"{column}:Q").title(title).axis(amount_axis()).scale(domain=[0, most * _ROOM or 1.0])
    line = alt.Chart(rounded(drawn.drop("bucket_end_s"))).mark_line(interpolate="step-after").encode(
        x=time_axis("bucket_start_s"), y=y, color=series_colors("worker_id", series),
        tooltip=[
            tip("bucket_start_s:Q", "from, s", ",.5~g"), tip("worker_id:N", "engine"),
            tip(f"{column}:Q", title, ",.3~f"),
        ],
    )  # fmt: skip
    band = [] if middle is None else [_band(middle, run, title)]
    return layered(*band, line, *limit_rule(*limit)).properties(height=_HEIGHT)


def _middle(known: pl.DataFrame, column: str) -> pl.DataFrame:
    """Median and quantiles over the engines with a row in each bucket."""
    low, high = MIDDLE
    return (
        known.group_by("bucket_start_ns")
        .agg(
            pl.col(column).median(),
            low=pl.col(column).quantile(low, "linear"),
            high=pl.col(column).quantile(high, "linear"),
        )
        .sort("bucket_start_ns")
    )


def _band(middle: pl.DataFrame, run: RunFacts, title: str) -> alt.Chart:
    rows = stepped(drawable(middle, run.started_ns))
    band = alt.Chart(rounded(rows)).mark_area(interpolate="step-after", color=BAND, aria=False)
    return band.encode(x=time_axis("bucket_start_s"), y=alt.Y("low:Q").title(title), y2=alt.Y2("high:Q"))
