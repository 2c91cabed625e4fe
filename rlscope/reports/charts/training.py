"""The trainers: throughput over time, the phases of each step, and the metrics that they reported."""

from typing import Final

import altair as alt
import polars as pl

from rlscope import format as fmt
from rlscope.analysis.result import RunFacts
from rlscope.reports.charts.colors import GENERATED, MUTED, PLAIN, SHADE, STALE, TRAINED
from rlscope.reports.charts.encoding import (
    HEIGHT,
    Chart,
    amount,
    amount_axis,
    downwards,
    layered,
    series_palette,
    stacked,
    step_axis,
    time_axis,
    tip,
    upright_bars,
)
from rlscope.reports.charts.series import drawable, rounded, stepped
from rlscope.reports.text.states import order_of, state_of

_RATE_BUCKETS: Final = 60
_LEAST_RATE_BUCKETS: Final = 10
_STEPS_IN_BUCKET: Final = 2
_METRIC_POINTS: Final = 400
_NUMBERS_PX: Final = 52
"""Room for the numbers beside the bands."""
_BAND_PX: Final = 62.0
_ABOVE_BAND_PX: Final = 30.0
"""Room for the name of a metric, and for the highest number of the band below."""
PHASES: Final = {
    "train_s": "train",
    "logprobs_s": "logprobs",
    "wait_s": "waiting",
    "publish_s": "publishing_weights",
    "other_s": "other",
    "rest_s": "unattributed",
}
"""The columns of a step's phases, and the state that each is drawn as."""


