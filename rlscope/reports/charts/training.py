"""The trainers: throughput and step time."""

from typing import Final

import altair as alt
import polars as pl

from rlscope.analysis.result import RunFacts
from rlscope.reports.charts.encoding import (
    HEIGHT,
    SHADE,
    Chart,
    amount,
    layered,
    series_colors,
    step_axis,
    time_axis,
    tip,
)
from rlscope.reports.charts.series import drawable, rounded, stepped

_RATE_BUCKETS: Final = 60


def throughput(frame: pl.DataFrame, run: RunFacts) -> Chart:
    """Trained and generated tokens per second, with the steady stretch shaded."""
    # A bucket shorter than a step would show each step as a spike.
    rows = stepped(drawable(frame, run.started_ns, _RATE_BUCKETS))
    lines = (
        alt.Chart(rounded(rows))
        .transform_fold(["trained_tokens_per_s", "generated_tokens_per_s"], as_=["column", "rate"])
        .transform_calculate(kind="split(datum.column, '_')[0]")
        .mark_line(interpolate="step-after")
        .encode(
            x=time_axis("bucket_start_s"),
            y=amount("rate", "tokens per second"),
            color=series_colors("kind", ["trained", "generated"]),
            tooltip=[
                tip("bucket_start_s:Q", "from, s", ",.1f"),
                tip("kind:N", "tokens"),
                tip("rate:Q", "per second", ".3s"),
            ],
        )
    )
    if run.window is None:
        return lines.properties(height=HEIGHT)
    window = {
        "from_s": (run.window.start_ns - run.started_ns) / 1e9,
        "to_s": (run.window.end_ns - run.started_ns) / 1e9,
    }
    shade = alt.Chart(pl.DataFrame([window])).mark_rect(color=SHADE).encode(x="from_s:Q", x2="to_s:Q")
    return layered(shade, lines).properties(height=HEIGHT)


def step_time(frame: pl.DataFrame, run: RunFacts) -> Chart:
    """Time from step to step, and the part of it spent computing."""
    rows = drawable(frame, run.started_ns)
    return (
        alt.Chart(rounded(rows.select("step", "period_s", "compute_s")))
        .transform_fold(["period_s", "compute_s"], as_=["column", "seconds"])
        .transform_calculate(kind="datum.column == 'period_s' ? 'step to step' : 'computing'")
        .mark_line(interpolate="step")
        .encode(
            x=step_axis(),
            y=amount("seconds", "seconds"),
            color=series_colors("kind", ["step to step", "computing"]),
            tooltip=[tip("step:Q", "step", ",d"), tip("kind:N", "time"), tip("seconds:Q", "seconds", ",.3~f")],
        )
        .properties(height=HEIGHT)
    )
