"""Encodings that all charts share: axes, colors, tooltips, limit lines, the zoomable time axis, and Vega-Lite JSON.

All charts over time share one axis. Two parameters hold the visible range; `templates/zoom.js` sets them in all charts
at once. Without JavaScript, they keep the whole run.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, TypeAlias

import altair as alt
import polars as pl
from altair.utils.schemapi import debug_mode

from rlscope.analysis.result import RunFacts
from rlscope.reports.charts.colors import LIMIT, palette
from rlscope.text_out import as_json

FROM: Final = "zoom_from_s"
TO: Final = "zoom_to_s"
"""Parameters: start and end of the shown stretch, in seconds since the run started."""


def unchecked() -> AbstractContextManager[None]:
    """Return a block in which Altair does not check each part of a chart as it is made: the tests check every chart."""
    return debug_mode(False)


_WORTH_FOLDING_RATIO: Final = 0.05
"""Share of the run; a start-up shorter than this stays visible."""


def shown_from_s(run: RunFacts) -> float:
    """Return the start of charts over time, in seconds since the run started.

    This is the start of the steady state, or 0 if the start-up is short.
    """
    if run.window is None:
        return 0.0
    from_s = (run.window.start_ns - run.started_ns) / 1e9
    return from_s if from_s > _WORTH_FOLDING_RATIO * run.duration_s else 0.0


def _clipped(view: dict[str, Any]) -> dict[str, Any]:
    """The view with marks on the time axis clipped at its edges; labels beside it are not clipped."""
    if "layer" in view:
        return view | {"layer": [_clipped(inner) for inner in view["layer"]]}
    if "field" not in view.get("encoding", {}).get("x", {}):
        return view
    mark = view["mark"] if isinstance(view["mark"], dict) else {"type": view["mark"]}
    return view | {"mark": {**mark, "clip": True}}


Chart: TypeAlias = "alt.Chart | alt.LayerChart"

HEIGHT: Final = 122
TITLE_PX: Final = -8
"""The foot of an axis title, above the plot."""
LINES_MAX: Final = 4
"""Maximum number of lines that can be told apart by color."""
_LONG_NAME: Final = 19
"""Characters of a legend label, if two labels are to fit side by side on a phone."""
_SHORT_NAME: Final = 12
"""Characters of a legend label, if three labels are to fit side by side on a phone."""

_VARIABLE: Final = re.compile(r"var\(--[\w-]+,\s*([^()]*)\)")


def spec(chart: Chart, name: str, description: str, run: RunFacts) -> str:
    """The chart with its data as Vega-Lite JSON that is safe inside a script element.

    A chart over time starts at the steady state of the run, unless its own parameters zoom to another stretch.
    """
    chart = chart.properties(width="container", description=description, name=name)
    chart = chart.configure(autosize=alt.AutoSizeParams(type="fit-x", contains="padding"))
    # Validating against the Vega-Lite schema takes longer than making the chart; the tests draw every chart. Altair
    # refuses more than 5,000 rows, and a notebook may have set another way to pass data: the queries bound the rows.
    with alt.data_transformers.enable("default", max_rows=None):
        document: dict[str, Any] = chart.to_dict(validate=False)
    if json.dumps({"expr": FROM}) in json.dumps(document):
        own, ends = document.get("params", []), {FROM: shown_from_s(run), TO: run.duration_s}
        given = {param["name"] for param in own}
        more = [{"name": name, "value": value} for name, value in ends.items() if name not in given]
        document = _clipped(document) | {"params": [*own, *more]}
    return as_json(document).replace("<", "\\u003c")


def standalone(spec: str, config: Mapping[str, Any], width_px: int) -> Chart:
    """The chart of a spec for use outside the report: with the report's settings, a width, and plain colors.

    A canvas and a file know no CSS variables, so each one is replaced by its fallback color.
    """
    document = json.loads(_colored(json.dumps({**json.loads(spec), "width": width_px})))
    own: dict[str, Any] = document.get("config", {})
    settings = json.loads(_colored(json.dumps({**config, "background": "#ffffff", "padding": 8, **own})))
    kind = alt.LayerChart if "layer" in document else alt.Chart
    return kind.from_dict({**document, "config": settings}, validate=False)


def _colored(text: str) -> str:
    """The innermost variables first: one may fall back to another."""
    while (plain := _VARIABLE.sub(r"\1", text)) != text:
        text = plain
    return text


def chart_of(rows: pl.DataFrame, repeated: Sequence[str]) -> alt.Chart:
    """A chart of the rows in which each combination of the repeated columns is stored once and looked up per row.

    Text repeated in thousands of rows is most of a chart's size. CSV would be smaller still, but Vega needs eval to
    parse it, which the page's content policy forbids.
    """
    words = rows.select(repeated).unique(maintain_order=True).with_row_index("words")
    known = alt.LookupData(data=words, key="words", fields=list(repeated))
    keyed = rows.join(words, on=list(repeated), nulls_equal=True, maintain_order="left").drop(repeated)
    return alt.Chart(keyed).transform_lookup(lookup="words", from_=known)


def time_axis(column: str) -> alt.X:
    """Return the axis of seconds since the run started."""
    axis = alt.Axis(format=",~f", tickCount=8)
    scale = alt.Scale(domain=[alt.ExprRef(FROM), alt.ExprRef(TO)], nice=False, zero=False, padding=0)
    return alt.X(f"{column}:Q", title="seconds since the run started", scale=scale, axis=axis)


def step_axis(column: str = "step") -> alt.X:
    """Return the axis of training steps."""
    return alt.X(f"{column}:Q").title("training step").scale(nice=False, zero=False).axis(format=",d", tickMinStep=1)


def amount(column: str, title: str) -> alt.Y:
    """Return an axis for an amount, starting at zero."""
    return alt.Y(f"{column}:Q", title=title, scale=alt.Scale(zero=True), axis=amount_axis())


def stacked(column: str, title: str) -> alt.Y:
    """Return an axis for amounts that are stacked upon each other."""
    return alt.Y(f"{column}:Q").stack("zero").title(title).axis(amount_axis())


def along_amounts(column: str, title: str) -> alt.X:
    """Return a horizontal axis for an amount."""
    return alt.X(f"{column}:Q").title(title).scale(nice=False).axis(amount_axis())


def upright_bars(rows: alt.Chart, x: alt.X, end: str, **encoding: Any) -> alt.Chart:  # noqa: ANN401  # any channel
    """Return bars that touch, each from its x to the column `end`."""
    bars = rows.mark_bar(orient="vertical", strokeWidth=0)
    return bars.encode(x=x, x2=alt.X2(f"{end}:Q"), **encoding).properties(height=HEIGHT)


def downwards(column: str, height: float, left_px: int) -> alt.Y:
    """Return a bare vertical axis from the top; every layer has the same, so that none adds ticks of its own.

    left_px: room for what is written beside it.
    """
    y = alt.Y(f"{column}:Q").title(None).scale(domain=[height, 0], nice=False, zero=False)
    return y.axis(labels=False, ticks=False, domain=False, grid=False, minExtent=left_px, maxExtent=left_px)


def amount_axis() -> alt.Axis:
    """Few ticks, written like the page's numbers: 0.0005, 0.2, 40, 1.2k; as wide as its labels."""
    # Three decimals would show 0.0005 and 0.001 as the same number.
    label = "format(datum.value, abs(datum.value) >= 1000 ? '.3~s' : abs(datum.value) >= 0.1 ? ',.3~f' : '.3~g')"
    return alt.Axis(labelExpr=label, tickCount=5)


