"""A low-rate mirror of the recording as OpenTelemetry metrics, for the host's own Prometheus or OTLP pipeline.

All instruments are observable: they read the totals when the host's reader collects, and cost nothing between. They
lag by at most one flush. A policy version is never an attribute: that would be a new series at every publication.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple
from weakref import WeakKeyDictionary

from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation, get_meter_provider

from rlscope_otel import conventions
from rlscope_otel.tallies import Report, Tallies
from rlscope_otel.worker_file import Progress

Attributes = dict[str, str]
_Readings = Iterable[tuple[float, Attributes]]
_Reader = Callable[[Tallies], _Readings]

_NS_PER_S = 1e9

# Keys of attributes. The id of the run is empty until run.json is written.
RUN_ID, WORKER_ID, ROLE = "rlscope.run.id", "rlscope.worker.id", "rlscope.role"
_QUEUE = "rlscope.queue"
_STALENESS = "rlscope.staleness"  # A bucket of token staleness: 0, 1, 2, 3-4, ...
_STATE = "rlscope.state"  # An activity, train, weight_update, forward_pass or between_passes.
_PHASE = "rlscope.weights.phase"
_OUTCOME = "rlscope.outcome"
_TABLE = "rlscope.table"


class Metric(NamedTuple):
    """One metric: name, UCUM unit, description, and how it is read; it is a counter if `monotonic`, else a gauge."""

    name: str
    unit: str
    brief: str
    read: _Reader
    monotonic: bool = False


class _Mirror:
    """The instruments on one meter, and the workers whose totals they show for as long as those are alive."""

    def __init__(self, meter: Meter) -> None:
        self._workers: WeakKeyDictionary[Tallies, Attributes] = WeakKeyDictionary()
        for metric in METRICS:
            create = meter.create_observable_counter if metric.monotonic else meter.create_observable_gauge
            create(metric.name, [self._callback(metric.read)], unit=metric.unit, description=metric.brief)

    def show(self, tallies: Tallies, attributes: Attributes) -> None:
        """Show one more worker, which the attributes identify."""
        self._workers[tallies] = attributes

    def _callback(self, read: _Reader) -> Callable[[CallbackOptions], Iterator[Observation]]:
        def observe(_: CallbackOptions) -> Iterator[Observation]:
            """Yield the values of all workers."""
            for tallies, attributes in list(self._workers.items()):
                worker = {**attributes, **_run_of(tallies)}
                for value, own in read(tallies):
                    yield Observation(value, {**worker, **own})

        return observe


_mirrors: "WeakKeyDictionary[MeterProvider, _Mirror]" = WeakKeyDictionary()
_global_mirror: list[_Mirror] = []


def show(tallies: Tallies, attributes: Attributes, meter_provider: MeterProvider | None = None) -> None:
    """Show a worker's totals on a provider; on the global one by default, even when the host sets that later."""
    if meter_provider is None or meter_provider is get_meter_provider():
        if not _global_mirror:
            _global_mirror.append(_Mirror(get_meter_provider().get_meter(conventions.SCOPE_NAME)))
        mirror = _global_mirror[0]
    else:
        mirror = _mirrors.get(meter_provider)
        if mirror is None:
            mirror = _mirrors[meter_provider] = _Mirror(meter_provider.get_meter(conventions.SCOPE_NAME))
    mirror.show(tallies, attributes)


def _run_of(tallies: Tallies) -> Attributes:
    """The run, and the worker's name there: both can change while the run folder cannot be written."""
    report = tallies.report()
    if report is None:
        return {RUN_ID: ""}
    return {RUN_ID: report.progress.run_id or "", WORKER_ID: report.worker_id}


def _seconds(tallies: Tallies) -> _Readings:
    for state, seconds in tallies.seconds().items():
        reason = {} if state.reason is None else {conventions.WAIT_REASON.key: state.reason}
        yield seconds, {_STATE: state.name, **reason}


