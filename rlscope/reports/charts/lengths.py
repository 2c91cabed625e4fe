"""Response lengths: all samples, trained against untrained samples, and the longest sample per group."""

from typing import Final

import altair as alt
import polars as pl

from rlscope import format as fmt
from rlscope.analysis.result import RunFacts
from rlscope.reports.charts.colors import DISCARDED, GENERATED, GREY, INK, LIMIT, MUTED, PAGE, PLAIN, TRAINED
from rlscope.reports.charts.encoding import (
    HEIGHT,
    TITLE_PX,
    Chart,
    along_amounts,
    amount,
    layered,
    series_palette,
    stacked,
    tip,
    upright_bars,
)
from rlscope.reports.charts.series import rounded

IS_TRAINED: Final = "trained"
_ENDINGS: Final = {"finished": GENERATED, "capped": LIMIT, "censored": GREY}
_OUTCOMES: Final = {IS_TRAINED: TRAINED, "dropped_stale": DISCARDED, "filtered": MUTED, "abandoned": GREY}
_ROOM_FOR_MEANS: Final = 0.3
"""Room for the labels of the means, relative to the higher side."""
_MEAN_TURNS: Final = 0.7
"""Share of the longest length. The label of a mean beyond it goes on the left, because the right has no room."""


def response_lengths(frame: pl.DataFrame, run: RunFacts) -> Chart:
    """Samples by length and ending; `max_output_tokens`, the same in all rows, is their cap or null."""
    # The end of a bin is inclusive. Without the 1, a bin with a single length would have no width.
    rows = frame.with_columns(bin_end_tokens=pl.col("length_to_tokens") + 1)
    seen = {ending: color for ending, color in _ENDINGS.items() if frame[f"{ending}_samples"].sum()}
    folded = alt.Chart(rounded(rows.drop("max_output_tokens"))).transform_fold(
        [f"{ending}_samples" for ending in seen], as_=["column", "samples"]
    )
    bars = upright_bars(
        folded.transform_calculate(kind="split(datum.column, '_')[0]"), _length_axis(), "bin_end_tokens",
        y=stacked("samples", "samples"),
        color=series_palette("kind", seen),
        tooltip=[
            tip("length_from_tokens:Q", "from, tokens", ",d"), tip("length_to_tokens:Q", "to, tokens", ",d"),
            tip("kind:N", "ending"), tip("samples:Q", "samples", ",d"),
        ],
    )  # fmt: skip
    max_output_tokens = frame["max_output_tokens"][0]
    if max_output_tokens is None:
        return layered(bars).properties(height=HEIGHT)
    base = alt.Chart(pl.DataFrame([{"cap": max_output_tokens, "name": f"cap {fmt.count(max_output_tokens)}"}])).encode(
        x=alt.X("cap:Q")
    )
    rule = base.mark_rule(color=LIMIT, strokeDash=[6, 3], strokeWidth=1.5)
    name = base.mark_text(color=LIMIT, align="right", baseline="bottom").encode(
        y=alt.YValue(TITLE_PX), text=alt.Text("name:N")
    )
    return layered(bars, rule, name).properties(height=HEIGHT)


def mirrored_lengths(frame: pl.DataFrame, run: RunFacts) -> Chart:
    """Lengths of trained samples upwards, of the rest downwards, as shares of each side, with both means."""
    signed = pl.when(pl.col("outcome") == IS_TRAINED).then(1.0).otherwise(-1.0) * pl.col("share_of_side_ratio")
    rows = frame.with_columns(
        signed=signed, bin_end_tokens=pl.col("length_to_tokens") + 1, label=pl.col("outcome").str.replace_all("_", " ")
    )
    outcomes = dict.fromkeys(rows["outcome"])
    colors = {outcome.replace("_", " "): _OUTCOMES.get(outcome, PLAIN) for outcome in outcomes}
    y = stacked("signed", "trained (up), not trained (down)").scale(domain=_mirrored_domain(frame), nice=False)
    bars = upright_bars(
        alt.Chart(rounded(rows)), _length_axis(), "bin_end_tokens",
        y=y.axis(labelExpr="format(abs(datum.value), '.0%')", tickCount=6),
        color=series_palette("label", colors),
        tooltip=[
            tip("label:N", "outcome"), tip("length_from_tokens:Q", "from, tokens", ",d"),
            tip("length_to_tokens:Q", "to, tokens", ",d"), tip("samples:Q", "samples", ",d"),
            tip("share_of_side_ratio:Q", "share of its side", ".1%"),
        ],
    )  # fmt: skip
    zero = alt.Chart(pl.DataFrame([{"zero": 0}])).mark_rule(color=INK, strokeWidth=1).encode(y=alt.Y("zero:Q"))
    return layered(bars, zero, *_means(frame)).properties(height=HEIGHT + 60)


