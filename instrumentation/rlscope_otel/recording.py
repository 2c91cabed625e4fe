"""The parts of one worker's recording and the order in which they start and stop."""

import time
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from types import TracebackType
from typing import Self

from opentelemetry.metrics import MeterProvider
from opentelemetry.sdk.trace import SpanProcessor

from rlscope_otel import buffers, exits, gpu, metrics, schema
from rlscope_otel.batches import convert_once
from rlscope_otel.buffers import RowBuffer
from rlscope_otel.clock import RunClock
from rlscope_otel.faults import Faults, or_none
from rlscope_otel.flush_thread import FlushThread
from rlscope_otel.phases import PhaseSource
from rlscope_otel.samples import SampleSink
from rlscope_otel.settings import Settings
from rlscope_otel.spans import RowSpanProcessor
from rlscope_otel.tallies import Tallies
from rlscope_otel.uploader import Uploader
from rlscope_otel.worker_file import Identity
from rlscope_otel.writer import Writer

_FLUSH_TIMEOUT_S = 10.0


class Recording:
    """Buffers, clock, spans, and, when there are settings, the thread that writes; without settings it is inert."""

    def __init__(self, settings: Settings | None, clock: RunClock, meter_provider: MeterProvider | None = None) -> None:
        self.active = settings is not None
        """Whether this records: False without a run folder, after `stop`, and in a forked child."""
        self.run_dir = settings.run_dir if settings else None
        """The run folder; None if inactive."""
        self.role = settings.identity.role if settings else None
        """The worker's role; None if inactive."""
        self.faults = Faults()
        """Errors in the hooks of this run, counted by kind."""
        self.now_ns = clock.now_ns
        self.clock = clock
        limit = buffers.MOST_ROWS if settings else 0
        self._buffers = {table: RowBuffer(limit, buffers.ROWS_PER_BATCH, self._press) for table in schema.TABLES}
        self._samples = SampleSink(self._buffers["samples"], clock.now_ns, self.faults, limit)
        self._processor = RowSpanProcessor(self._buffers, self.faults, self.flush)
        self._phases = PhaseSource(None, clock.now_ns, self.faults)
        self._writer: Writer | None = None
        self._thread: FlushThread | None = None
        self._uploader: Uploader | None = None
        self._gpu_sampler: gpu.GpuSampler | None = None
        self._stop_callbacks: list[Callable[[], None]] = []
        self._stopped_ns: int | None = None
        self._tallies = Tallies()
        if settings is None:
            self._close()
        else:
            self._open(settings, meter_provider)

    @property
    def run_id(self) -> str | None:
        """The id in run.json; None while the folder cannot be written, or if inactive."""
        return self._writer.run_id if self._writer else None

    @property
    def worker_id(self) -> str | None:
        """The worker's name, with a suffix if the requested one was taken; None if inactive."""
        return self._writer.worker_id if self._writer else None

    @property
    def span_processor(self) -> SpanProcessor:
        """Add it to a TracerProvider of yours to record that provider's spans too."""
        return self._processor

    def describe(self, **identity: object) -> None:
        """Set what was not known at the start, such as `kv_capacity_tokens` or `max_running`."""
        if self._writer is None:
            return
        known = {field.name for field in fields(Identity)} - {"role"}
        for name in identity.keys() - known:
            self.faults.note("describe", f"unknown field {name!r}; known: {sorted(known)}")
        changes = {name: value for name, value in identity.items() if name in known}
        self._writer.identity = replace(self._writer.identity, **changes)

    def add_config(self, config: Mapping[str, object]) -> None:
        """Add settings that were not known at the start; None is left out. run.json keeps those that it has.

        The next flush writes them.
        """
        if self._writer is not None:
            self.faults.attempt("config", self._writer.add_config, config)

    def flush(self, timeout_s: float = _FLUSH_TIMEOUT_S) -> bool:
        """Write everything and wait for it; False if it failed or took longer than `timeout_s`."""
        return self._thread.flush(timeout_s) if self._thread and self.active else True

    def stop(self, timeout_s: float = _FLUSH_TIMEOUT_S) -> bool:
        """Write everything, running samples as `unfinished`, and stop recording. Called at exit if not before.

        Returns whether it was done in time. A later call waits for the first.
        """
        while self.active and self._stop_callbacks:
            self.faults.attempt("stop", self._stop_callbacks.pop())
        try:
            return self._stop(timeout_s)
        finally:
            exits.unwatch(self)

    def before_stop(self, callback: Callable[[], None]) -> None:
        """Register a function to call when the run stops, while it still records."""
        self._stop_callbacks.append(callback)

    def abandon(self) -> None:
        """Stop recording without writing: in a forked child, the buffered rows belong to the parent."""
        self.active = False
        self._close()
        self._samples.running.clear()
        for buffer in self._buffers.values():
            buffer.abandon()
        if self._uploader is not None:
            self._uploader.abandon()
        # The totals go with the rest: the metrics of this process would show the parent's a second time.
        self._thread = self._writer = self._gpu_sampler = self._uploader = None
        self._tallies = Tallies()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _stop(self, timeout_s: float) -> bool:
        if self._thread is None:
            return True
        if self.active:
            self._end()
        until_s = time.monotonic() + timeout_s
        complete = self._thread.stop(timeout_s)
        if self._uploader is not None:
            self._uploader.finish(max(0.0, until_s - time.monotonic()))
        return complete

    def _end(self) -> None:
        """Take no more rows, with what is still running as the last of them."""
        self.active = False
        if self._gpu_sampler is not None:
            self._gpu_sampler.stop()
        self._stopped_ns = self.now_ns()
        self._samples.finish_running()
        self._close()

    def _open(self, settings: Settings, meter_provider: MeterProvider | None) -> None:
        # Before the worker's time begins: else the half second counts as time that no hook accounts for.
        convert_once()
        self._writer = Writer(settings, self._buffers, self.clock, self.faults, self._tallies, self._phases.open)
        if settings.upload_to is not None:
            self._uploader = Uploader(settings.run_dir, settings.upload_to, self.faults)
        self._phases.keep = self._processor.phase_ended
        if settings.identity.role == "auxiliary":
            # Its hook sees responses, but they are not samples of the policy.
            self._buffers["samples"].close()
        writer, write = self._writer, partial(self._write, self._writer)
        self._thread = FlushThread(write, settings.flush_interval_s, self.faults, writer.close_some, writer.close_all)
        try:
            self._thread.start()
        except RuntimeError as error:  # The host is at a limit of its own: the run continues, unrecorded.
            self.faults.note("start", f"nothing is recorded: {error}")
            self.abandon()
            return
        attributes = {metrics.WORKER_ID: writer.worker_id, metrics.ROLE: settings.identity.role}
        # The provider is the host's, and the trace does not need it.
        self.faults.attempt("metrics", metrics.show, self._tallies, attributes, meter_provider)
        if settings.gpu_interval_s is not None:
            self._sample_gpus(settings.identity, settings.gpu_interval_s)

    def _sample_gpus(self, identity: Identity, interval_s: float) -> None:
        try:
            nvml = gpu.load_nvml()
            gpus = gpu.find_gpus(nvml, identity.gpu_ids, identity.gpu_count)
            if not gpus:
                return
            device = or_none(lambda: nvml.nvmlDeviceGetName(gpus[0].handle))
            ids = identity.gpu_ids or tuple(each.gpu_id for each in gpus)
            self.describe(gpu_ids=ids, device_name=identity.device_name or device)
            sampler = gpu.GpuSampler(nvml, gpus, self._buffers["gpu_samples"], self.now_ns, interval_s)
            sampler.start()
        except Exception as error:  # NVMLError, which is known only once the library is.
            self.faults.note("gpu", f"GPUs are not sampled: {error}")
        else:
            self._gpu_sampler = sampler

    def _close(self) -> None:
        self._phases.keep = None
        for buffer in self._buffers.values():
            buffer.close()

    def _press(self) -> None:
        if self._thread is not None:
            self._thread.press()

    def _write(self, writer: Writer, last: bool) -> bool:
        complete = writer.flush(self._stopped_ns if last else None)
        if last and not complete:
            lost = writer.give_up()
            self.faults.note("stop", f"{lost} rows could not be written and were lost")
        # Only now is the name of the worker final, and in a file.
        if self._uploader is not None and writer.is_claimed:
            self._uploader.ensure_running(writer.worker_id, last=last)
        return complete
