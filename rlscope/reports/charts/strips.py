"""Single samples: the policy versions of their tokens, and their stages over time."""

from typing import Final

import altair as alt
import polars as pl

from rlscope.analysis.result import RunFacts
from rlscope.reports.charts.colors import BAND, GENERATED, GREY, HEAT, INK, PAGE, PLAIN
from rlscope.reports.charts.encoding import Chart, amount_axis, layered, series_palette, tip

SHADES: Final = len(HEAT)
_STRONG: Final = 5
"""The first shade on which light text is more readable than dark text."""
_STRIP_HEIGHT: Final = 40
_CHARACTER_PX: Final = 8
_PADDING: Final = {"left": 0, "right": 50, "top": 2, "bottom": 8}
"""Room for the word at the last tick, and for the last line of the legend."""
SAMPLED: Final = "generated"
HANDED_ON: Final = "until queued"
QUEUED: Final = "in the queue"
TAKEN: Final = "at the trainer"


def strip(frame: pl.DataFrame, run: RunFacts) -> Chart:
    """The token runs of one sample side by side, labeled with their version if it fits; shade is 1 to SHADES."""
    whole = int(frame["token_to"].max() or 1)  # pyright: ignore[reportArgumentType]
    rows = frame.with_columns(label=pl.col("policy_version").cast(pl.String))
    x = alt.X("token_from:Q").title("token of the response").scale(domain=[0, whole], nice=False).axis(amount_axis())
    base = alt.Chart(rows)
    cells = base.mark_bar(height=_STRIP_HEIGHT, stroke=PAGE, strokeWidth=1).encode(
        x=x, x2=alt.X2("token_to:Q"),
        color=alt.Color("shade:O").scale(domain=list(range(1, SHADES + 1)), range=HEAT).legend(None),
        tooltip=[
            tip("policy_version:Q", "version", ",d"), tip("staleness:Q", "staleness", ",d"),
            tip("token_from:Q", "from token", ",d"), tip("token_to:Q", "to token (excluded)", ",d"),
            tip("worker_id:N", "engine"),
        ],
    )  # fmt: skip
    fits = f"(datum.token_to - datum.token_from) / {whole} * width > {_CHARACTER_PX} * length(datum.label) + 6"
    names = base.transform_calculate(middle="(datum.token_from + datum.token_to) / 2").mark_text(fontWeight=600)
    names = names.encode(
        x=alt.X("middle:Q"), text=alt.Text("label:N"),
        color=alt.condition(f"datum.shade >= {_STRONG}", alt.value(PAGE), alt.value(INK)),
        opacity=alt.condition(fits, alt.value(1), alt.value(0)),
    )  # fmt: skip
    return layered(cells, names).properties(height=_STRIP_HEIGHT)


def sample_timelines(frame: pl.DataFrame, run: RunFacts) -> Chart:
    """A row per sample: its stages from its start to the step that trained on it."""
    colors = {SAMPLED: GENERATED, HANDED_ON: BAND, QUEUED: PLAIN, TAKEN: GREY}
    order = list(dict.fromkeys(frame["sample"]))
    stations = frame.filter(pl.col("to_s") > pl.col("from_s"))
    shown = {name: color for name, color in colors.items() if name in set(stations["station"])}
    y = alt.Y("sample:N").title(None).sort(order).axis(labelLimit=130)
    base = alt.Chart(stations).encode(y=y)
    bars = base.mark_bar(height={"band": 0.55}).encode(
        x=alt.X("from_s:Q").title("seconds since the sample started").axis(amount_axis()), x2=alt.X2("to_s:Q"),
        color=series_palette("station", shown),
        tooltip=[
            tip("sample:N"), tip("station:N", "stage"),
            tip("from_s:Q", "from, s", ",.4~f"), tip("to_s:Q", "to, s", ",.4~f"),
        ],
    )  # fmt: skip
    ends = (
        frame.filter(pl.col("is_trained"))
        .group_by("sample", maintain_order=True)
        .agg(pl.col("to_s").max(), pl.col("station").last())
    )
    marks = alt.Chart(ends).encode(y=y, x=alt.X("to_s:Q"))
    ticks = marks.mark_tick(color=INK, thickness=2.5, height={"band": 0.8})
    words = marks.mark_text(align="left", dx=6, text="trained")
    layers = [bars] + ([ticks, words] if ends.height else [])
    return layered(*layers).properties(height=44 * len(order), padding=_PADDING)
