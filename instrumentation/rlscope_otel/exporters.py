"""OpenTelemetry exporter: `OTEL_TRACES_EXPORTER=rlscope_parquet` writes the same rows as the span processor.

Only spans have an exporter: the format has no table for the host's metrics or logs. It records into the run that this
process started in RLSCOPE_RUN_DIR, or starts one from the environment, with RLSCOPE_GPU_COUNT GPUs (default 0, since it
cannot know).
"""

import os
from collections.abc import Sequence

from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from rlscope_otel import exits, settings
from rlscope_otel.faults import Faults
from rlscope_otel.recorder import Run
from rlscope_otel.start import start_run


class ParquetSpanExporter(SpanExporter):
    """Puts finished spans into the trace; does nothing while RLSCOPE_RUN_DIR is unset."""

    def __init__(self) -> None:
        self._own_run: Run | None = None
        self._faults = Faults()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Keep each span's row; failure when no run can be started from the environment."""
        try:
            run = self._run()
        except Exception as error:  # The host's export thread must not meet our set-up errors.
            self._faults.note("exporter", error)
            return SpanExportResult.FAILURE
        if run is not None:
            for span in spans:
                run.span_processor.on_end(span)
        return SpanExportResult.SUCCESS

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Write what is held."""
        run = self._present_run()
        return run.flush(timeout_millis / 1000) if run is not None else True

    def shutdown(self) -> None:
        """Stop the run if it was started here; the host's own run is the host's to stop."""
        if self._own_run is not None:
            self._own_run.stop()

    def _run(self) -> Run | None:
        """The run to record into, started on the first span; None while the environment names no folder."""
        found = self._present_run()
        if found is None and settings.run_dir_of(None) is not None:
            gpu_count = None if os.environ.get(settings.GPU_COUNT_VARIABLE) else 0
            found = self._own_run = start_run(gpu_count=gpu_count, meter_provider=NoOpMeterProvider())
        return found

    def _present_run(self) -> Run | None:
        run_dir = settings.run_dir_of(None)
        return next((run for run in exits.live_runs() if run.run_dir == run_dir), None)
