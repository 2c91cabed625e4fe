"""The processor that turns spans of a host's own OpenTelemetry provider into rows, and phases of the API too.

A phase becomes the row that a span under its name would, but no span is made: that would cost ten times as much, and
the providers are the host's.
"""

from collections.abc import Callable, Mapping

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from rlscope_otel.buffers import RowBuffer
from rlscope_otel.faults import Faults
from rlscope_otel.span_rows import SpanRow, row_of, row_of_phase


class RowSpanProcessor(SpanProcessor):
    """Turns every span that ends into a row of the trace, on the thread that ends it and without I/O."""

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
            self._keep(row_of_phase(name, start_ns, end_ns, attributes))
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
