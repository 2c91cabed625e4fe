# Polars names numpy in its signatures, and numpy is not installed: hence the unknown member types.
# pyright: reportUnknownMemberType=false
"""What the pictures share: axes, colours, tooltips, the rule of a limit, and the way out as JSON."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import altair as alt
import polars as pl

from rlscope.report.charts.zoom import uses_time, with_zoom, zoomed_scale

Chart: TypeAlias = "alt.Chart | alt.LayerChart"

HEIGHT: Final = 200
STACKED_PX: Final = 76
"""Left of the charts that stand on one time axis: room for a worker's name."""
LINES_MAX: Final = 4
"""More lines than this cannot be told apart by colour."""
_LONG_NAME: Final = 16
"""Characters of a legend's name, two of which fit beside one another on a phone."""

_SERIES: Final = [
    f"var(--series-{n}, {color})"
    for n, color in enumerate(("#0b6aa2", "#d55e00", "#007a63", "#a4163f", "#6f4fa3", "#b08900"), start=1)
]
ACCENT: Final = _SERIES[0]
SECOND: Final = _SERIES[1]
BAND: Final = "var(--band, #cfe1ee)"
LIMIT: Final = "var(--limit, #a4163f)"
SHADE: Final = "var(--shade, #f1f3f5)"


def spec(chart: Chart, name: str, description: str, duration_s: float = 0.0, updates_s: Sequence[float] = ()) -> str:
    """The chart as Vega-Lite JSON that may stand in a script element, with its data inside.

    One over time shows the whole run, of duration_s, with a tick at each of the weight updates.
    """
    chart = chart.properties(width="container", description=description, name=name)
    chart = chart.configure(autosize=alt.AutoSizeParams(type="fit-x", contains="padding"))
    # Checking the chart against the schema of Vega-Lite takes longer than making it; the tests draw every one.
    document: dict[str, Any] = chart.to_dict(validate=False)
    if uses_time(document):
        document = with_zoom(document, duration_s, updates_s)
    return json.dumps(document, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def chart_of(rows: pl.DataFrame, repeated: Sequence[str]) -> alt.Chart:
    """A chart of the rows in which what these columns hold together is written once, and each row says which it has.

    Words that thousands of rows repeat are most of a chart's size. Tables as text would be smaller still, but Vega
    makes a function of text to read them, which the page's policy forbids.
    """
    words = rows.select(repeated).unique(maintain_order=True).with_row_index("words")
    known = alt.LookupData(data=words, key="words", fields=list(repeated))
    keyed = rows.join(words, on=list(repeated), nulls_equal=True, maintain_order="left").drop(repeated)
    return alt.Chart(keyed).transform_lookup(lookup="words", from_=known)


def time_axis(column: str) -> alt.X:
    """Seconds since the start, from left to right."""
    return (
        alt.X(f"{column}:Q")
        .title("seconds since the run started")
        .scale(zoomed_scale())
        .axis(format=",~f", tickCount=8)
    )


def step_axis() -> alt.X:
    """Training steps, from left to right."""
    return alt.X("step:Q").title("training step").scale(nice=False, zero=False).axis(format=",d", tickMinStep=1)


def amount(column: str, title: str) -> alt.Y:
    """An amount from zero upwards."""
    return alt.Y(f"{column}:Q").title(title).scale(zero=True).axis(amount_axis())


def amount_axis(extent_px: float | None = None) -> alt.Axis:
    """Few ticks, each written like the page's numbers: 0.0005, 0.2, 40, 1.2k; as wide as its labels, or extent_px."""
    # Three decimals would write 0.0005 and 0.001 alike.
    label = "format(datum.value, abs(datum.value) >= 1000 ? '.3~s' : abs(datum.value) >= 0.1 ? ',.3~f' : '.3~g')"
    extent = alt.Undefined if extent_px is None else extent_px
    return alt.Axis(labelExpr=label, tickCount=5, minExtent=extent, maxExtent=extent)


def tip(field: str, title: str | None = None, number_format: str | None = None) -> alt.Tooltip:
    """One line of what a mark says when it is pointed at."""
    line = alt.Tooltip(field).title(title or field.split(":")[0])
    return line if number_format is None else line.format(number_format)


def series_colors(column: str, names: Sequence[str]) -> alt.Color:
    """One colour per name, in order; a legend above where there is more than one."""
    columns = 2 if len(names) % 2 == 0 else 3
    legend = alt.Legend(orient="bottom", title=None, labelLimit=140, columns=columns) if len(names) > 1 else None
    return alt.Color(f"{column}:N").scale(domain=list(names), range=palette(len(names))).legend(legend)


def series_palette(column: str, colors: Mapping[str, str]) -> alt.Color:
    """The colour given for each name, with a legend below; long names stand below one another."""
    columns = 1 if max(map(len, colors), default=0) > _LONG_NAME else 2
    legend = alt.Legend(orient="bottom", title=None, labelLimit=260, columns=columns, symbolOpacity=1)
    return alt.Color(f"{column}:N").scale(domain=list(colors), range=list(colors.values())).legend(legend)


def palette(size: int) -> list[str]:
    """So many colours, the same again where they run out."""
    return [_SERIES[n % len(_SERIES)] for n in range(size)]


def limit_rule(value: float | None, name: str) -> list[alt.Chart]:
    """A dashed rule at a limit, named; nothing without one."""
    if value is None:
        return []
    base = alt.Chart(pl.DataFrame([{"limit": value, "name": f"{name} {value:g}"}]))
    rule = base.mark_rule(color=LIMIT, strokeDash=[6, 3], strokeWidth=1.5).encode(y="limit:Q")
    text = base.mark_text(color=LIMIT, align="right", baseline="bottom", dy=-3).encode(
        y="limit:Q", x=alt.value("width"), text="name:N"
    )
    return [rule, text]


def layered(*charts: alt.Chart) -> alt.LayerChart:
    """Charts over one another, the first at the bottom."""
    return alt.LayerChart(layer=list(charts))


def names(rows: pl.DataFrame, column: str) -> list[str]:
    """The distinct names of a column, in order."""
    return sorted(rows[column].unique())
