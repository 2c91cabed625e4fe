"""Several runs on one scale, one color per run: steps, staleness, lengths and learning."""

from collections.abc import Sequence

import altair as alt
import polars as pl

from rlscope.analysis.result import RunFacts
from rlscope.reports.charts.encoding import (
    HEIGHT,
    Chart,
    along_amounts,
    amount,
    amount_axis,
    names,
    series_colors,
    step_axis,
    tip,
)
from rlscope.reports.charts.series import rounded


def step_times(frame: pl.DataFrame, run: RunFacts) -> Chart:
    """Draw the step time over training steps, one line per run; frame holds run, step, step_s."""
    return _lines(frame, step_axis(), amount("step_s", "seconds per step"), ["step:Q", "step_s:Q"])


def rewards(frame: pl.DataFrame, run: RunFacts, *, by_step: bool) -> Chart:
    """Draw the reward over steps or GPU-hours, one line per run; frame holds run, step, gpu_hours, reward_mean."""
    y = alt.Y("reward_mean:Q").title("mean reward of a batch").scale(zero=False).axis(amount_axis())
    x = step_axis() if by_step else along_amounts("gpu_hours", "GPU-hours since the run started")
    return _lines(frame, x, y, ["step:Q" if by_step else "gpu_hours:Q", "reward_mean:Q"])


def staleness(frame: pl.DataFrame, run: RunFacts) -> Chart:
    """Share of the trained tokens at each staleness, a bar a run; frame holds run, staleness, unit, share_ratio."""
    runs, unit = names(frame, "run"), frame["unit"][0]
    return (
        alt.Chart(rounded(frame))
        .mark_bar()
        .encode(
            x=alt.X("staleness:O").title(f"staleness, {unit}").axis(labelAngle=0, labelOverlap=True),
            xOffset=alt.XOffset("run:N").sort(runs),
            y=alt.Y("share_ratio:Q").title("share of trained tokens").axis(format=".0%", tickCount=4),
            color=series_colors("run", runs),
            tooltip=[tip("run:N"), tip("staleness:O"), tip("share_ratio:Q", "share", ".1%")],
        )
        .properties(height=HEIGHT)
    )


def lengths(frame: pl.DataFrame, run: RunFacts) -> Chart:
    """Share of the samples that are at most as long, a line a run; frame holds run, length_tokens, share_ratio."""
    x = along_amounts("length_tokens", "response length, tokens")
    y = alt.Y("share_ratio:Q").title("share of samples at most as long").axis(format=".0%", tickCount=5)
    return _lines(frame, x, y.scale(domain=[0, 1]), ["length_tokens:Q", "share_ratio:Q"], "step-after")


def _lines(frame: pl.DataFrame, x: alt.X, y: alt.Y, told: Sequence[str], interpolate: str = "linear") -> Chart:
    runs = names(frame, "run")
    return (
        alt.Chart(rounded(frame))
        .mark_line(interpolate=interpolate, strokeWidth=1.8)  # type: ignore[arg-type]
        .encode(x=x, y=y, color=series_colors("run", runs), tooltip=[tip("run:N"), *(tip(each) for each in told)])
        .properties(height=HEIGHT)
    )
