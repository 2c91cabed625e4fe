"""Queue waits, and weight updates from publication to the last engine."""

from typing import Final

import altair as alt
import polars as pl

from rlscope.analysis.result import RunFacts
from rlscope.reports.charts.colors import APPLIED, BAND, DISCARDED, MUTED, PLAIN, TRAINED, UPDATE
from rlscope.reports.charts.encoding import (
    HEIGHT,
    Chart,
    along_amounts,
    amount,
    amount_axis,
    layered,
    legend_of,
    series_palette,
    stacked,
    time_axis,
    tip,
    upright_bars,
)
from rlscope.reports.charts.series import drawable, rounded

TO_LAST: Final = "last engine"
IN_USE: Final = "engine"
TO_FIRST: Final = "first engine"
PAUSED: Final = "mean pause"
_SHORT_S: Final = 1.0
"""Updates shorter than this are drawn in milliseconds."""
_ABOVE: Final = 1.12
_TRAINED: Final = "trained"
_NOT_TRAINED: Final = "not trained"


def queue_waits(frame: pl.DataFrame, run: RunFacts) -> Chart:
    """Wait of the samples that left the queue: 5th to 95th percentile as a band, the median as a line."""
    rows = rounded(drawable(frame, run.started_ns))
    base = alt.Chart(rows).encode(
        x=time_axis("start_s"), x2=alt.X2("end_s:Q"),
        tooltip=[
            tip("start_s:Q", "from, s", ",.1f"), tip("samples:Q", "samples", ",d"),
            tip("wait_p50_s:Q", "median, s", ",.3~f"), tip("wait_p05_s:Q", "5th percentile, s", ",.3~f"),
            tip("wait_p95_s:Q", "95th percentile, s", ",.3~f"), tip("wait_max_s:Q", "max, s", ",.3~f"),
        ],
    )  # fmt: skip
    band = base.mark_bar(orient="vertical", color=BAND, strokeWidth=0).encode(
        y=alt.Y("wait_p05_s:Q").stack(None).title("seconds in the queue").axis(amount_axis()), y2=alt.Y2("wait_p95_s:Q")
    )
    median = base.mark_rule(color=PLAIN, strokeWidth=2).encode(y=alt.Y("wait_p50_s:Q"))
    return layered(band, median).properties(height=HEIGHT)


def queue_wait_counts(frame: pl.DataFrame, run: RunFacts) -> Chart:
    """Samples by queue wait, trained and not trained."""
    long = frame.unpivot(["trained", "not_trained"], index=["wait_from_s", "wait_to_s"], value_name="samples")
    named = {"trained": _TRAINED, "not_trained": _NOT_TRAINED}
    rows = long.with_columns(kind=pl.col("variable").replace(named)).filter(pl.col("samples") > 0)
    kinds = [name for name in named.values() if name in set(rows["kind"])]
    # The colors of outcomes need a legend, so a single outcome has a plain color.
    colors = {_TRAINED: TRAINED, _NOT_TRAINED: DISCARDED} if len(kinds) > 1 else dict.fromkeys(kinds, PLAIN)
    color = series_palette("kind", {name: colors[name] for name in kinds})
    return upright_bars(
        alt.Chart(rounded(rows)), along_amounts("wait_from_s", "seconds in the queue"), "wait_to_s",
        y=stacked("samples", "samples"),
        color=color if len(kinds) > 1 else color.legend(None),
        tooltip=[
            tip("wait_from_s:Q", "from, s", ",.3~f"), tip("wait_to_s:Q", "to below, s", ",.3~f"),
            tip("kind:N", "outcome"), tip("samples:Q", "samples", ",d"),
        ],
    )  # fmt: skip


def weight_update_spread(frame: pl.DataFrame, run: RunFacts) -> Chart:
    """For each version, from the first engine that applies it to the last, and the mean pause of an engine."""
    rows = rounded(drawable(frame, run.started_ns))
    longest_s = float(rows["to_last_s"].max() or 0.0)  # pyright: ignore[reportArgumentType]
    unit, per_s = ("milliseconds", 1e3) if longest_s < _SHORT_S else ("seconds", 1.0)
    rows = rows.with_columns(pl.col("to_first_s", "to_last_s", "paused_mean_s") * per_s)
    is_one = not (rows["engines"] > 1).any()
    kinds = {"to_last_s": IN_USE if is_one else TO_LAST, "to_first_s": TO_FIRST, "paused_mean_s": PAUSED}
    index = ["start_s", "first_version", "last_version", "engines", "last_s"]
    long = rows.with_columns(last_s="to_last_s").unpivot(list(kinds), index=index, value_name="time")
    alone = (pl.col("variable") == "to_first_s") & (pl.col("time") == pl.col("last_s"))
    long = long.filter(~alone).with_columns(kind=pl.col("variable").replace(kinds)).drop_nulls("time")
    shown = [name for name in kinds.values() if name in set(long["kind"])]
    colors = dict(zip(kinds.values(), (UPDATE, APPLIED, MUTED), strict=True))
    shapes = dict(zip(kinds.values(), ("circle", "square", "triangle-down"), strict=True))
    x = time_axis("start_s")
    # A mark at the top of the plot would be cut in half.
    top = [0, _ABOVE * longest_s * per_s if longest_s else 1.0]
    tips = [
        tip("start_s:Q", "published at, s", ",.1f"), tip("first_version:Q", "version", ",d"),
        tip("last_version:Q", "to version", ",d"), tip("engines:Q", "engines", ",d"),
    ]  # fmt: skip
    ranges = alt.Chart(rows).mark_rule(color=UPDATE, strokeWidth=1.5, opacity=0.6).encode(
        x=x, y=amount("to_first_s", f"{unit} since start of publication").scale(domain=top, nice=False),
        y2=alt.Y2("to_last_s:Q"),
    )  # fmt: skip
    marks = alt.Chart(long).mark_point(filled=True, size=34, opacity=1, strokeWidth=1.5).encode(
        x=x, y=alt.Y("time:Q"),
        color=series_palette("kind", {name: colors[name] for name in shown}),
        shape=alt.Shape("kind:N").scale(domain=shown, range=[shapes[name] for name in shown])
        .legend(legend_of(shown)),
        tooltip=[*tips, tip("kind:N", "measure"), tip("time:Q", unit, ",.4~f")],
    )  # fmt: skip
    return layered(ranges, marks).properties(height=HEIGHT)
