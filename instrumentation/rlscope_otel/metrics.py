"""A low-rate mirror of the recording as OpenTelemetry metrics, for the host's own Prometheus or OTLP pipeline.

All instruments are observable: they read the totals when the host's reader collects, and cost nothing between. They
lag by at most one flush. A policy version is never an attribute: that would be a new series at every publication.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple
from weakref import WeakKeyDictionary

from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation, get_meter_provider

from rlscope_otel.spans import WAIT_REASON
from rlscope_otel.tallies import Tallies

Attributes = dict[str, str]

_SCOPE_NAME = "rlscope_otel"
_NS_PER_S = 1e9
_PREFIX = "rlscope."

# Keys of attributes. The id of the run is empty until run.json is written.
RUN_ID, WORKER_ID, ROLE = "rlscope.run.id", "rlscope.worker.id", "rlscope.role"
_QUEUE = ("rlscope.queue",)
_STALENESS = ("rlscope.staleness",)  # A bucket of token staleness: 0, 1, 2, 3-4, ...
# An activity, train, weight_update, forward_pass or between_passes; a wait has a reason.
_STATE = ("rlscope.state", WAIT_REASON.key)
_PHASE = ("rlscope.weights.phase",)
_OUTCOME = ("rlscope.outcome",)
_TABLE = ("rlscope.table",)


class Metric(NamedTuple):
    """One metric: name, UCUM unit, description and keys of its labels; it is a counter if `monotonic`, else a gauge."""

    name: str
    unit: str
    brief: str
    labels: tuple[str, ...] = ()
    monotonic: bool = False


class _Mirror:
    """The instruments on one meter, and the workers whose totals they show for as long as those are alive."""

    def __init__(self, meter: Meter) -> None:
        self._workers: WeakKeyDictionary[Tallies, Attributes] = WeakKeyDictionary()
        for metric in METRICS:
            create = meter.create_observable_counter if metric.monotonic else meter.create_observable_gauge
            create(metric.name, [self._callback(metric)], unit=metric.unit, description=metric.brief)

    def show(self, tallies: Tallies, attributes: Attributes) -> None:
        """Show one more worker, which the attributes identify."""
        self._workers[tallies] = attributes

    def _callback(self, metric: Metric) -> Callable[[CallbackOptions], Iterator[Observation]]:
        name = metric.name.removeprefix(_PREFIX)

        def observe(_: CallbackOptions) -> Iterator[Observation]:
            """Yield the values of all workers."""
            for tallies, attributes in list(self._workers.items()):
                # Both can change while the run folder cannot be written.
                run_id, worker_id = tallies.owner() or ("", attributes[WORKER_ID])
                worker = {**attributes, RUN_ID: run_id, WORKER_ID: worker_id}
                for labels, total in tallies.values(name).items():
                    value = total / _NS_PER_S if metric.unit == "s" else total
                    yield Observation(value, {**worker, **dict(zip(metric.labels, labels, strict=False))})

        return observe


_mirrors: "WeakKeyDictionary[MeterProvider, _Mirror]" = WeakKeyDictionary()
_global_mirror: list[_Mirror] = []


def show(tallies: Tallies, attributes: Attributes, meter_provider: MeterProvider | None = None) -> None:
    """Show a worker's totals on a provider; on the global one by default, even when the host sets that later."""
    if meter_provider is None or meter_provider is get_meter_provider():
        if not _global_mirror:
            _global_mirror.append(_Mirror(get_meter_provider().get_meter(_SCOPE_NAME)))
        mirror = _global_mirror[0]
    else:
        mirror = _mirrors.get(meter_provider)
        if mirror is None:
            mirror = _mirrors[meter_provider] = _Mirror(meter_provider.get_meter(_SCOPE_NAME))
    mirror.show(tallies, attributes)


def _gauge(name: str, unit: str, brief: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(_PREFIX + name, unit, brief, labels)


def _counter(name: str, unit: str, brief: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(_PREFIX + name, unit, brief, labels, monotonic=True)


METRICS = (
    _gauge("engine.running", "{request}", "requests in the engine's last batch"),
    _gauge("engine.waiting", "{request}", "requests waiting in the engine at its last pass"),
    _gauge("engine.kv.used", "{token}", "tokens in the KV cache, last value"),
    _gauge("engine.kv.capacity", "{token}", "capacity of the KV cache"),
    _counter("engine.decode", "{token}", "output tokens produced by the engine"),
    _gauge("queue.depth", "{sample}", "samples in the queue, last value", _QUEUE),
    _gauge("queue.capacity", "{sample}", "maximum number of samples in the queue", _QUEUE),
    _counter("deliveries", "{sample}", "samples that left the queue, by outcome", _OUTCOME),
    _counter("train.steps", "{step}", "optimizer steps of this worker"),
    _counter(
        "train.staleness",
        "{token}",
        "tokens trained, by staleness, from the importance moments of the train steps",
        _STALENESS,
    ),
    _counter("train.token_age", "{version}", "sum of the staleness of those tokens, to compute the mean"),
    _gauge("weights.latest", "{version}", "latest policy version", _PHASE),
    _counter("weights.updates", "{update}", "completed weight updates", _PHASE),
    _counter("weights.update.time", "s", "total duration of those updates", _PHASE),
    _counter("worker.time", "s", "seconds by state, counting the innermost", _STATE),
    _gauge("worker.gpus", "{gpu}", "GPUs owned by the worker"),
    _gauge("worker.heartbeat", "s", "last complete flush, UTC epoch seconds; absent once stopped"),
    _counter("rows.dropped", "{row}", "rows lost: the buffer was full, or writing failed", _TABLE),
    _counter("rows.written", "{row}", "rows written to disk", _TABLE),
)
