"""What capture costs: per call, on disk, and under pressure. Prints a table; the last one is in
`capture_cost.txt`.

Every figure per call is the median of several rounds, and rounds of all calls are interleaved, so that a busy machine
slows all of them alike. Beside the time that passed stands the CPU time of the calling thread, which other processes
do not disturb; the ratio is of CPU times, to a plain span of the OpenTelemetry SDK through a BatchSpanProcessor.

    python benchmarks/capture_cost.py
"""

import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import rlscope_otel
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Tracer
from rlscope_otel import Run
from rlscope_otel.merged_file import MergedFile
from rlscope_otel.schema import STAMP_KEYS, FileNumbers
from rlscope_otel.settings import MERGE_INTERVALS_S
from rlscope_otel.stored_files import StoredFile

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
    files = list((folder / "engine_steps").glob("*.parquet"))
    written = sum(pq.read_metadata(file).num_rows for file in files)
    rows = PRESSURE_S * 1000 * burst
    return Pressure(rows, seconds, written, rows - written, len(files), cpu / seconds)


def bytes_of(folder: Path, table: str) -> int:
    return sum(file.stat().st_size for file in (folder / table).glob("*.parquet"))


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


def write_flushes(folder: Path, minutes: float) -> None:
    """An engine at a steady pass rate, flushed as often as in a run: small files, each with its own footer."""
    pass_ns = 1_000_000_000 // PASSES_PER_S
    with rlscope_otel.start_run(folder, "sampler", "w0", flush_interval_s=HOUR_S, merge_intervals_s=()) as run:
        now_ns = run.now_ns()
        for number in range(round(minutes * 60 * PASSES_PER_S)):
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
            if number % (PASSES_PER_S * FLUSH_INTERVAL_S) == PASSES_PER_S * FLUSH_INTERVAL_S - 1:
                run.flush()


class Merging(NamedTuple):
    """What it costs to merge the files of one level, of one table."""

    parts: int
    rows: int
    bytes_before: int
    bytes_after: int
    cpu_s: float
    longest_slice_s: float
    """Of the time that passed: what a flush may have to wait."""
    synced_s: float
    """Of the time that passed, waiting for the disk."""


def merge(folder: Path, parts: list[StoredFile]) -> tuple[StoredFile, Merging]:
    """Merge files as the flush thread does, without its pauses."""
    stamp = dict(zip(STAMP_KEYS, ("run", "engine_steps", "w0", parts[-1].last), strict=True))
    job = MergedFile(folder, {**stamp}, ("engine_steps", "w0"), parts)
    sync, synced_s, slices_s = os.fsync, [0.0], []

    def timed(descriptor: int) -> None:
        started_s = time.perf_counter()
        sync(descriptor)
        synced_s[0] += time.perf_counter() - started_s

    os.fsync = timed
    cpu_s = time.process_time()
    while not job.is_complete:
        started_s = time.perf_counter()
        job.step()
        slices_s.append(time.perf_counter() - started_s)
    cpu_s = time.process_time() - cpu_s
    os.fsync = sync
    os.replace(job.temporary, job.path)
    whole = StoredFile.of(parts, job.bytes, 0.0)
    before = sum(part.bytes for part in parts)
    return whole, Merging(len(parts), whole.rows, before, whole.bytes, cpu_s, max(slices_s), synced_s[0])


def repeated(folder: Path, file: StoredFile, count: int) -> list[StoredFile]:
    """The same file as if it had been written so many times, one after the other."""
    source = folder / FileNumbers("w0", file.first, file.last).name
    length, copies = file.last - file.first + 1, list[StoredFile]()
    for number in range(count):
        copy = file._replace(first=file.first + number * length, last=file.last + number * length)
        path = folder / FileNumbers("w0", copy.first, copy.last).name
        if path != source:
            os.link(source, path)
        copies.append(copy)
    return copies


def merge_costs(folder: Path) -> list[Merging]:
    """All levels of the merging of one engine's steps over a day."""
    write_flushes(folder, MERGE_INTERVALS_S[0] / 60)
    folder /= "engine_steps"
    rows = PASSES_PER_S * FLUSH_INTERVAL_S
    sizes = [path.stat().st_size for path in sorted(folder.iterdir())]
    parts = [StoredFile.flushed(number, rows, size, 0, 0.0) for number, size in enumerate(sizes, start=1)]
    found: list[Merging] = []
    for level, interval_s in enumerate(MERGE_INTERVALS_S):
        whole, merging = merge(folder, parts)
        found.append(merging)
        if level + 1 < len(MERGE_INTERVALS_S):
            parts = repeated(folder, whole, round(MERGE_INTERVALS_S[level + 1] / interval_s))
    return found


def print_merging(mergings: list[Merging], peak_before_kb: int) -> None:
    print("\nmerging the engine steps of one worker, at 50 rows/s")
    print(f"{'after':<10}{'files':>6}{'rows':>12}{'bytes before':>14}{'after':>12}{'s of CPU':>10}", end="")
    print(f"{'longest slice, ms':>19}{'in fsync, ms':>14}")
    for interval_s, each in zip(MERGE_INTERVALS_S, mergings, strict=True):
        print(f"{interval_s / 60:>6,.0f} min{each.parts:>6}{each.rows:>12,}{each.bytes_before:>14,}", end="")
        print(
            f"{each.bytes_after:>12,}{each.cpu_s:>10.3f}{each.longest_slice_s * 1e3:>19.1f}{each.synced_s * 1e3:>14.1f}"
        )
    day_s = MERGE_INTERVALS_S[-1]
    cpu_s = sum(day_s / interval_s * each.cpu_s for interval_s, each in zip(MERGE_INTERVALS_S, mergings, strict=True))
    written = sum(day_s / after_s * each.bytes_after for after_s, each in zip(MERGE_INTERVALS_S, mergings, strict=True))
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_before_kb
    print(f"     {cpu_s / day_s:.4%} of one core, {written / 1e6:.0f} MB a day written again, ", end="")
    print(f"{peak_kb / 1024:.0f} MB more memory at most")


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
        minutes = 2
        write_flushes(folder / "hour", minutes)
        hour_bytes = bytes_of(folder / "hour", "engine_steps") * 60 / minutes
        print(f"{hour_bytes / 1e6:.1f} MB of engine steps per GPU-hour, at {PASSES_PER_S} passes/s, a row each,")
        print(f"     written every {FLUSH_INTERVAL_S} s ({HOUR_S // FLUSH_INTERVAL_S:,} files)")
        peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print_merging(merge_costs(folder / "merging"), peak_kb)
        pressure = under_pressure(folder / "pressure")
    print(f"\n{pressure.rows:,} rows in {pressure.seconds:.1f} s ({pressure.rows / pressure.seconds:,.0f} rows/s):")
    print(f"     {pressure.written:,} written in {pressure.files} files, {pressure.dropped} dropped,")
    print(f"     the flush thread used {pressure.flush_cpu_ratio:.1%} of one core")


if __name__ == "__main__":
    main()
