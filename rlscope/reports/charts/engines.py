"""The engines over time: running requests, waiting requests and KV cache use, on one time axis.

The charts have one line per engine up to LINES_MAX. With more engines, they have a band, the median, and lines for a
few engines.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import altair as alt
import polars as pl

from rlscope.analysis.result import RunFacts
from rlscope.reports.charts.colors import BAND, INK, LIMIT, palette
from rlscope.reports.charts.encoding import (
    LINES_MAX,
    Chart,
    amount_axis,
    layered,
    limit_rule,
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


class _Mark(NamedTuple):
    """A limit to draw."""

    value: float
    name: str
    color: str


def batch_size(frame: pl.DataFrame, run: RunFacts, *, named: Sequence[str], efficient_running: int | None) -> Chart:
    """Running requests, with a line at the smallest efficient batch if the model has one."""
    mark = (
        None if efficient_running is None else _Mark(efficient_running, f"efficient batch {efficient_running:,}", INK)
    )
    return _over_time(frame, run, "running_mean", "running requests", named, mark, has_legend=True)


def waiting_requests(frame: pl.DataFrame, run: RunFacts, *, named: Sequence[str]) -> Chart:
    """Requests waiting in the engines."""
    return _over_time(frame, run, "waiting_mean", "waiting requests", named, None)


def kv_use(frame: pl.DataFrame, run: RunFacts, *, named: Sequence[str]) -> Chart:
    """Draw the tokens in the KV caches, with a line at the capacity if all engines share it and it is near."""
    capacities = frame["kv_capacity_tokens"].drop_nulls().unique()
    most = float(frame["kv_used_mean_tokens"].max() or 0.0)  # pyright: ignore[reportArgumentType]
    # A capacity far above the lines would flatten them.
    in_reach = len(capacities) == 1 and float(capacities[0]) <= 3.0 * most
    mark = _Mark(float(capacities[0]), f"capacity {capacities[0]:,}", LIMIT) if in_reach else None
    return _over_time(frame, run, "kv_used_mean_tokens", "KV tokens in use", named, mark)


def _over_time(
    frame: pl.DataFrame,
    run: RunFacts,
    column: str,
    title: str,
    named: Sequence[str],
    mark: "_Mark | None",
    *,
    has_legend: bool = False,
) -> Chart:
    known = frame.drop_nulls(column).select("worker_id", "bucket_start_ns", column)
    many = known["worker_id"].n_unique() > LINES_MAX
    middle = _middle(known, column) if many else None
    lines = known.filter(pl.col("worker_id").is_in(list(named)))
    if middle is not None:
        lines = pl.concat([lines, middle.select(pl.lit(MEDIAN).alias("worker_id"), "bucket_start_ns", column)])
    drawn = stepped(drawable(lines, run.started_ns), "worker_id")
    series = [*([MEDIAN] if many else []), *named]
    most = float(known[column].max() or 0.0)  # pyright: ignore[reportArgumentType]
    scale = alt.Scale(domain=[0, 1.0 if most <= 0.0 else max(most, 0.0 if mark is None else mark.value) * _ROOM])
    y = alt.Y(f"{column}:Q").title(title).scale(scale)
    y = y.axis(amount_axis())
    legend = alt.Legend(orient="bottom", title=None, labelLimit=180, columns=2) if len(series) > 1 else None
    color = alt.Color("worker_id:N").scale(domain=series, range=palette(len(series)))
    line = alt.Chart(rounded(drawn.drop("bucket_end_s"))).mark_line(interpolate="step-after").encode(
        x=time_axis("bucket_start_s"), y=y, color=color.legend(legend if has_legend else None),
        tooltip=[
            tip("bucket_start_s:Q", "from, s", ",.5~g"), tip("worker_id:N", "engine"),
            tip(f"{column}:Q", title, ",.3~f"),
        ],
    )  # fmt: skip
    band = [] if middle is None else [_band(middle, run, title)]
    return layered(*band, line, *([] if mark is None else limit_rule(*mark))).properties(height=_HEIGHT)


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
