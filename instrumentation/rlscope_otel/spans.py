"""Turns spans into rows, in the same way for our context managers, plain OpenTelemetry spans and the exporter.

A phase of the API becomes the row that a span under its name would, but no span is made: that would cost ten times as
much, and the providers are the host's.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, cast

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from rlscope_otel import conventions as c
from rlscope_otel import schema
from rlscope_otel.buffers import Row, RowBuffer
from rlscope_otel.faults import Faults

Attributes = Mapping[str, object]


class _Builder(NamedTuple):
    """Makes the row of a span under one of our names."""

    table: str
    row_of: Callable[[int, int, Attributes], Row]
    """From the start and the end, in ns, and the attributes. Raises _Unusable."""


class _Unusable(ValueError):
    """A span under our name that lacks an attribute or has one of the wrong type."""


class RowSpanProcessor(SpanProcessor):
    """Turns phases, and spans under our names, into rows of the trace, on the thread that ends them and without I/O."""

    def __init__(self, buffers: Mapping[str, RowBuffer], faults: Faults, flush: Callable[[float], bool]) -> None:
        self._buffers = buffers
        self._faults = faults
        self._flush = flush

    def on_end(self, span: ReadableSpan) -> None:
        """Keep the span's row, if it has one of our names; whatever goes wrong costs this row only."""
        try:
            if span.name in _BUILDERS:
                self.phase_ended(span.name, span.start_time or 0, span.end_time or 0, span.attributes or {})
        except Exception as error:  # The host ended the span: nothing of ours may reach it.
            self._faults.note("spans", error)

    def phase_ended(self, name: str, start_ns: int, end_ns: int, attributes: Mapping[str, object]) -> None:
        """Keep the row of a phase; whatever goes wrong costs this row only."""
        table, row_of = _BUILDERS[name]
        try:
            self._buffers[table].add(row_of(start_ns, end_ns, attributes))
        except Exception as error:  # The host's values may fail in any way.
            self._buffers[table].drop()
            self._faults.note("spans", error)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Write what is held."""
        return self._flush(timeout_millis / 1000)


def open_entry(name: str, since_ns: int, attributes: Attributes) -> Mapping[str, object]:
    """The entry in the worker's file of a phase that has not ended: its kind, its start and its known attributes."""
    known = ((name, attributes.get(attribute.key)) for name, attribute in _OF_OPEN.items())
    return {
        "doing": _DOING[name],
        "since_ns": since_ns,
        **{key: value for key, value in known if value is not None},
    }


def _activity_row(activity: str, start_ns: int, end_ns: int, attributes: Attributes) -> Row:
    reason = _value(attributes, c.WAIT_REASON) if activity == "wait" else None
    return activity, reason if reason in schema.WAIT_REASONS else None, start_ns, end_ns


def _weight_row(phase: str, start_ns: int, end_ns: int, attributes: Attributes) -> Row:
    values = {column: _value(attributes, attribute) for column, attribute in c.WEIGHTS.items()}
    return _row("weight_updates", {**values, "phase": phase, "start_ns": start_ns, "end_ns": end_ns})


def _train_row(start_ns: int, end_ns: int, attributes: Attributes) -> Row:
    values = {column: _value(attributes, attribute) for column, attribute in c.TRAIN.items()}
    values["samples"] = values["samples"] or 0
    values["tokens"] = values["tokens"] or 0
    if values["version_out"] is None:
        values["version_out"] = values["version_in"]
    moments = _importance(attributes)
    return _row("train_steps", {**values, "importance": moments, "start_ns": start_ns, "end_ns": end_ns})


def _row(table: str, values: Mapping[str, object]) -> Row:
    return tuple(values[name] for name in _COLUMNS[table])


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
        raise _Unusable(f"a span lacks {attribute.key}")
    if value is None or type(value) is kind:
        return value
    if kind is float and type(value) is int:
        return float(value)
    raise _Unusable(f"{attribute.key} is {value!r}; expected {kind.__name__}")


_COLUMNS = {
    table: [column.name for column in columns if column.name != "worker_id"] for table, columns in schema.TABLES.items()
}
_OF_OPEN = {"reason": c.WAIT_REASON, "step": c.TRAIN["step"], "version": c.WEIGHTS["version"]}
_DOING = {
    c.TRAIN_STEP: "train",
    **{name: activity for activity, name in c.ACTIVITY_SPANS.items()},
    **{name: phase for phase, name in c.WEIGHT_SPANS.items()},
}
_BUILDERS = {
    c.TRAIN_STEP: _Builder("train_steps", _train_row),
    **{name: _Builder("activities", partial(_activity_row, activity)) for activity, name in c.ACTIVITY_SPANS.items()},
    **{name: _Builder("weight_updates", partial(_weight_row, phase)) for phase, name in c.WEIGHT_SPANS.items()},
}
