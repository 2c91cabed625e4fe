"""Time of a forward pass by batch size: measured, fitted, and where the layouts operate."""

from typing import Final

import altair as alt
import polars as pl

from rlscope.analysis.result import RunFacts
from rlscope.reports.charts.colors import BAND, CHOSEN, GENERATED, INK, PAGE, PLAIN, SHADE
from rlscope.reports.charts.encoding import HEIGHT, Chart, amount, layered, series_palette, tip
from rlscope.reports.charts.series import rounded
from rlscope.reports.text.advice import CURRENT

MEASURED: Final = "measured"
FITTED: Final = "fitted"
_TICKS_MOST: Final = 12


def pass_curve(frame: pl.DataFrame, run: RunFacts) -> Chart:
    """Measured passes, the fitted curve with its band, and operating points; extrapolated stretches are shaded."""
    times = pl.col("pass_s", "low_s", "high_s")
    rows = rounded(frame.with_columns((times * 1e3).name.map(lambda name: name.removesuffix("s") + "ms")))
    x = alt.X("running:Q").title("requests in the pass").scale(nice=False, zero=True).axis(tickCount=_TICKS_MOST)
    kinds = list(dict.fromkeys(frame["kind"]))
    tips = [
        tip("kind:N", "what"), tip("running:Q", "requests", ",.3~f"), tip("pass_ms:Q", "ms", ",.3~f"),
        tip("low_ms:Q", "5%, ms", ",.3~f"), tip("high_ms:Q", "95%, ms", ",.3~f"), tip("grade:N"),
    ]  # fmt: skip
    known = {FITTED: PLAIN, MEASURED: GENERATED, CURRENT: INK}
    color = series_palette("kind", {kind: known.get(kind, CHOSEN) for kind in kinds})
    fitted = alt.Chart(rows.filter(pl.col("kind") == FITTED)).encode(x=x)
    band = fitted.mark_area(color=BAND, opacity=0.75).encode(y=amount("low_ms", "milliseconds"), y2=alt.Y2("high_ms:Q"))
    line = fitted.mark_line().encode(y=alt.Y("pass_ms:Q"), color=color, tooltip=tips)
    cells = alt.Chart(rows.filter(pl.col("kind") == MEASURED)).mark_circle(opacity=0.7)
    cells = cells.encode(
        x=x, y=alt.Y("pass_ms:Q"), color=color, tooltip=tips,
        size=alt.Size("measurements:Q").legend(None).scale(range=[14, 120]),
    )  # fmt: skip
    points = alt.Chart(rows.filter(~pl.col("kind").is_in([FITTED, MEASURED])))
    points = points.mark_point(shape="diamond", filled=True, size=130, opacity=1, stroke=PAGE, strokeWidth=1.5)
    points = points.encode(x=x, y=alt.Y("pass_ms:Q"), color=color, tooltip=tips)
    return layered(*_shades(beyond_visited(frame)), band, cells, line, points).properties(height=HEIGHT)


def beyond_visited(frame: pl.DataFrame) -> pl.DataFrame:
    """The extrapolated stretches of a curve, in running requests."""
    curve = frame.filter(pl.col("kind") == FITTED).sort("running")
    beyond = curve["grade"].is_in(["extrapolated", "assumed"])
    numbered = curve.with_columns(beyond=beyond, stretch=beyond.rle_id(), until=pl.col("running").shift(-1))
    return (
        numbered.filter("beyond")
        .group_by("stretch", maintain_order=True)
        .agg(from_running=pl.col("running").min(), to_running=pl.col("until").fill_null(pl.col("running")).max())
        .drop("stretch")
    )


def _shades(stretches: pl.DataFrame) -> list[alt.Chart]:
    """Return one shaded area per extrapolated range; empty if there is none."""
    if stretches.is_empty():
        return []
    return [
        alt.Chart(rounded(stretches))
        .mark_rect(color=SHADE)
        .encode(x=alt.X("from_running:Q"), x2=alt.X2("to_running:Q"))
    ]
