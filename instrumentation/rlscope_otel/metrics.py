"""A low-rate mirror of the recording as OpenTelemetry metrics, for the host's own Prometheus or OTLP pipeline.

All instruments are observable: they read the totals when the host's reader collects, and cost nothing between. They
lag by at most one flush. A policy version is never an attribute: that would be a new series at every publication.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple
from weakref import WeakKeyDictionary

from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation, get_meter_provider

from rlscope_otel import conventions
from rlscope_otel.tallies import Tallies

Attributes = dict[str, str]
_Readings = Iterable[tuple[float, Attributes]]


class Mirrored(NamedTuple):
    """The totals of one worker, and the attributes that tell it from others."""

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

    def _callback(self, read: Callable[[Tallies], _Readings]) -> Callable[[CallbackOptions], Iterator[Observation]]:
        def observe(_: CallbackOptions) -> Iterator[Observation]:
            for tallies, worker in list(self._workers.items()):
                for value, attributes in read(tallies):
                    yield Observation(value, {**worker, **attributes})

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


def _running(tallies: Tallies) -> _Readings:
    running = tallies.running()
    return [] if running is None else [(running, {})]


def _queue_depths(tallies: Tallies) -> _Readings:
    return [(depth, {conventions.QUEUE.key: queue}) for queue, depth in tallies.queue_depths().items()]


def _staleness(tallies: Tallies) -> _Readings:
    return [(tokens, {conventions.STALENESS.key: bucket}) for bucket, tokens in tallies.staleness_tokens().items()]


def _seconds(tallies: Tallies) -> _Readings:
    for state, seconds in tallies.seconds().items():
        reason = {} if state.reason is None else {conventions.WAIT_REASON.key: state.reason}
        yield seconds, {conventions.STATE.key: state.name, **reason}


_READERS: dict[conventions.Metric, Callable[[Tallies], _Readings]] = {
    conventions.RUNNING_REQUESTS: _running,
    conventions.QUEUE_DEPTH: _queue_depths,
    conventions.TRAINED_TOKENS: _staleness,
    conventions.WORKER_TIME: _seconds,
}
