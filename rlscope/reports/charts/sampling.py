"""The samplers: forward pass time, queue depth, and delivery outcomes."""

from typing import Final

import altair as alt
import polars as pl

from rlscope.analysis.result import RunFacts
from rlscope.reports.charts.colors import LIMIT, PLAIN
from rlscope.reports.charts.encoding import (
    HEIGHT,
    LINES_MAX,
    Chart,
    amount,
    amount_axis,
    layered,
    limit_rule,
    names,
    series_colors,
    time_axis,
    tip,
)
from rlscope.reports.charts.series import drawable, rounded

OTHER_ENGINES: Final = "other engines"
_ABOVE: Final = 1.12
"""Room for the label of a limit, below the ticks of the weight updates."""


def pass_latency(frame: pl.DataFrame, run: RunFacts, *, slow_engine: str | None = None) -> Chart:
    """Forward pass time by batch size; a dot's size is the number of passes. slow_engine: the one to stand out."""
    rows = rounded(frame.with_columns(pl.col("pass_mean_s", "pass_p50_s", "pass_p95_s") * 1e3))
    if slow_engine is not None:
        is_slow = pl.col("worker_id") == slow_engine
        rows = rows.with_columns(engine=pl.when(is_slow).then(pl.lit(slow_engine)).otherwise(pl.lit(OTHER_ENGINES)))
        color = alt.Color("engine:N").scale(domain=[slow_engine, OTHER_ENGINES], range=[LIMIT, PLAIN])
        color = color.legend(alt.Legend(orient="bottom", title=None))
    else:
        engines = names(rows, "worker_id")
        color = series_colors("worker_id", engines) if len(engines) <= LINES_MAX else alt.value(PLAIN)
    return (
        alt.Chart(rows.head(5_000))
        .mark_circle(opacity=0.75)
        .encode(
            x=alt.X("running:Q").title("requests in the pass").scale(zero=True).axis(tickCount=12),
            y=amount("pass_mean_s", "milliseconds"),
            size=alt.Size("passes:Q").legend(None).scale(range=[12, 160]),
            color=color,
            tooltip=[
                tip("worker_id:N", "engine"), tip("running:Q", "requests", ",d"), tip("passes:Q", "passes", ",d"),
                tip("pass_mean_s:Q", "mean, ms", ",.3~f"), tip("pass_p95_s:Q", "p95, ms", ",.3~f"),
            ],
        )
        .properties(height=HEIGHT + 40)
    )  # fmt: skip


def queue_depth(frame: pl.DataFrame, run: RunFacts) -> Chart:
    """Samples in each queue: mean as a line, up to the maximum as a band, and the capacity."""
    rows = rounded(drawable(frame, run.started_ns))
    queues = names(rows, "queue")
    capacities = rows["capacity_samples"].drop_nulls().unique()
    capacity = capacities[0] if len(capacities) == 1 else None
    top = _ABOVE * max(capacity or 0, rows["depth_max_samples"].max() or 1)
    base = alt.Chart(rows).encode(x=time_axis("bucket_start_s"), color=series_colors("queue", queues))
    band = base.mark_area(opacity=0.25, interpolate="step-after").encode(
        y=alt.Y("depth_mean_samples:Q").stack(None).title("samples").axis(amount_axis()).scale(domain=[0, top]),
        y2=alt.Y2("depth_max_samples:Q"),
    )
    line = base.mark_line(interpolate="step-after").encode(
        y=alt.Y("depth_mean_samples:Q"),
        tooltip=[
            tip("bucket_start_s:Q", "from, s", ",.1f"), tip("queue:N"),
            tip("depth_mean_samples:Q", "mean", ",.3~f"), tip("depth_max_samples:Q", "maximum", ",d"),
        ],
    )  # fmt: skip
    return layered(band, line, *limit_rule(capacity, f"capacity {capacity:,}" if capacity else "capacity")).properties(
        height=HEIGHT
    )
