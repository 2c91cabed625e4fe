"""Turns phases and spans into rows: those of our context managers, of the OpenTelemetry API, and of the exporter.

A phase of the API becomes the row that a span under its name would, but no span is made: that would cost ten times as
much, and the providers are the host's. A phase holds its values by column, a span by attribute. A span with another
name is ignored, and one without a required attribute is counted as dropped. `schema.py` says what the columns mean.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, cast

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from rlscope_otel import schema
from rlscope_otel.buffers import Row, RowBuffer
from rlscope_otel.faults import Faults

Values = Mapping[str, object]
"""The known values of a row, by column."""


class Attribute(NamedTuple):
    """One attribute of a span."""

    key: str
    type: type[str] | type[int] | type[float] | type[bool]


WAIT_REASON: Final = Attribute("rlscope.wait.reason", str)

_TRAIN: Final = {
    "step": Attribute("rlscope.train.step", int),
    "version_in": Attribute("rlscope.train.version_in", int),
    "version_out": Attribute("rlscope.train.version_out", int),
    "samples": Attribute("rlscope.train.samples", int),
    "tokens": Attribute("rlscope.train.tokens", int),
    "loss": Attribute("rlscope.train.loss", float),
    "grad_norm": Attribute("rlscope.train.grad_norm", float),
    "entropy": Attribute("rlscope.train.entropy", float),
    "reward_mean": Attribute("rlscope.train.reward_mean", float),
    "clip_ratio": Attribute("rlscope.train.clip_ratio", float),
    "truncated_ratio": Attribute("rlscope.train.truncated_ratio", float),
    "fresh_tokens": Attribute("rlscope.train.fresh.tokens", int),
    "fresh_sum_w": Attribute("rlscope.train.fresh.sum_w", float),
    "fresh_sum_w2": Attribute("rlscope.train.fresh.sum_w2", float),
}
"""Attributes of a train step, by column of `train_steps`."""

_IMPORTANCE: Final = tuple(f"rlscope.train.importance.{each}" for each in ("staleness", "tokens", "sum_w", "sum_w2"))
"""Keys of a train step whose values are lists of one length: they are the fields of the column `importance`."""

_WEIGHTS: Final = {
    "version": Attribute("rlscope.weights.version", int),
    "label": Attribute("rlscope.weights.label", str),
    "bytes": Attribute("rlscope.weights.size", int),
    "paused": Attribute("rlscope.weights.paused", bool),
    "kv": Attribute("rlscope.weights.kv", str),
}
"""Attributes of a phase of a weight update, by column of `weight_updates`."""


class Kind(NamedTuple):
    """The meaning of one of our names, which phases and spans have."""

    name: str
    doing: str
    """The activity or the phase of an update; also its name in the worker's file while it has not ended."""
    table: str
    attributes: Mapping[str, Attribute]
    """By column, the attribute of a span."""
    row_of: "Callable[[Kind, int, int, Values], Row]"
    """From the kind, the start and the end, in ns, and the values. Raises _Unusable."""


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
        kind: Kind | None = None
        try:
            kind = _KINDS.get(span.name)
            if kind is not None:
                values = _values_in(span.attributes or {}, kind)
                self._buffers[kind.table].add(kind.row_of(kind, span.start_time or 0, span.end_time or 0, values))
        except Exception as error:  # The host ended the span: nothing of ours may reach it.
            self._lose(kind, error)

    def phase_ended(self, kind: Kind, start_ns: int, end_ns: int, values: Values) -> None:
        """Keep the row of a phase; whatever goes wrong costs this row only."""
        try:
            self._buffers[kind.table].add(kind.row_of(kind, start_ns, end_ns, values))
        except Exception as error:  # The host's values may fail in any way.
            self._lose(kind, error)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Write what is held."""
        return self._flush(timeout_millis / 1000)

    def _lose(self, kind: Kind | None, error: Exception) -> None:
        if kind is not None:
            self._buffers[kind.table].drop()
        self._faults.note("spans", error)


def _values_in(attributes: Mapping[str, object], kind: Kind) -> Values:
    """Return the values that the attributes of a span hold. Raises _Unusable for one of another type."""
    given = ((column, attribute, attributes.get(attribute.key)) for column, attribute in kind.attributes.items())
    values = {column: _value(value, attribute) for column, attribute, value in given if value is not None}
    return {**values, "importance": _importance(attributes)} if kind is TRAIN else values


def _value(value: object, attribute: Attribute) -> object:
    kind = attribute.type
    if type(value) is kind:
        return value
    if kind is float and type(value) is int:
        return float(value)
    raise _Unusable(f"{attribute.key} is {value!r}; expected {kind.__name__}")


def _importance(attributes: Mapping[str, object]) -> list[tuple[object, ...]] | None:
    columns = [attributes.get(key) for key in _IMPORTANCE]
    if columns == [None] * len(columns):
        return None
    lengths = {len(cast(Sequence[object], column)) if isinstance(column, Sequence) else None for column in columns}
    if len(lengths) != 1 or None in lengths:
        raise _Unusable(f"{', '.join(_IMPORTANCE)} must be lists of one length")
    return list(zip(*cast(list[Sequence[object]], columns), strict=True))


def _require(values: Values, kind: Kind, *columns: str) -> None:
    for column in columns:
        if column not in values:
            raise _Unusable(f"a span lacks {kind.attributes[column].key}")


def _train_row(kind: Kind, start_ns: int, end_ns: int, values: Values) -> Row:
    _require(values, kind, "step", "version_in")
    known = {"version_out": values["version_in"], **values, "start_ns": start_ns, "end_ns": end_ns}
    return tuple(map(known.get, _TRAIN_COLUMNS))


def _weight_row(kind: Kind, start_ns: int, end_ns: int, values: Values) -> Row:
    _require(values, kind, "version")
    get = values.get
    return values["version"], get("label"), kind.doing, start_ns, end_ns, get("bytes"), get("paused"), get("kv")


def _activity_row(kind: Kind, start_ns: int, end_ns: int, values: Values) -> Row:
    reason = values.get("reason")
    return kind.doing, reason if reason in schema.WAIT_REASONS else None, start_ns, end_ns


_TRAIN_COLUMNS: Final = [column.name for column in schema.TRAIN_STEPS if column.name != "worker_id"]
TRAIN: Final = Kind("rlscope.train_step", "train", "train_steps", _TRAIN, _train_row)
ACTIVITIES: Final = {
    each: Kind(f"rlscope.{each}", each, "activities", {"reason": WAIT_REASON} if each == "wait" else {}, _activity_row)
    for each in schema.ACTIVITIES
}
WEIGHTS: Final = {
    each: Kind(f"rlscope.weights.{each}", each, "weight_updates", _WEIGHTS, _weight_row)
    for each in schema.UPDATE_PHASES
}
_KINDS: Final = {kind.name: kind for kind in (TRAIN, *ACTIVITIES.values(), *WEIGHTS.values())}
