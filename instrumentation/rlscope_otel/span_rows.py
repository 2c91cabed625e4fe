"""Turns spans into rows, in the same way for our context managers, plain OpenTelemetry spans and the exporter.

Pure: a finished span or phase in, a table's name and a row out.
"""

import json
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar, cast

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id

from rlscope_otel import conventions as c
from rlscope_otel import schema
from rlscope_otel.buffers import Row

Attributes = Mapping[str, object]
_Scalar = TypeVar("_Scalar", str, int, float, bool)


class SpanRow(NamedTuple):
    """A row, its table, and the fault of the span. The fault is None if there is none."""

    table: str
    row: Row
    problem: str | None = None


class _Unusable(ValueError):
    """A span under our name that lacks an attribute or has one of the wrong type."""


def row_of(span: ReadableSpan) -> SpanRow:
    """The row of a finished span; an unusable span with one of our names goes to `spans`, with the problem."""
    build = _BUILDERS.get(span.name)
    if build is None:
        return SpanRow("spans", _other_row(span))
    try:
        return build(span.start_time or 0, span.end_time or 0, cast(Attributes, span.attributes or {}))
    except _Unusable as problem:
        return SpanRow("spans", _other_row(span), f"span {span.name!r} kept in `spans`: {problem}")


def row_of_phase(name: str, start_ns: int, end_ns: int, attributes: Attributes) -> SpanRow:
    """The row of a phase that has one of our names; an unusable one goes to `spans`, with the problem."""
    try:
        return _BUILDERS[name](start_ns, end_ns, attributes)
    except _Unusable as problem:
        said = json.dumps({key: _as_json(value) for key, value in attributes.items()}, default=str)
        ids = secrets.token_hex(16), secrets.token_hex(8), None
        row = (*ids, name, SpanKind.INTERNAL.name, start_ns, end_ns, StatusCode.UNSET.name, said)
        return SpanRow("spans", row, f"span {name!r} kept in `spans`: {problem}")


def open_entry(name: str, since_ns: int, attributes: Attributes) -> Mapping[str, object]:
    """The entry in the worker's file of a phase that has not ended: its kind, its start and its known attributes."""
    known = ((attribute.key.rpartition(".")[2], attributes.get(attribute.key)) for attribute in _OF_OPEN)
    return {
        "doing": _DOING[name],
        "since_ns": since_ns,
        **{key: value for key, value in known if value is not None},
    }


def _activity_row(activity: str, start_ns: int, end_ns: int, attributes: Attributes) -> SpanRow:
    reason = _value(attributes, c.WAIT_REASON, str) if activity == "wait" else None
    return SpanRow("activities", (activity, reason if reason in schema.WAIT_REASONS else None, start_ns, end_ns))


def _weight_row(phase: str, start_ns: int, end_ns: int, attributes: Attributes) -> SpanRow:
    row = (
        _needed(attributes, c.WEIGHTS_VERSION, int),
        _value(attributes, c.WEIGHTS_LABEL, str),
        phase,
        start_ns,
        end_ns,
        _value(attributes, c.WEIGHTS_BYTES, int),
        _value(attributes, c.WEIGHTS_PAUSED, bool),
        _value(attributes, c.WEIGHTS_KV, str),
    )
    return SpanRow("weight_updates", row)


def _train_row(start_ns: int, end_ns: int, attributes: Attributes) -> SpanRow:
    version_in = _needed(attributes, c.VERSION_IN, int)
    version_out = _value(attributes, c.VERSION_OUT, int)
    measures = (c.LOSS, c.GRAD_NORM, c.ENTROPY, c.REWARD_MEAN, c.CLIP_RATIO, c.TRUNCATED_RATIO)
    row = (
        _needed(attributes, c.STEP, int),
        start_ns,
        end_ns,
        version_in,
        version_in if version_out is None else version_out,
        _value(attributes, c.SAMPLES, int) or 0,
        _value(attributes, c.TOKENS, int) or 0,
        *(_value(attributes, measure, float) for measure in measures),
        _importance(attributes),
        _value(attributes, c.FRESH_TOKENS, int),
        _value(attributes, c.FRESH_SUM, float),
        _value(attributes, c.FRESH_SQUARES, float),
    )
    return SpanRow("train_steps", row)


def _importance(attributes: Attributes) -> list[tuple[object, ...]] | None:
    keys = (c.IMPORTANCE_STALENESS, c.IMPORTANCE_TOKENS, c.IMPORTANCE_SUM, c.IMPORTANCE_SQUARES)
    columns = [attributes.get(attribute.key) for attribute in keys]
    if columns == [None] * len(keys):
        return None
    lengths = {len(cast(Sequence[object], column)) if isinstance(column, Sequence) else None for column in columns}
    if len(lengths) != 1 or None in lengths:
        raise _Unusable(f"{', '.join(attribute.key for attribute in keys)} must be lists of one length")
    return list(zip(*cast(list[Sequence[object]], columns), strict=True))


def _needed(attributes: Attributes, attribute: c.Attribute, kind: type[_Scalar]) -> _Scalar:
    value = _value(attributes, attribute, kind)
    if value is None:
        raise _Unusable(f"it lacks {attribute.key} ({attribute.brief})")
    return value


def _value(attributes: Attributes, attribute: c.Attribute, kind: type[_Scalar]) -> _Scalar | None:
    value = attributes.get(attribute.key)
    if value is None or type(value) is kind:
        return value
    if kind is float and type(value) is int:
        return kind(value)
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


def _activity_builder(activity: str) -> Callable[[int, int, Attributes], SpanRow]:
    return lambda start_ns, end_ns, attributes: _activity_row(activity, start_ns, end_ns, attributes)


def _weight_builder(phase: str) -> Callable[[int, int, Attributes], SpanRow]:
    return lambda start_ns, end_ns, attributes: _weight_row(phase, start_ns, end_ns, attributes)


_OF_OPEN = (c.WAIT_REASON, c.STEP, c.WEIGHTS_VERSION)
_DOING = {
    c.TRAIN_STEP.name: "train",
    **{span.name: activity for activity, span in c.ACTIVITY_SPANS.items()},
    **{span.name: phase for phase, span in c.WEIGHT_SPANS.items()},
}
_BUILDERS: dict[str, Callable[[int, int, Attributes], SpanRow]] = {
    c.TRAIN_STEP.name: _train_row,
    **{span.name: _activity_builder(activity) for activity, span in c.ACTIVITY_SPANS.items()},
    **{span.name: _weight_builder(phase) for phase, span in c.WEIGHT_SPANS.items()},
}