def group_tails(frame: pl.DataFrame, run: RunFacts) -> Chart:
    """Groups by the ratio of their longest sample to their mean length."""
    return (
        alt.Chart(rounded(frame))
        .mark_bar(orient="vertical", color=PLAIN, stroke=PAGE, strokeWidth=1)
        .encode(
            x=alt.X("tail_from:Q").title("longest sample / mean of its group").scale(nice=False, zero=False)
            .axis(format=".2~f", tickCount=8),
            x2=alt.X2("tail_to:Q"), y=amount("groups", "groups"),
            tooltip=[
                tip("tail_from:Q", "from", ",.2~f"), tip("tail_to:Q", "to below", ",.2~f"),
                tip("groups:Q", "groups", ",d"), tip("last_wait_mean_s:Q", "wait for last sample, mean, s", ",.3~f"),
                tip("last_wait_max_s:Q", "wait for last sample, max, s", ",.3~f"),
            ],
        )
        .properties(height=HEIGHT)
    )  # fmt: skip


def _mirrored_domain(frame: pl.DataFrame) -> list[float]:
    """Return the domain of both sides, with room for the labels of the means."""
    is_up = pl.col("outcome") == IS_TRAINED
    bins = frame.group_by("length_from_tokens", is_up.alias("is_up")).agg(pl.col("share_of_side_ratio").sum())
    ends = [float(bins.filter(pl.col("is_up") == up)["share_of_side_ratio"].max() or 0.0) for up in (False, True)]  # pyright: ignore[reportArgumentType]
    room = _ROOM_FOR_MEANS * max(ends)
    return [-(ends[0] + room), ends[1] + room]


def _length_axis() -> alt.X:
    return along_amounts("length_from_tokens", "response length, tokens")


def _means(frame: pl.DataFrame) -> list[alt.Chart]:
    """Return a line at the mean length of each side, in its own half."""
    side = pl.when(pl.col("outcome") == IS_TRAINED).then(pl.lit("up")).otherwise(pl.lit("down")).alias("side")
    means = frame.group_by(side).agg(
        pl.col("side_mean_tokens").first().alias("mean_tokens"), pl.col("share_of_side_ratio").max().alias("reach")
    )
    turn_tokens = _MEAN_TURNS * int(frame["length_to_tokens"].max() or 0)  # pyright: ignore[reportArgumentType]
    drawn: list[alt.Chart] = []
    for name, sign in (("up", 1.0), ("down", -1.0)):
        rows = means.filter(pl.col("side") == name).drop_nulls("mean_tokens")
        if rows.is_empty():
            continue
        rows = rows.with_columns(
            zero=pl.lit(0.0), reach=sign * pl.col("reach") * 1.08,
            name=pl.Series([f"mean {fmt.significant(mean)}" for mean in rows["mean_tokens"]], dtype=pl.String),
        )  # fmt: skip
        base = alt.Chart(rows).encode(x=alt.X("mean_tokens:Q"))
        drawn.append(
            base.mark_rule(color=INK, strokeWidth=1.5, strokeDash=[3, 2]).encode(
                y=alt.Y("zero:Q"), y2=alt.Y2("reach:Q")
            )
        )
        is_right = float(rows["mean_tokens"][0]) > turn_tokens
        baseline = "bottom" if sign > 0 else "top"
        text = base.mark_text(align="right" if is_right else "left", dx=-5 if is_right else 5, baseline=baseline)
        drawn.append(text.encode(y=alt.Y("reach:Q"), text=alt.Text("name:N")))
    return drawn
