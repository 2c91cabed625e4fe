# Polars names numpy in its signatures, and numpy is not installed: hence the unknown member types.
# pyright: reportUnknownMemberType=false
"""The trainer's side: rates, steps, staleness and weight updates."""

from typing import Any, Final

import altair as alt
import polars as pl

from rlscope.analysis import RunFacts
from rlscope.report.charts.encoding import (
    ACCENT,
    BAND,
    HEIGHT,
    LIMIT,
    LINES_MAX,
    SHADE,
    Chart,
    amount,
    layered,
    limit_rule,
    names,
    series_colors,
    step_axis,
    time_axis,
    tip,
)
from rlscope.report.series import drawable, rounded, stepped

_RATE_BUCKETS: Final = 60


def throughput(frame: pl.DataFrame, run: RunFacts) -> Chart:
    """Tokens trained and tokens generated per second; the stable stretch is shaded."""
    # A bucket shorter than a step would show single steps as spikes.
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
    """From one training step to the next, and how much of that was computing."""
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


def staleness_by_step(frame: pl.DataFrame, run: RunFacts) -> Chart:
    """Mean token staleness of every step, with the band from the median to the 95th percentile, and the cap."""
    rows = rounded(drawable(frame, run.started_ns))
    tips = [tip("step:Q", "step", ",d")] + [
        tip(f"staleness_{name}:Q", name, ",.3~f")
        for name in ("mean", "p50", "p95", "p99", "max")
        if f"staleness_{name}" in rows.columns
    ]
    base = alt.Chart(rows).encode(x=step_axis())
    band = base.mark_area(interpolate="step", color=BAND).encode(
        y=amount("staleness_p50", "versions"), y2="staleness_p95:Q"
    )
    mean = base.mark_line(interpolate="step", color=ACCENT).encode(y="staleness_mean:Q", tooltip=tips)
    return layered(band, mean, *limit_rule(run.max_staleness, "cap")).properties(height=HEIGHT)


def staleness_histogram(frame: pl.DataFrame, run: RunFacts) -> Chart:
    """Trained tokens by staleness; what lies beyond the cap in the colour of the cap."""
    cap = run.max_staleness
    color: Any = alt.value(ACCENT)
    if cap is not None:
        color = alt.condition(f"datum.staleness > {cap}", alt.value(LIMIT), alt.value(ACCENT))
    return (
        alt.Chart(rounded(frame))
        .mark_bar()
        .encode(
            x=alt.X("staleness:O").title("staleness, versions").axis(labelAngle=0, labelOverlap=True),
            y=amount("tokens", "tokens"),
            color=color,
            tooltip=[tip("staleness:O", "staleness"), tip("tokens:Q", "tokens", ",d")],
        )
        .properties(height=HEIGHT)
    )


def weight_update_latency(frame: pl.DataFrame, run: RunFacts) -> Chart:
    """From the publication of a version to each engine having it."""
    rows = drawable(frame, run.started_ns)
    engines = names(rows, "worker_id")
    return (
        alt.Chart(rounded(rows))
        .mark_circle(size=18, opacity=0.7)
        .encode(
            x=alt.X("version:Q").title("version").axis(tickMinStep=1, format=",d").scale(zero=False, nice=False),
            y=amount("publish_to_applied_s", "seconds from publication to use"),
            color=series_colors("worker_id", engines) if len(engines) <= LINES_MAX else alt.value(ACCENT),
            tooltip=[
                tip("version:Q", "version", ",d"), tip("worker_id:N", "engine"),
                tip("publish_to_applied_s:Q", "publication to use, s", ",.3~f"),
 tip("apply_s:Q", "applying, s", ",.3~f"),
            ],
        )
        .properties(height=HEIGHT)
    )  # fmt: skip
