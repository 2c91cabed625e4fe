"""What capture costs: per call, on disk, and under pressure. Prints a table; the last one is in
`capture_cost.txt`.

Every figure per call is the median of several rounds, and rounds of all calls are interleaved, so that a busy machine
slows all of them alike. Beside the time that passed stands the CPU time of the calling thread, which other processes
do not disturb; the ratio is of CPU times, to a plain span of the OpenTelemetry SDK through a BatchSpanProcessor.

    python benchmarks/capture_cost.py
"""

import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import rlscope_otel
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Tracer
from rlscope_otel import Run
from rlscope_otel.closing import Closing
from rlscope_otel.writer import Writer

ROUNDS = 15
CALLS = 2_000
PRESSURE_ROWS_PER_S = 50_000
PRESSURE_S = 10
PASSES_PER_S = 50
FLUSH_INTERVAL_S = 2
HOUR_S = 3600
TOKENS_PER_VERSION = 128


class DiscardingExporter(SpanExporter):
    """The cheapest exporter there is: the span's own price remains."""

    def export(self, spans: object) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def plain_spans(tracer: Tracer, calls: int) -> None:
    for number in range(calls):
        with tracer.start_as_current_span("wait", attributes={"reason": "samples", "number": number}):
            pass


def engine_steps(run: Run, calls: int) -> None:
    for number in range(calls):
        run.engine_step(
            number, number + 20, busy_ns=18, running=64, waiting=3, decode_tokens=64, kv_used_tokens=100_000
        )


def samples(run: Run, calls: int) -> None:
    for number in range(calls):
        sample = run.sample(f"sample-{number}", f"group-{number // 8}", prompt_tokens=200, submitted_ns=number)
        sample.started(number)
        for version in range(4):
            sample.tokens(TOKENS_PER_VERSION, version)
        sample.finish("stop")


def sample_tokens(run: Run, calls: int) -> None:
    sample = run.sample("sample")
    for _ in range(calls):
        sample.tokens(1, 3)
    sample.finish()


def waits(run: Run, calls: int) -> None:
    for _ in range(calls):
        with run.wait("samples"):
            pass


def deliveries(run: Run, calls: int) -> None:
    for number in range(calls):
        run.delivery("sample", "trained", queued_ns=number, step=number, consumer_version=3, reward=1.0)


class Cost(NamedTuple):
    """What one call costs the thread that makes it."""

    passed_ns: float
    cpu_ns: float


def cost_per_call(measured: dict[str, Callable[[int], None]]) -> dict[str, Cost]:
    """The median over interleaved rounds, by name."""
    rounds: dict[str, list[Cost]] = {name: [] for name in measured}
    for _ in range(ROUNDS):
        for name, call in measured.items():
            started_ns, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
            call(CALLS)
            used_ns, passed_ns = time.thread_time_ns() - cpu_ns, time.perf_counter_ns() - started_ns
            rounds[name].append(Cost(passed_ns / CALLS, used_ns / CALLS))
    return {name: Cost(*map(statistics.median, zip(*costs, strict=True))) for name, costs in rounds.items()}


def call_costs(folder: Path) -> dict[str, Cost]:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(DiscardingExporter()))
    inert = rlscope_otel.start_run()
    with rlscope_otel.start_run(folder, "sampler", "w0") as run:
        costs = cost_per_call(
            {
                "plain SDK span, BatchSpanProcessor": lambda calls: plain_spans(provider.get_tracer("plain"), calls),
                "engine step": lambda calls: engine_steps(run, calls),
                "sample with 4 versions": lambda calls: samples(run, calls),
                "tokens of one version": lambda calls: sample_tokens(run, calls),
                "wait": lambda calls: waits(run, calls),
                "delivery": lambda calls: deliveries(run, calls),
                "engine step, inert run": lambda calls: engine_steps(inert, calls),
                "wait, inert run": lambda calls: waits(inert, calls),
            }
        )
    provider.shutdown()
    return costs


class Pressure(NamedTuple):
    """What became of rows that came at a steady rate."""

    rows: int
    seconds: float
    written: int
    dropped: int
    files: int
    flush_cpu_ratio: float
    """Of one core, what the flush thread used for writing and closing."""


def under_pressure(folder: Path) -> Pressure:
    """Engine steps at a steady rate, in bursts of a millisecond's worth, while the run writes as it always does."""
    burst = PRESSURE_ROWS_PER_S // 1000
    with rlscope_otel.start_run(folder, "sampler", "w0") as run:
        started_s, cpu_s = time.perf_counter(), time.process_time()
        host_cpu_s = time.thread_time()
        for number in range(PRESSURE_S * 1000):
            engine_steps(run, burst)
            time.sleep(max(0.0, started_s + (number + 1) / 1000 - time.perf_counter()))
        seconds = time.perf_counter() - started_s
        cpu = (time.process_time() - cpu_s) - (time.thread_time() - host_cpu_s)
    written = json.loads((folder / "workers" / "w0.json").read_text())["rows"]["engine_steps"]
    files = list((folder / "engine_steps").iterdir())
    rows = PRESSURE_S * 1000 * burst
    return Pressure(rows, seconds, written, rows - written, len(files), cpu / seconds)


def bytes_of(folder: Path, table: str) -> int:
    return sum(file.stat().st_size for file in (folder / table).iterdir())


