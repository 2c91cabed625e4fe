"""A low-rate mirror of the recording as OpenTelemetry metrics, for the host's own Prometheus or OTLP pipeline.

All instruments are observable: they read the totals when the host's reader collects, and cost nothing between. They
lag by at most one flush. A policy version is never an attribute: that would be a new series at every publication.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple
from weakref import WeakKeyDictionary

from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation, get_meter_provider

from rlscope_otel import conventions
from rlscope_otel.tallies import Tallies, Vital

Attributes = dict[str, str]
_Readings = Iterable[tuple[float, Attributes]]
_Reader = Callable[[Tallies], _Readings]

_NS_PER_S = 1e9


class Mirrored(NamedTuple):
    """The totals of one worker, and the attributes that identify it."""

    tallies: Tallies
    attributes: Attributes


class _Mirror:
    """The instruments on one meter, and the workers whose totals they show for as long as those are alive."""

    def __init__(self, meter: Meter) -> None:
        self._workers: WeakKeyDictionary[Tallies, Attributes] = WeakKeyDictionary()
        for metric, read in _READERS.items():
            create = meter.create_observable_counter if metric.monotonic else meter.create_observable_gauge
            create(metric.name, [self._callback(read)], unit=metric.unit, description=metric.brief)

    def show(self, mirrored: Mirrored) -> None:
        """Show one more worker."""
        self._workers[mirrored.tallies] = mirrored.attributes

    def _callback(self, read: _Reader) -> Callable[[CallbackOptions], Iterator[Observation]]:
        def observe(_: CallbackOptions) -> Iterator[Observation]:
            for tallies, attributes in list(self._workers.items()):
                worker = {**attributes, **_run_of(tallies)}
                for value, own in read(tallies):
                    yield Observation(value, {**worker, **own})

        return observe


_mirrors: "WeakKeyDictionary[MeterProvider, _Mirror]" = WeakKeyDictionary()
_global_mirror: list[_Mirror] = []


def show(mirrored: Mirrored, meter_provider: MeterProvider | None = None) -> None:
    """Show a worker's totals on a provider; on the global one by default, even when the host sets that later."""
    if meter_provider is None or meter_provider is get_meter_provider():
        if not _global_mirror:
            _global_mirror.append(_Mirror(get_meter_provider().get_meter(conventions.SCOPE_NAME)))
        mirror = _global_mirror[0]
    else:
        mirror = _mirrors.get(meter_provider)
        if mirror is None:
            mirror = _mirrors[meter_provider] = _Mirror(meter_provider.get_meter(conventions.SCOPE_NAME))
    mirror.show(mirrored)


def _run_of(tallies: Tallies) -> Attributes:
    """The run, and the worker's name there: both can change while the run folder cannot be written."""
    vital = tallies.vital()
    if vital is None:
        return {conventions.RUN_ID.key: ""}
    return {conventions.RUN_ID.key: vital.run_id, conventions.WORKER_ID.key: vital.worker_id}


def _staleness(tallies: Tallies) -> _Readings:
    return [(tokens, {conventions.STALENESS.key: bucket}) for bucket, tokens in tallies.staleness_tokens().items()]


def _queue_depths(tallies: Tallies) -> _Readings:
    return [(depth, {conventions.QUEUE.key: queue}) for queue, depth in tallies.queue_depths().items()]


def _seconds(tallies: Tallies) -> _Readings:
    for state, seconds in tallies.seconds().items():
        reason = {} if state.reason is None else {conventions.WAIT_REASON.key: state.reason}
        yield seconds, {conventions.STATE.key: state.name, **reason}


def _level(name: str, label: conventions.Attribute | None = None) -> _Reader:
    return lambda tallies: _named(tallies.totals().levels, name, label)


def _count(name: str, label: conventions.Attribute | None = None) -> _Reader:
    return lambda tallies: _named(tallies.totals().counts, name, label)


def _named(totals: Mapping[tuple[str, str], int], name: str, label: conventions.Attribute | None) -> _Readings:
    for (known, value_of_label), value in totals.items():
        if known == name:
            yield value, {} if label is None else {label.key: value_of_label}


def _update_seconds(tallies: Tallies) -> _Readings:
    for spent_ns, attributes in _count("update_ns", conventions.PHASE)(tallies):
        yield spent_ns / _NS_PER_S, attributes


def _vital(read: Callable[[Vital], float | None]) -> _Reader:
    def readings(tallies: Tallies) -> _Readings:
        vital = tallies.vital()
        return _known(None if vital is None else read(vital))

    return readings


def _known(value: float | None) -> _Readings:
    return [] if value is None else [(value, {})]


def _rows(read: Callable[[Vital], Mapping[str, int]]) -> _Reader:
    def readings(tallies: Tallies) -> _Readings:
        vital = tallies.vital()
        by_table = {} if vital is None else read(vital)
        return [(rows, {conventions.TABLE.key: table}) for table, rows in by_table.items()]

    return readings


_READERS: dict[conventions.Metric, _Reader] = {
    conventions.RUNNING_REQUESTS: _level("running"),
    conventions.WAITING_REQUESTS: _level("waiting"),
    conventions.KV_USED: _level("kv_used_tokens"),
    conventions.KV_CAPACITY: _vital(lambda vital: vital.kv_capacity_tokens),
    conventions.DECODE_TOKENS: _count("decode_tokens"),
    conventions.QUEUE_DEPTH: _queue_depths,
    conventions.QUEUE_CAPACITY: _level("queue_capacity_samples", conventions.QUEUE),
    conventions.DELIVERIES: _count("deliveries", conventions.OUTCOME),
    conventions.TRAIN_STEPS: _count("train_steps"),
    conventions.LAST_STEP: lambda tallies: _known(tallies.last_step_s()),
    conventions.STEP_PERIOD: lambda tallies: _known(tallies.step_period_s()),
    conventions.TRAINED_TOKENS: _staleness,
    conventions.TOKEN_AGE: _count("token_age"),
    conventions.OVER_CAP: _count("over_cap"),
    conventions.VERSION: _level("version", conventions.PHASE),
    conventions.UPDATES: _count("updates", conventions.PHASE),
    conventions.UPDATE_TIME: _update_seconds,
    conventions.WORKER_TIME: _seconds,
    conventions.WORKER_GPUS: _vital(lambda vital: vital.gpus),
    conventions.HEARTBEAT: _vital(lambda vital: vital.heartbeat_s),
    conventions.STOPPED: _vital(lambda vital: vital.stopped_s),
    conventions.ROWS_DROPPED: _rows(lambda vital: vital.dropped_rows),
    conventions.ROWS_WRITTEN: _rows(lambda vital: vital.written_rows),
}
