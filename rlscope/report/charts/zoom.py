"""One time axis for all charts over time: the same stretch in each, weight updates as faint ticks, and a zoom.

Two parameters of a chart say which stretch it shows. `templates/zoom.js` sets them in every chart at once; without
scripts they keep their values, the whole run.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

import altair as alt

FROM: Final = "zoom_from_s"
TO: Final = "zoom_to_s"
"""Parameters: start and end of the stretch shown, seconds since the run started."""
UPDATE: Final = "var(--state-publishing-weights, #6f4fa3)"
"""Colour of the marks of weight updates."""
_TICK_PX: Final = 5


def zoomed_scale() -> alt.Scale:
    """The scale of time that all charts share."""
    return alt.Scale(domain=[alt.ExprRef(FROM), alt.ExprRef(TO)], nice=False, zero=False, padding=0)


def uses_time(document: dict[str, Any]) -> bool:
    """Whether a chart, as Vega-Lite JSON, stands on the shared axis."""
    return json.dumps({"expr": FROM}) in json.dumps(document)


def with_zoom(document: dict[str, Any], duration_s: float, updates_s: Sequence[float]) -> dict[str, Any]:
    """The chart with its parameters, with marks that end at its edges, and a tick at the top for each weight update.

    A chart that brings parameters of its own shows that stretch first.
    """
    given = {param["name"] for param in document.get("params", [])}
    params = [{"name": name, "value": value} for name, value in ((FROM, 0), (TO, duration_s)) if name not in given]
    views = [_clipped(view) for view in document.get("layer", [_view(document)])]
    rest = {name: value for name, value in document.items() if name not in (*_OF_VIEW, "layer")}
    ticks = [_ticks(updates_s)] if updates_s else []
    return rest | {"params": [*document.get("params", []), *params], "layer": [*views, *ticks]}


_OF_VIEW: Final = ("mark", "encoding", "transform")


def _view(document: dict[str, Any]) -> dict[str, Any]:
    return {name: document[name] for name in _OF_VIEW if name in document}


def _clipped(view: dict[str, Any]) -> dict[str, Any]:
    """The view with its marks cut at the edges, where they lie on the axis; labels beside it stay whole."""
    if "layer" in view:
        return view | {"layer": [_clipped(inner) for inner in view["layer"]]}
    if "field" not in view.get("encoding", {}).get("x", {}):
        return view
    mark = view["mark"] if isinstance(view["mark"], dict) else {"type": view["mark"]}
    return view | {"mark": {**mark, "clip": True}}


def _ticks(updates_s: Sequence[float]) -> dict[str, Any]:
    scale: dict[str, Any] = zoomed_scale().to_dict()
    return {
        "data": {"values": [{"published_s": moment} for moment in updates_s]},
        "mark": {"type": "rule", "color": UPDATE, "opacity": 0.55, "clip": True, "aria": False, "tooltip": None},
        "encoding": {
            "x": {"field": "published_s", "type": "quantitative", "scale": scale},
            "y": {"value": 0},
            "y2": {"value": _TICK_PX},
        },
    }
