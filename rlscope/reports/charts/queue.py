"""Queue depth, and weight updates from publication to the last engine."""

from typing import Final

import altair as alt
import polars as pl

from rlscope.analysis.result import RunFacts
from rlscope.reports.charts.colors import APPLIED, MUTED, UPDATE
from rlscope.reports.charts.encoding import (
    HEIGHT,
    Chart,
    amount,
    amount_axis,
    layered,
    legend_of,
    limit_rule,
    names,
    series_colors,
    series_palette,
    time_axis,
    tip,
)
from rlscope.reports.charts.series import drawable, rounded

TO_LAST: Final = "last engine"
TO_FIRST: Final = "first engine"
PAUSED: Final = "mean pause"
_ABOVE: Final = 1.12
"""Height of the axis relative to its highest mark."""


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


def weight_update_spread(frame: pl.DataFrame, run: RunFacts) -> Chart:
    """For each version, from the first engine that applies it to the last, and the mean pause of an engine."""
    rows = rounded(drawable(frame, run.started_ns))
    longest_s = float(rows["to_last_s"].max() or 0.0)  # pyright: ignore[reportArgumentType]
    kinds = {"to_last_s": TO_LAST, "to_first_s": TO_FIRST, "paused_mean_s": PAUSED}
    # A first engine that is also the last one has one mark.
    is_first = pl.col("to_first_s") < pl.col("to_last_s")
    apart = rows.with_columns(to_first_s=pl.when(is_first).then(pl.col("to_first_s")))
    index = ["start_s", "first_version", "last_version", "engines"]
    long = apart.unpivot(list(kinds), index=index, value_name="time_s")
    long = long.with_columns(kind=pl.col("variable").replace(kinds)).drop_nulls("time_s")
    shown = [name for name in kinds.values() if name in set(long["kind"])]
    colors = dict(zip(kinds.values(), (UPDATE, APPLIED, MUTED), strict=True))
    shapes = dict(zip(kinds.values(), ("circle", "square", "triangle-down"), strict=True))
    x = time_axis("start_s")
    # A mark at the top of the plot would be cut in half.
    top = [0, _ABOVE * longest_s if longest_s else 1.0]
    tips = [
        tip("start_s:Q", "published at, s", ",.1f"), tip("first_version:Q", "version", ",d"),
        tip("last_version:Q", "to version", ",d"), tip("engines:Q", "engines", ",d"),
    ]  # fmt: skip
    ranges = alt.Chart(rows).mark_rule(color=UPDATE, strokeWidth=1.5, opacity=0.6).encode(
        x=x, y=amount("to_first_s", "seconds since start of publication").scale(domain=top, nice=False),
        y2=alt.Y2("to_last_s:Q"),
    )  # fmt: skip
    marks = alt.Chart(long).mark_point(filled=True, size=34, opacity=1, strokeWidth=1.5).encode(
        x=x, y=alt.Y("time_s:Q"),
        color=series_palette("kind", {name: colors[name] for name in shown}),
        shape=alt.Shape("kind:N").scale(domain=shown, range=[shapes[name] for name in shown])
        .legend(legend_of(shown)),
        tooltip=[*tips, tip("kind:N", "measure"), tip("time_s:Q", "seconds", ",.4~g")],
    )  # fmt: skip
    return layered(ranges, marks).properties(height=HEIGHT)
