"""Response lengths."""

from typing import Final

import altair as alt
import polars as pl

from rlscope import format as fmt
from rlscope.analysis.result import RunFacts
from rlscope.reports.charts.colors import GENERATED, GREY, LIMIT
from rlscope.reports.charts.encoding import (
    HEIGHT,
    TITLE_PX,
    Chart,
    along_amounts,
    layered,
    series_palette,
    stacked,
    tip,
    upright_bars,
)
from rlscope.reports.charts.series import rounded

_ENDINGS: Final = {"finished": GENERATED, "capped": LIMIT, "censored": GREY}


def response_lengths(frame: pl.DataFrame, run: RunFacts, *, cap_tokens: int | None) -> Chart:
    """Draw samples by length and ending, with a line at their cap."""
    # The end of a bin is inclusive. Without the 1, a bin with a single length would have no width.
    rows = rounded(frame.with_columns(bin_end_tokens=pl.col("length_to_tokens") + 1))
    seen = {ending: color for ending, color in _ENDINGS.items() if frame[f"{ending}_samples"].sum()}
    folded = alt.Chart(rows).transform_fold([f"{ending}_samples" for ending in seen], as_=["column", "samples"])
    bars = upright_bars(
        folded.transform_calculate(kind="split(datum.column, '_')[0]"),
        along_amounts("length_from_tokens", "response length, tokens"), "bin_end_tokens",
        y=stacked("samples", "samples"),
        color=series_palette("kind", seen),
        tooltip=[
            tip("length_from_tokens:Q", "from, tokens", ",d"), tip("length_to_tokens:Q", "to, tokens", ",d"),
            tip("kind:N", "ending"), tip("samples:Q", "samples", ",d"),
        ],
    )  # fmt: skip
    return layered(bars, *_cap(cap_tokens)).properties(height=HEIGHT)


def _cap(cap_tokens: int | None) -> list[alt.Chart]:
    if cap_tokens is None:
        return []
    cap = alt.Chart(pl.DataFrame({"cap": [cap_tokens], "name": [f"cap {fmt.count(cap_tokens)}"]}))
    cap = cap.encode(x=alt.X("cap:Q"))
    name = cap.mark_text(color=LIMIT, align="right", baseline="bottom")
    return [
        cap.mark_rule(color=LIMIT, strokeDash=[6, 3], strokeWidth=1.5),
        name.encode(y=alt.YValue(TITLE_PX), text=alt.Text("name:N")),
    ]
