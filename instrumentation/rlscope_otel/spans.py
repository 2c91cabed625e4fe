"""Coarse phases as OpenTelemetry spans: a provider of our own, and the processor that turns spans into rows.

The provider is private: the global one belongs to the host, and engines set it themselves. A host that wants its
other spans in the trace adds the processor to its own provider.
"""

from collections.abc import Callable, Mapping

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import NoOpTracer, Span, Tracer

from rlscope_otel import conventions
from rlscope_otel.buffers import RowBuffer
from rlscope_otel.faults import Faults
from rlscope_otel.span_rows import row_of

_ROOT = Context()


class RowSpanProcessor(SpanProcessor):
    """Turns every span that ends into a row of the trace, on the thread that ends it and without I/O."""

    def __init__(self, buffers: Mapping[str, RowBuffer], faults: Faults, flush: Callable[[float], bool]) -> None:
        self._buffers = buffers
        self._faults = faults
        self._flush = flush

    def on_end(self, span: ReadableSpan) -> None:
        """Keep the span's row; whatever goes wrong costs this row only."""
        try:
            found = row_of(span)
            self._buffers[found.table].add(found.row)
            if found.problem:
                self._faults.note("spans", found.problem)
        except Exception as error:  # The host ended the span: nothing of ours may reach it.
            self._buffers["spans"].drop()
            self._faults.note("spans", error)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Write what is held."""
        return self._flush(timeout_millis / 1000)


def private_tracer(processor: SpanProcessor, faults: Faults) -> Tracer:
    """A tracer whose spans all reach the processor and nothing else."""
    # Limits and a sampler of our own, so that the host's OTEL_* settings cannot cut or drop our spans.
    limits = SpanLimits(
        max_attributes=128,
        max_span_attributes=128,
        max_attribute_length=SpanLimits.UNSET,
        max_span_attribute_length=SpanLimits.UNSET,
        max_events=0,
        max_links=0,
    )
    provider = TracerProvider(
        sampler=ALWAYS_ON, resource=Resource.get_empty(), shutdown_on_exit=False, span_limits=limits
    )
    provider.add_span_processor(processor)
    tracer = provider.get_tracer(conventions.SCOPE_NAME)
    if isinstance(tracer, NoOpTracer):
        faults.note("spans", "OTEL_SDK_DISABLED is set: train steps, waits and weight updates are not recorded")
    return tracer


def start_root_span(tracer: Tracer, name: str, start_ns: int, attributes: Mapping[str, object]) -> Span:
    """A span that never becomes the current one, and does not spend time to look up the host's current one."""
    return tracer.start_span(name, _ROOT, attributes=attributes, start_time=start_ns)  # pyright: ignore[reportArgumentType]
