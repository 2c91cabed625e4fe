"""A Grafana dashboard of the metrics that the hooks export: where the time goes, ages, batches, queues, weights.

The JSON is what Grafana imports (Dashboards, New, Import). It asks for a Prometheus data source and shows one run.
"""

import json
from typing import Any, Final, NamedTuple

from rlscope.alerts.export import prometheus as names

_SCHEMA_VERSION: Final = 39
"""Grafana 11; newer ones migrate it."""
_WIDTH: Final = 12
_HEIGHT: Final = 8
_RUN: Final = f'{names.RUN}="$run"'
_RATE: Final = "[$__rate_interval]"
_SOURCE: Final = {"type": "prometheus", "uid": "${source}"}


class _Line(NamedTuple):
    promql: str
    legend: str


class _Panel(NamedTuple):
    title: str
    unit: str
    """A unit of Grafana's."""
    says: str
    lines: tuple[_Line, ...]
    stacked: bool = False


def as_dashboard() -> str:
    """The dashboard as JSON."""
    panels = [_panel(number, panel) for number, panel in enumerate(_PANELS)]
    return json.dumps(
        {
            "title": "rlscope: asynchronous RL run",
            "uid": "rlscope-run",
            "tags": ["rlscope"],
            "schemaVersion": _SCHEMA_VERSION,
            "editable": True,
            "time": {"from": "now-1h", "to": "now"},
            "refresh": "10s",
            "templating": {"list": _variables()},
            "panels": panels,
        },
        indent=2,
    )


def _variables() -> list[dict[str, Any]]:
    return [
        {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"},
        {
            "name": "run",
            "label": "Run",
            "type": "query",
            "datasource": _SOURCE,
            "query": {"query": f"label_values({names.HEARTBEAT}, {names.RUN})", "refId": "runs"},
            "refresh": 2,
            "sort": 2,
        },
    ]


def _panel(number: int, panel: _Panel) -> dict[str, Any]:
    stacking = {"mode": "normal" if panel.stacked else "none"}
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.says,
        "datasource": _SOURCE,
        "gridPos": {
            "x": number % 2 * _WIDTH,
            "y": number // 2 * _HEIGHT,
            "w": _WIDTH,
            "h": _HEIGHT,
        },
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "min": 0,
                "custom": {"fillOpacity": 40 if panel.stacked else 0, "stacking": stacking},
            },
            "overrides": [],
        },
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": line.promql, "legendFormat": line.legend}
            for index, line in enumerate(panel.lines)
        ],
    }


def _by(*labels: str) -> str:
    return f"sum by ({', '.join(labels)})"


def _time(roles: str) -> _Line:
    gpus = f"max by ({names.RUN}, {names.WORKER}) ({names.GPUS})"
    rate = f'rate({names.TIME}{{{_RUN}, {names.ROLE}=~"{roles}"}}{_RATE})'
    weighted = f"{rate} * on ({names.RUN}, {names.WORKER}) group_left () {gpus}"
    return _Line(f"{_by(names.STATE, names.REASON)} ({weighted})", f"{{{{{names.STATE}}}}} {{{{{names.REASON}}}}}")


_TRAINED_RATE: Final = f"rate({names.TRAINED}{{{_RUN}}}{_RATE})"
_AGE_RATE: Final = f"rate({names.TOKEN_AGE}{{{_RUN}}}{_RATE})"

_PANELS: Final = (
    _Panel("What the trainers' GPUs do", "none", "GPUs in each state. A wait counts once it has ended.",
           (_time("trainer|colocated"),), stacked=True),
    _Panel("What the samplers' GPUs do", "none",
           "GPUs in each state by spans; forward_pass and between_passes stand beside the spans that they lie in.",
           (_time("sampler|colocated"),), stacked=True),
    _Panel("Trained tokens by staleness", "none", "Response tokens trained a second, by the versions they are old.",
           (_Line(f"{_by(names.STALENESS)} ({_TRAINED_RATE})", f"{{{{{names.STALENESS}}}}}"),), stacked=True),
    _Panel("Mean staleness", "none", "Versions, over the response tokens that were trained on.",
           (_Line(f"sum ({_AGE_RATE}) / sum ({_TRAINED_RATE})", "mean"),)),
    _Panel("Tokens a second", "none", "Response tokens that engines produced, and that were trained on.",
           (_Line(f"sum (rate({names.DECODE}{{{_RUN}}}{_RATE}))", "produced"),
            _Line(f"sum ({_TRAINED_RATE})", "trained"))),
    _Panel("Steps a second", "none", "Optimizer steps of the trainer that makes most.",
           (_Line(f"max (rate({names.STEPS}{{{_RUN}}}{_RATE}))", "steps"),)),
    _Panel("Batch of each engine", "none", "Requests in the last batch, and requests that wait inside the engine.",
           (_Line(f"{names.RUNNING}{{{_RUN}}}", f"{{{{{names.WORKER}}}}} running"),
            _Line(f"{names.WAITING}{{{_RUN}}}", f"{{{{{names.WORKER}}}}} waiting"))),
    _Panel("KV cache", "percentunit", "Tokens resident over tokens that fit.",
           (_Line(f"{names.KV_USED}{{{_RUN}}} / on ({names.RUN}, {names.WORKER}) {names.KV_CAPACITY}",
                  f"{{{{{names.WORKER}}}}}"),)),
    _Panel("Queues", "none", "Samples in each queue, and what it can hold.",
           (_Line(f"max by ({names.QUEUE}) ({names.QUEUE_DEPTH}{{{_RUN}}})", f"{{{{{names.QUEUE}}}}}"),
            _Line(f"max by ({names.QUEUE}) ({names.QUEUE_CAPACITY}{{{_RUN}}})", f"{{{{{names.QUEUE}}}}} capacity"))),
    _Panel("Samples that left the queue", "none", "Samples a second, by what they left for.",
           (_Line(f"{_by(names.OUTCOME)} (rate({names.DELIVERIES}{{{_RUN}}}{_RATE}))", f"{{{{{names.OUTCOME}}}}}"),)),
    _Panel("Versions", "none", "The latest policy version of each worker: published, moved, applied.",
           (_Line(f"{names.VERSION}{{{_RUN}}}", f"{{{{{names.WORKER}}}}} {{{{{names.PHASE}}}}}"),)),
    _Panel("Time of a weight update", "s", "Mean seconds of one, by phase.",
           (_Line(f"{_by(names.PHASE)} (rate({names.UPDATE_TIME}{{{_RUN}}}{_RATE}))"
                  f" / {_by(names.PHASE)} (rate({names.UPDATES}{{{_RUN}}}{_RATE}))", f"{{{{{names.PHASE}}}}}"),)),
    _Panel("Since each worker was heard of", "s", "Seconds since its last flush that wrote everything.",
           (_Line(f"time() - {names.HEARTBEAT}{{{_RUN}}}", f"{{{{{names.WORKER}}}}}"),)),
    _Panel("Rows dropped", "none", "Rows that the hooks could not keep, of those written.",
           (_Line(f"{_by(names.WORKER)} ({names.DROPPED}{{{_RUN}}})", f"{{{{{names.WORKER}}}}} dropped"),
            _Line(f"{_by(names.WORKER)} ({names.WRITTEN}{{{_RUN}}})", f"{{{{{names.WORKER}}}}} written"))),
)  # fmt: skip