def _level(name: str, label: str | None = None) -> _Reader:
    return lambda tallies: _labelled(tallies.levels(name), label)


def _count(name: str, label: str | None = None) -> _Reader:
    return lambda tallies: _labelled(tallies.counts(name), label)


def _labelled(values: Mapping[str, float], label: str | None) -> _Readings:
    return [(value, {} if label is None else {label: own}) for own, value in values.items()]


def _update_seconds(tallies: Tallies) -> _Readings:
    return [(spent_ns / _NS_PER_S, own) for spent_ns, own in _count("update_ns", _PHASE)(tallies)]


def _reported(read: Callable[[Report], float | None]) -> _Reader:
    def readings(tallies: Tallies) -> _Readings:
        """Read a value of the worker's last report."""
        report = tallies.report()
        value = None if report is None else read(report)
        return [] if value is None else [(value, {})]

    return readings


def _rows(read: Callable[[Progress], Mapping[str, int]]) -> _Reader:
    def readings(tallies: Tallies) -> _Readings:
        """Read a number of rows by table."""
        report = tallies.report()
        return [] if report is None else _labelled(read(report.progress), _TABLE)

    return readings


def _heartbeat_s(report: Report) -> float | None:
    return None if report.progress.stopped_ns is not None else report.progress.last_flush_ns / _NS_PER_S


def _gauge(name: str, unit: str, brief: str, read: _Reader) -> Metric:
    return Metric(f"rlscope.{name}", unit, brief, read)


def _counter(name: str, unit: str, brief: str, read: _Reader) -> Metric:
    return Metric(f"rlscope.{name}", unit, brief, read, monotonic=True)


METRICS = (
    _gauge("engine.running", "{request}", "requests in the engine's last batch", _level("running")),
    _gauge("engine.waiting", "{request}", "requests waiting in the engine at its last pass", _level("waiting")),
    _gauge("engine.kv.used", "{token}", "tokens in the KV cache, last value", _level("kv_used_tokens")),
    _gauge(
        "engine.kv.capacity",
        "{token}",
        "capacity of the KV cache",
        _reported(lambda report: report.identity.kv_capacity_tokens),
    ),
    _counter("engine.decode", "{token}", "output tokens produced by the engine", _count("decode_tokens")),
    _gauge("queue.depth", "{sample}", "samples in the queue, last value", _level("queue_depth", _QUEUE)),
    _gauge("queue.capacity", "{sample}", "maximum number of samples in the queue", _level("queue_capacity", _QUEUE)),
    _counter("deliveries", "{sample}", "samples that left the queue, by outcome", _count("deliveries", _OUTCOME)),
    _counter("train.steps", "{step}", "optimizer steps of this worker", _count("train_steps")),
    _counter(
        "train.staleness",
        "{token}",
        "tokens trained, by staleness, from the importance moments of the train steps",
        _count("staleness", _STALENESS),
    ),
    _counter(
        "train.token_age",
        "{version}",
        "sum of the staleness of those tokens, to compute the mean",
        _count("token_age"),
    ),
    _gauge("weights.latest", "{version}", "latest policy version", _level("version", _PHASE)),
    _counter("weights.updates", "{update}", "completed weight updates", _count("updates", _PHASE)),
    _counter("weights.update.time", "s", "total duration of those updates", _update_seconds),
    _counter("worker.time", "s", "seconds by state, counting the innermost", _seconds),
    _gauge("worker.gpus", "{gpu}", "GPUs owned by the worker", _reported(lambda report: report.identity.gpu_count)),
    _gauge(
        "worker.heartbeat",
        "s",
        "last complete flush, UTC epoch seconds; absent once stopped",
        _reported(_heartbeat_s),
    ),
    _counter(
        "rows.dropped",
        "{row}",
        "rows lost: the buffer was full, or writing failed",
        _rows(lambda progress: progress.dropped),
    ),
    _counter("rows.written", "{row}", "rows written to disk", _rows(lambda progress: progress.rows)),
)