def bytes_per_sample(folder: Path, count: int = 20_000) -> float:
    """Samples of 4 versions with jittered lengths and times, as an engine finishes them, in one file."""
    with rlscope_otel.start_run(folder, "sampler", "w0", flush_interval_s=HOUR_S) as run:
        for number in range(count):
            sample = run.sample(f"step-{number // 512}/{number % 512}", f"group-{number // 8}", prompt_tokens=200)
            sample.started()
            for version in range(4):
                sample.tokens(TOKENS_PER_VERSION + hash((number, version)) % 97, number // 512 + version)
            sample.finish("stop")
    return bytes_of(folder, "samples") / count


class Recorded(NamedTuple):
    """What flushes cost, and the closing of the journal that they made."""

    rows: int
    flush_cpu_s: float
    """CPU time of a flush, in the median: rows to a batch, totals, journal and worker file."""
    journal_bytes: int
    closed_bytes: int
    closing_cpu_s: float
    longest_slice_s: float
    """Of the time that passed: what a flush may have to wait."""
    synced_s: float
    """Of the time that passed, waiting for the disk."""


def recorded(folder: Path, flushes: int, rows_per_flush: int) -> Recorded:
    """An engine at a steady pass rate, flushed at intervals, and closed without the pauses of the flush thread."""
    pass_ns = 1_000_000_000 // PASSES_PER_S
    flush_cpu_s, slices_s, closing_cpu_s, synced_s = list[float](), list[float](), list[float](), list[float]()
    with (
        timed(Writer, "flush", [], flush_cpu_s),
        timed(Closing, "step", slices_s, closing_cpu_s),
        timed(os, "fsync", synced_s, []),
        rlscope_otel.start_run(folder, "sampler", "w0", flush_interval_s=HOUR_S) as run,
    ):
        now_ns = run.now_ns()
        for number in range(flushes * rows_per_flush):
            jitter_ns = hash((number, 7)) % 3_000_000
            run.engine_step(
                now_ns,
                now_ns + pass_ns,
                busy_ns=pass_ns - 1_000_000 - jitter_ns,
                running=64 - number % 5,
                waiting=number % 3,
                decode_tokens=64 - number % 5,
                kv_used_tokens=100_000 + 61 * (number % 1000),
            )
            now_ns += pass_ns
            if number % rows_per_flush == rows_per_flush - 1:
                run.flush()
        journal_bytes = bytes_of(folder, "engine_steps")
    return Recorded(
        rows=flushes * rows_per_flush,
        flush_cpu_s=statistics.median(flush_cpu_s),
        journal_bytes=journal_bytes,
        closed_bytes=bytes_of(folder, "engine_steps"),
        closing_cpu_s=sum(closing_cpu_s),
        longest_slice_s=max(slices_s),
        synced_s=sum(synced_s),
    )


@contextmanager
def timed(owner: object, name: str, passed_s: list[float], cpu_s: list[float]) -> Iterator[None]:
    """Append to the lists what each call of a function takes."""
    function = getattr(owner, name)

    def call(*arguments: object) -> object:
        started_s, own_s = time.perf_counter(), time.thread_time()
        try:
            return function(*arguments)
        finally:
            passed_s.append(time.perf_counter() - started_s)
            cpu_s.append(time.thread_time() - own_s)

    setattr(owner, name, call)
    try:
        yield
    finally:
        setattr(owner, name, function)


def print_costs(costs: dict[str, Cost]) -> None:
    span = costs["plain SDK span, BatchSpanProcessor"]
    print(f"{'call':<36}{'ns passed':>12}{'ns of CPU':>12}{'of a plain span':>18}")
    for name, cost in costs.items():
        print(f"{name:<36}{cost.passed_ns:>12,.0f}{cost.cpu_ns:>12,.0f}{cost.cpu_ns / span.cpu_ns:>18.3f}")


def main() -> None:
    print(f"command: python {' '.join(sys.argv)}")
    print(f"machine: {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"rounds:  {ROUNDS} of {CALLS:,} calls, interleaved; median\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print_costs(call_costs(folder / "calls"))
        print(f"\n{bytes_per_sample(folder / 'samples'):.1f} bytes on disk per sample with 4 versions")
        hour = recorded(folder / "hour", HOUR_S // FLUSH_INTERVAL_S, PASSES_PER_S * FLUSH_INTERVAL_S)
        print(f"{hour.closed_bytes / 1e6:.1f} MB of engine steps per GPU-hour, at {PASSES_PER_S} passes/s, a row each,")
        megabytes, closing_ms = hour.journal_bytes / 1e6, hour.closing_cpu_s * 1e3
        print(f"     from a journal of {megabytes:.1f} MB, which is closed in {closing_ms:.0f} ms of CPU;")
        slice_ms, synced_ms = hour.longest_slice_s * 1e3, hour.synced_s * 1e3
        print(f"     the longest slice takes {slice_ms:.0f} ms, waiting for the disk {synced_ms:.0f} ms")
        for rows in (100, 500):
            flush = recorded(folder / f"flushes of {rows}", 300, rows)
            print(f"{flush.flush_cpu_s * 1e6:,.0f} us of CPU for a flush of {rows} rows")
        pressure = under_pressure(folder / "pressure")
    print(f"\n{pressure.rows:,} rows in {pressure.seconds:.1f} s ({pressure.rows / pressure.seconds:,.0f} rows/s):")
    print(f"     {pressure.written:,} written in {pressure.files} files, {pressure.dropped} dropped,")
    print(f"     the flush thread used {pressure.flush_cpu_ratio:.1%} of one core")


if __name__ == "__main__":
    main()
