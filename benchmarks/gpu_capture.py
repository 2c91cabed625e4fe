"""What capture says of a real GPU, against a load whose duty cycle is known, and what it costs a decode loop there.

Readings: a process keeps the GPU busy for a known share of each cycle, with matrix products that fill it, while
`rlscope_otel` reads NVML and, from Hopper on, GPM. The recorded means stand beside the share that was really busy by
the GPU's own clock (CUDA events). NVML's share of time with a kernel is what it should equal; GPM's share of busy SMs
cannot be above it.

Cost: a decoder of 0.5 billion weights repeats one decode step as a CUDA graph and waits for its tokens, as engines do,
with and without `run.engine_step` and with and without the GPU readings beside it, in rounds that take turns; the
median of the paired differences is the cost.

    python benchmarks/gpu_capture.py [--figures PATH]

Needs torch, an NVIDIA GPU and `rlscope-otel[gpu]`. Writes `benchmarks/gpu_capture.txt`.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Final

import pyarrow.parquet as pq
import rlscope_otel
import torch
from gpu_decode import SHAPES, Decoder, captured, step_of

FIGURES: Final = Path(__file__).with_suffix(".txt")
SHARES: Final = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
INTERVALS_S: Final = (0.2, 1.0)
CYCLE_S: Final = 0.1
LOAD_S: Final = 9.0
SIDE: Final = 8192
BATCHES: Final = (1, 32, 256)
CONTEXT: Final = 512
ROUNDS: Final = 15
STEPS_PER_ROUND: Final = 200


@dataclass(frozen=True, slots=True)
class Reading:
    """What was recorded of one load, as means over its readings."""

    interval_s: float
    asked_ratio: float
    truly_busy_ratio: float
    readings: int
    busy_ratio: float | None
    sm_active_ratio: float | None
    source: str


def reading(asked_ratio: float, interval_s: float) -> Reading:
    """Load the GPU for a share of each cycle, and read it meanwhile."""
    left = torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16)
    product_s = seconds_of(lambda: torch.mm(left, left))
    with tempfile.TemporaryDirectory() as folder:
        run = rlscope_otel.start_run(folder, role="colocated", worker_id="load", gpu_interval_s=interval_s)
        busy_s, took_s = load(left, asked_ratio, max(1, round(asked_ratio * CYCLE_S / product_s)))
        if not run.stop():
            raise RuntimeError("the recording did not end: its readings are incomplete")
        rows = rows_of(folder)
    return Reading(
        interval_s, asked_ratio, busy_s / took_s, len(rows),
        mean_of(rows, "busy_ratio"), mean_of(rows, "sm_active_ratio"),
        "+".join(sorted({str(row["source"]) for row in rows})),
    )  # fmt: skip


def load(left: torch.Tensor, asked_ratio: float, products: int) -> tuple[float, float]:
    """(seconds that the GPU was busy by its own clock, seconds that it all took)."""
    busy_s, begun_s = 0.0, time.perf_counter()
    while (now_s := time.perf_counter()) < begun_s + LOAD_S:
        if asked_ratio > 0:
            busy_s += seconds_of(lambda: [torch.mm(left, left) for _ in range(products)])
        if asked_ratio < 1:
            time.sleep(max(0.0, now_s + CYCLE_S - time.perf_counter()))
    return busy_s, time.perf_counter() - begun_s


def seconds_of(work: Callable[[], object]) -> float:
    """By CUDA events, waited for."""
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    work()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / 1e3


def rows_of(folder: str) -> list[dict[str, object]]:
    """The readings of a run, without the first: it reaches back before the load."""
    files = sorted(Path(folder).glob("gpu_samples/*.parquet"))
    rows = [row for path in files for row in pq.read_table(path).to_pylist()]
    return sorted(rows, key=lambda row: row["time_ns"])[1:]


def mean_of(rows: list[dict[str, object]], column: str) -> float | None:
    known = [value for row in rows if isinstance(value := row[column], (int, float))]
    return mean(known) if known else None


def shown(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


@dataclass(frozen=True, slots=True)
class Cost:
    """A decode step without and with capture, microseconds."""

    batch: int
    what: str
    bare_us: float
    added_us: float


@torch.inference_mode()
def costs() -> list[Cost]:
    """The step of each batch size without hooks, with the hook, and with the hook and readings ten times a second."""
    shape = SHAPES["Qwen2.5-0.5B"]
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        decoder = Decoder(shape).eval()
        torch.set_default_dtype(torch.float32)
    found = []
    for batch in BATCHES:
        step = captured(step_of(decoder, shape, batch, CONTEXT))
        round_us(step, None)
        for what, interval_s in (("engine_step", None), ("engine_step, GPU read every 0.1 s", 0.1)):
            found.append(cost(step, batch, what, interval_s))
    return found


def cost(step: Callable[[], None], batch: int, what: str, interval_s: float | None) -> Cost:
    with tempfile.TemporaryDirectory() as folder:
        bare, added = [], []
        for number in range(ROUNDS):
            without_us = round_us(step, None)
            with recording(Path(folder) / str(number), interval_s) as run:
                bare.append(without_us)
                added.append(round_us(step, run, batch) - without_us)
    return Cost(batch, what, median(bare), median(added))


def recording(folder: Path, interval_s: float | None) -> "AbstractContextManager[rlscope_otel.Run]":
    """A run that records into a folder; it is stopped after the block, outside of what is timed."""
    return rlscope_otel.start_run(folder, role="sampler", worker_id="engine", gpu_interval_s=interval_s)


def round_us(step: Callable[[], None], run: "rlscope_otel.Run | None", batch: int = 0) -> float:
    """Mean of a round, each step waited for."""
    begun_s = time.perf_counter()
    for _ in range(STEPS_PER_ROUND):
        start_ns = run.now_ns() if run else 0
        step()
        torch.cuda.synchronize()
        if run:
            run.engine_step(start_ns, run.now_ns(), running=batch, decode_tokens=batch, kv_used_tokens=batch * CONTEXT)
    return (time.perf_counter() - begun_s) / STEPS_PER_ROUND * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figures", type=Path, default=FIGURES)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no CUDA device here")
    lines = [
        "command: python benchmarks/gpu_capture.py",
        f"device:  {torch.cuda.get_device_name()}, torch {torch.__version__}",
        "",
        f"Readings of {SIDE} x {SIDE} bf16 products, busy for a share of each {CYCLE_S:g} s, {LOAD_S:g} s a line",
        "every    asked  truly busy  recorded busy  SMs active  readings  source",
    ]
    for interval_s in INTERVALS_S:
        for each in (reading(asked_ratio, interval_s) for asked_ratio in SHARES):
            lines.append(
                f"{each.interval_s:4.1f} s {each.asked_ratio:7.0%} {each.truly_busy_ratio:11.1%}"
                f" {shown(each.busy_ratio, '14.1%')} {shown(each.sm_active_ratio, '11.1%')}"
                f" {each.readings:9d}  {each.source}"
            )
    lines += [
        "",
        f"Cost beside a decode step of Qwen2.5-0.5B ({CONTEXT} tokens of context, CUDA graph, waited for),"
        f" median of {ROUNDS} pairs of {STEPS_PER_ROUND} steps",
        "batch  step        added by capture",
    ]
    for each in costs():
        lines.append(
            f"{each.batch:5d}  {each.bare_us:7.0f} us  {each.added_us:+7.2f} us"
            f" {each.added_us / each.bare_us:+8.2%}  {each.what}"
        )
    text = "\n".join(lines) + "\n"
    given.figures.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
