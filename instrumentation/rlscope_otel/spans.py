"""Turns spans into rows, in the same way for our context managers, plain OpenTelemetry spans and the exporter.

A phase of the API becomes the row that a span under its name would, but no span is made: that would cost ten times as
much, and the providers are the host's.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, cast

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.trace import format_span_id, format_trace_id

from rlscope_otel import conventions as c
from rlscope_otel import schema
from rlscope_otel.buffers import Row, RowBuffer
from rlscope_otel.faults import Faults

Attributes = Mapping[str, object]


class SpanRow(NamedTuple):
    """A row, its table, and the fault of the span. The fault is None if there is none."""

    table: str
    row: Row
    problem: str | None = None


class _Unusable(ValueError):
    """A span under our name that lacks an attribute or has one of the wrong type."""


class RowSpanProcessor(SpanProcessor):
    """Turns every span and phase that ends into a row of the trace, on the thread that ends it and without I/O."""

    def __init__(self, buffers: Mapping[str, RowBuffer], faults: Faults, flush: Callable[[float], bool]) -> None:
        self._buffers = buffers
        self._faults = faults
        self._flush = flush

    def on_end(self, span: ReadableSpan) -> None:
        """Keep the span's row; whatever goes wrong costs this row only."""
        try:
            self._keep(row_of(span))
        except Exception as error:  # The host ended the span: nothing of ours may reach it.
            self._lose(error)

    def phase_ended(self, name: str, start_ns: int, end_ns: int, attributes: Mapping[str, object]) -> None:
        """Keep the row of a phase; whatever goes wrong costs this row only."""
        try:
            self._keep(_BUILDERS[name](start_ns, end_ns, attributes))
        except Exception as error:  # The host's values may fail in any way.
            self._lose(error)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Write what is held."""
        return self._flush(timeout_millis / 1000)

    def _keep(self, found: SpanRow) -> None:
        self._buffers[found.table].add(found.row)
        if found.problem:
            self._faults.note("spans", found.problem)

    def _lose(self, error: Exception) -> None:
        self._buffers["spans"].drop()
        self._faults.note("spans", error)


def row_of(span: ReadableSpan) -> SpanRow:
    """The row of a finished span; an unusable span with one of our names goes to `spans`, with the problem."""
    build = _BUILDERS.get(span.name)
    if build is None:
        return SpanRow("spans", _other_row(span))
    try:
        return build(span.start_time or 0, span.end_time or 0, span.attributes or {})
    except _Unusable as problem:
        return SpanRow("spans", _other_row(span), f"span {span.name!r} kept in `spans`: {problem}")


def open_entry(name: str, since_ns: int, attributes: Attributes) -> Mapping[str, object]:
    """The entry in the worker's file of a phase that has not ended: its kind, its start and its known attributes."""
    known = ((name, attributes.get(attribute.key)) for name, attribute in _OF_OPEN.items())
    return {
        "doing": _DOING[name],
        "since_ns": since_ns,
        **{key: value for key, value in known if value is not None},
    }


def _activity_row(activity: str, start_ns: int, end_ns: int, attributes: Attributes) -> SpanRow:
    reason = _value(attributes, c.WAIT_REASON) if activity == "wait" else None
    return SpanRow("activities", (activity, reason if reason in schema.WAIT_REASONS else None, start_ns, end_ns))


def _weight_row(phase: str, start_ns: int, end_ns: int, attributes: Attributes) -> SpanRow:
    values = {column: _value(attributes, attribute) for column, attribute in c.WEIGHTS.items()}
    return _row("weight_updates", {**values, "phase": phase, "start_ns": start_ns, "end_ns": end_ns})


def _train_row(start_ns: int, end_ns: int, attributes: Attributes) -> SpanRow:
    values = {column: _value(attributes, attribute) for column, attribute in c.TRAIN.items()}
    values["samples"] = values["samples"] or 0
    values["tokens"] = values["tokens"] or 0
    if values["version_out"] is None:
        values["version_out"] = values["version_in"]
    moments = _importance(attributes)
    return _row("train_steps", {**values, "importance": moments, "start_ns": start_ns, "end_ns": end_ns})


def _row(table: str, values: Mapping[str, object]) -> SpanRow:
    return SpanRow(table, tuple(values[name] for name in _COLUMNS[table]))


def _importance(attributes: Attributes) -> list[tuple[object, ...]] | None:
    columns = [attributes.get(key) for key in c.IMPORTANCE]
    if columns == [None] * len(columns):
        return None
    lengths = {len(cast(Sequence[object], column)) if isinstance(column, Sequence) else None for column in columns}
    if len(lengths) != 1 or None in lengths:
        raise _Unusable(f"{', '.join(c.IMPORTANCE)} must be lists of one length")
    return list(zip(*cast(list[Sequence[object]], columns), strict=True))


def _value(attributes: Attributes, attribute: c.Attribute) -> object:
    value, kind = attributes.get(attribute.key), attribute.type
    if value is None and attribute.required:
        raise _Unusable(f"it lacks {attribute.key}")
    if value is None or type(value) is kind:
        return value
    if kind is float and type(value) is int:
        return float(value)
    raise _Unusable(f"{attribute.key} is {value!r}; expected {kind.__name__}")


def _other_row(span: ReadableSpan) -> Row:
    context = span.get_span_context()
    return (
        format_trace_id(context.trace_id if context else 0),
        format_span_id(context.span_id if context else 0),
        format_span_id(span.parent.span_id) if span.parent else None,
        span.name,
        span.kind.name,
        span.start_time or 0,
        span.end_time or 0,
        span.status.status_code.name,
        json.dumps({key: _as_json(value) for key, value in (span.attributes or {}).items()}, default=str),
    )


def _as_json(value: object) -> object:
    """JSON has no NaN and no infinity; they are kept as text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


_COLUMNS = {
    table: [column.name for column in columns if column.name != "worker_id"] for table, columns in schema.TABLES.items()
}
_OF_OPEN = {"reason": c.WAIT_REASON, "step": c.TRAIN["step"], "version": c.WEIGHTS["version"]}
_DOING = {
    c.TRAIN_STEP: "train",
    **{name: activity for activity, name in c.ACTIVITY_SPANS.items()},
    **{name: phase for phase, name in c.WEIGHT_SPANS.items()},
}
_BUILDERS: dict[str, Callable[[int, int, Attributes], SpanRow]] = {
    c.TRAIN_STEP: _train_row,
    **{name: partial(_activity_row, activity) for activity, name in c.ACTIVITY_SPANS.items()},
    **{name: partial(_weight_row, phase) for phase, name in c.WEIGHT_SPANS.items()},
}