def throughput(frame: pl.DataFrame, run: RunFacts) -> Chart:
    """Draw trained and generated tokens per second, with the steady state shaded."""
    # A bucket shorter than a step would show each step as a spike.
    buckets = max(_LEAST_RATE_BUCKETS, min(_RATE_BUCKETS, run.steps // _STEPS_IN_BUCKET))
    rows = stepped(drawable(frame, run.started_ns, buckets))
    lines = (
        alt.Chart(rounded(rows))
        .transform_fold(["trained_tokens_per_s", "generated_tokens_per_s"], as_=["column", "rate"])
        .transform_calculate(kind="split(datum.column, '_')[0]")
        .mark_line(interpolate="step-after")
        .encode(
            x=time_axis("bucket_start_s"),
            y=amount("rate", "tokens per second"),
            color=series_palette("kind", {"trained": TRAINED, "generated": GENERATED}),
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
    shade = alt.Chart(pl.DataFrame([window])).mark_rect(color=SHADE).encode(x=alt.X("from_s:Q"), x2=alt.X2("to_s:Q"))
    return layered(shade, lines).properties(height=HEIGHT)


def step_phases(frame: pl.DataFrame, run: RunFacts) -> Chart:
    """The seconds of each step by phase, stacked; `frame` holds step and the columns of PHASES."""
    rows = drawable(frame.select("step", *PHASES), run.started_ns, 4 * HEIGHT)
    long = rows.unpivot(list(PHASES), index="step", variable_name="column", value_name="seconds")
    states = {column: state_of(name) for column, name in PHASES.items()}
    long = long.filter(pl.col("seconds") > 0).with_columns(
        phase=pl.col("column").replace_strict({column: state.label for column, state in states.items()}),
        order=pl.col("column").replace_strict({column: order_of(state.name) for column, state in states.items()}),
        from_step=pl.col("step") - 0.5,
        to_step=pl.col("step") + 0.5,
    )
    shown = set(long["phase"])
    colors = {
        state.label: f"var(--state-{state.slug}, {state.light})" for state in states.values() if state.label in shown
    }
    return upright_bars(
        alt.Chart(rounded(long.drop("column"))),
        step_axis("from_step"),
        "to_step",
        y=stacked("seconds", "seconds per step"),
        color=series_palette("phase", colors),
        order=alt.Order("order:Q"),
        tooltip=[tip("step:Q", "step", ",.0f"), tip("phase:N"), tip("seconds:Q", "seconds", ",.3~f")],
    )


def metrics(frame: pl.DataFrame, run: RunFacts, *, along: str, title: str) -> Chart:
    """A band per column on one horizontal axis, each on its own scale; `along` is the column of that axis.

    `frame` holds step, gpu_hours, and one column per metric, its name in words; staleness columns come last.
    """
    rows = drawable(frame, run.started_ns, _METRIC_POINTS)
    names = [name for name in rows.columns if name not in ("step", "gpu_hours")]
    bands = [_band(rows, name, place) for place, name in enumerate(names)]
    points = pl.concat([points for points, _ in bands])
    edges = pl.DataFrame([edge for _, edge in bands])
    height = len(names) * (_BAND_PX + _ABOVE_BAND_PX)
    x = alt.X(f"{along}:Q").title(title).scale(nice=False, zero=False).axis(amount_axis())
    stale = {name: STALE if "staleness" in name else PLAIN for name in names}
    lines = alt.Chart(rounded(points)).mark_line(point={"opacity": 0, "size": 50}).encode(
        x=x, y=downwards("y", height, _NUMBERS_PX),
        color=alt.Color("metric:N").scale(domain=names, range=list(stale.values())).legend(None),
        tooltip=[
            tip("metric:N"), tip("value:Q", "value", ",.4~g"), tip("step:Q", "step", ",.0f"),
            tip("gpu_hours:Q", "GPU-hours", ",.4~g"),
        ],
    )  # fmt: skip
    return layered(*_frame_of_bands(edges, height), lines).properties(height=height)


def _band(rows: pl.DataFrame, name: str, place: int) -> tuple[pl.DataFrame, dict[str, str | float]]:
    """The points of a metric with their height in pixels, and the edges of its band with their numbers."""
    points = rows.select("step", "gpu_hours", pl.col(name).cast(pl.Float64).alias("value")).drop_nulls("value")
    points = points.filter(pl.col("value").is_finite())
    low, high = (float(value) for value in points.select(pl.col("value").min(), high=pl.col("value").max()).row(0))
    top = place * (_BAND_PX + _ABOVE_BAND_PX) + _ABOVE_BAND_PX
    # A constant lies in the middle of its band.
    share = (pl.col("value") - low) / (high - low) if high > low else pl.lit(0.5)
    edge: dict[str, str | float] = {
        "metric": name, "top": top, "middle": top + _BAND_PX / 2, "foot": top + _BAND_PX,
        "high": _number(high) if high > low else "", "low": _number(low) if high > low else "",
        "constant": "" if high > low else _number(high),
    }  # fmt: skip
    return points.with_columns(metric=pl.lit(name), y=top + _BAND_PX * (1.0 - share)), edge


def _number(value: float) -> str:
    """Return the number with the minus sign of the other axes."""
    return fmt.significant(value).replace("-", "\N{MINUS SIGN}")


def _frame_of_bands(edges: pl.DataFrame, height: float) -> list[alt.Chart]:
    """The lines above and below each band, its name, and the numbers at its edges."""
    base, at = alt.Chart(edges), {edge: downwards(edge, height, _NUMBERS_PX) for edge in ("top", "middle", "foot")}
    line = base.mark_rule(color="var(--line, #dfe3e7)", aria=False, tooltip=None)
    name = base.mark_text(align="left", baseline="bottom", dy=-5, fontWeight=600, tooltip=None)
    number = base.mark_text(align="right", baseline="middle", dx=-6, color=MUTED, tooltip=None)
    numbers = {"high": "top", "constant": "middle", "low": "foot"}
    return [
        line.encode(y=at["top"]),
        line.encode(y=at["foot"]),
        name.encode(x=alt.XValue(0), y=at["top"], text=alt.Text("metric:N")),
        *(number.encode(x=alt.XValue(0), y=at[edge], text=alt.Text(f"{text}:N")) for text, edge in numbers.items()),
    ]