def tip(field: str, title: str | None = None, number_format: str | None = None) -> alt.Tooltip:
    """Return one line of a tooltip."""
    # Altair's setters copy what they change: arguments take a tenth of the time of a page less.
    return alt.Tooltip(
        field,
        title=title or field.split(":")[0],
        format=alt.Undefined if number_format is None else number_format,
    )


def series_colors(column: str, names: Sequence[str]) -> alt.Color:
    """Return one color per name, in order, with a legend if there are several names."""
    columns = 2 if len(names) % 2 == 0 else 3
    legend = alt.Legend(orient="bottom", title=None, labelLimit=140, columns=columns) if len(names) > 1 else None
    return alt.Color(f"{column}:N").scale(domain=list(names), range=palette(len(names))).legend(legend)


def legend_of(names: Collection[str]) -> alt.Legend:
    """A legend below the chart, in as many columns as a phone is wide enough for."""
    longest = max(map(len, names), default=0)
    columns = 1 if longest > _LONG_NAME else 3 if len(names) == 3 and longest <= _SHORT_NAME else 2
    return alt.Legend(orient="bottom", title=None, labelLimit=260, columns=columns, symbolOpacity=1)


def series_palette(column: str, colors: Mapping[str, str]) -> alt.Color:
    """Return the given color per name, with a legend below; long names are stacked."""
    legend = legend_of(colors)
    scale = alt.Scale(domain=list(colors), range=list(colors.values()))
    return alt.Color(f"{column}:N", scale=scale, legend=legend)


def limit_rule(value: float | None, name: str, color: str = LIMIT) -> list[alt.Chart]:
    """A dashed line at a limit, named beside the title of the axis, where no mark lies; nothing without a limit."""
    if value is None:
        return []
    base = alt.Chart(pl.DataFrame([{"limit": value, "name": f"- - {name}"}]))
    rule = base.mark_rule(color=color, strokeDash=[6, 3], strokeWidth=1.5, aria=False).encode(y=alt.Y("limit:Q"))
    text = base.mark_text(color=color, align="right", baseline="bottom", tooltip=None)
    return [rule, text.encode(y=alt.YValue(TITLE_PX), x=alt.XValue("width"), text=alt.Text("name:N"))]


def layered(*charts: alt.Chart) -> alt.LayerChart:
    """Return the charts as layers, the first at the bottom."""
    return alt.LayerChart(layer=list(charts))


def names(rows: pl.DataFrame, column: str) -> list[str]:
    """Return the distinct names of a column, sorted."""
    return sorted(rows[column].unique())
