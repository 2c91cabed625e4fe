"""What the hook costs a real vLLM engine: the same decode steps with and without it, in turns, in one process.

One in-process engine on the CPU build generates at a constant batch. Blocks of steps alternate between hooked and
unhooked, whose order changes from pair to pair, so that whatever else the machine does hits both. A block ends all of
its requests and starts as many, so the price of samples is in it. Compared is the processor time of the process;
wall-clock time is shown beside it. On a busy machine the pairs spread wider than the hook costs, so the hook is also
timed alone, where it runs, with the writing of what it kept. What the timers cost there, where the caches hold other
things than in a loop of nothing, is measured without the hook and taken off.

    python benchmarks/vllm_overhead.py [--pairs 60] [--batch 32] [--tokens 60]

Needs vLLM's CPU build (`make pipelines-vllm` installs it). Writes its figures to `benchmarks/vllm_overhead.txt`.
"""

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, NamedTuple

REPOSITORY = Path(__file__).parents[1]
FIGURES = Path(__file__).with_suffix(".txt")
sys.path.insert(0, str(REPOSITORY))

import rlscope_otel  # noqa: E402
from rlscope_otel import Run  # noqa: E402
from rlscope_otel.integrations.vllm import instrument  # noqa: E402

from examples.pipeline_rl.task import prompt_of  # noqa: E402
from examples.vllm_cpu.environment import prepare  # noqa: E402
from examples.vllm_torch.options import Options, parse_options  # noqa: E402

if TYPE_CHECKING:
    from vllm import LLMEngine

WARM_UP_BLOCKS = 3
NEVER_S = 3600.0
CALIBRATION_CALLS = 20_000
OFTEN = ("add_request", "schedule", "update_from_output")
"""The scheduler's functions that a hook watches at every step or request; the others are for updates and pauses."""


class Turn(NamedTuple):
    """One block, with the hook or without."""

    processor_s: float
    wall_s: float


class Pair(NamedTuple):
    """Two blocks, one right after the other."""

    hooked: Turn
    plain: Turn


def generate(engine: "LLMEngine", batch: int, tokens: int) -> int:
    """One block: so many requests of so many tokens, all at once; returns the steps that it took."""
    from vllm import SamplingParams

    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, detokenize=False)
    for number in range(batch):
        engine.add_request(f"request-{number}", {"prompt_token_ids": list(prompt_of(number))}, sampling)
    steps = 0
    while engine.has_unfinished_requests():
        engine.step()
        steps += 1
    return steps


def take_turn(engine: "LLMEngine", batch: int, tokens: int, hook: AbstractContextManager[object]) -> Turn:
    """Run a block under a hook, or under nothing, and time it."""
    with hook:
        processor_s, wall_s = time.process_time(), time.perf_counter()
        generate(engine, batch, tokens)
        return Turn(time.process_time() - processor_s, time.perf_counter() - wall_s)


def measure(engine: "LLMEngine", run: Run, pairs: int, batch: int, tokens: int) -> list[Pair]:
    """Alternating blocks; every second pair begins with the plain one."""

    def hooked() -> Turn:
        recorder = instrument(engine, run)
        assert recorder is not None
        return take_turn(engine, batch, tokens, closing(recorder))

    def plain() -> Turn:
        return take_turn(engine, batch, tokens, nullcontext())

    measured: list[Pair] = []
    for number in range(pairs):
        if number % 2:
            last = plain()
            measured.append(Pair(hooked(), last))
        else:
            first = hooked()
            measured.append(Pair(first, plain()))
    return measured


class Meter:
    """Processor time of this thread that hooks add to the functions that they watch, without the meter's own price.

    Each function is timed twice: outside of its hook and inside. What lies between is the hook's.
    """

    def __init__(self) -> None:
        self._spent_ns = 0
        self._calls = 0
        nothing = self.outside(self.inside(lambda: None))
        for _ in range(CALIBRATION_CALLS):
            nothing()
        self._price_ns = self._spent_ns / CALIBRATION_CALLS
        self._spent_ns = self._calls = 0

    @property
    def spent_s(self) -> float:
        """Seconds in the hooks so far."""
        return (self._spent_ns - self._calls * self._price_ns) / 1e9

    def outside(self, watched: Callable[..., Any]) -> Callable[..., Any]:
        """A function with its hook, timed."""

        def run_and_time(*arguments: object, **named: object) -> object:
            began_ns = time.thread_time_ns()
            result = watched(*arguments, **named)
            self._spent_ns += time.thread_time_ns() - began_ns
            self._calls += 1
            return result

        return run_and_time

    def inside(self, host: Callable[..., Any]) -> Callable[..., Any]:
        """A function without its hook, the time of which does not count."""

        def run_and_time(*arguments: object, **named: object) -> object:
            began_ns = time.thread_time_ns()
            result = host(*arguments, **named)
            self._spent_ns -= time.thread_time_ns() - began_ns
            return result

        return run_and_time


class Alone(NamedTuple):
    """Processor time of the hook per step."""

    calls_us: float
    """On the thread of the engine."""
    writing_us: float
    """On the thread that writes the rows."""


def hook_alone(engine: "LLMEngine", folder: Path, blocks: int, batch: int, tokens: int) -> Alone:
    """What the hook takes by itself: its calls, and writing their rows."""
    meter = Meter()
    scheduler = type(engine.engine_core.engine_core.scheduler)
    watched = [(type(engine), "step"), *((scheduler, name) for name in OFTEN)]
    hosts = [getattr(owner, name) for owner, name in watched]

    def spent_per_step_s() -> float:
        """With the timers around what is there now."""
        for owner, name in watched:
            setattr(owner, name, meter.outside(getattr(owner, name)))
        before_s = meter.spent_s
        steps = sum(generate(engine, batch, tokens) for _ in range(blocks))
        return (meter.spent_s - before_s) / steps

    def set_inside() -> None:
        for (owner, name), host in zip(watched, hosts, strict=True):
            setattr(owner, name, meter.inside(host))

    set_inside()
    price_s = spent_per_step_s()
    set_inside()
    with rlscope_otel.start_run(folder, "sampler", "engine", gpu_count=1, flush_interval_s=NEVER_S) as run:
        recorder = instrument(engine, run)
        assert recorder is not None
        generate(engine, batch, tokens)
        run.flush()  # The first one loads what writes.
        hooks_s = spent_per_step_s() - price_s
        run.flush()
        steps = sum(generate(engine, batch, tokens) for _ in range(blocks))
        began_s = time.process_time()
        run.flush()
        writing_s = (time.process_time() - began_s) / steps
        recorder.close()
    for (owner, name), host in zip(watched, hosts, strict=True):
        setattr(owner, name, host)
    return Alone(hooks_s * 1e6, writing_s * 1e6)


def make_engine(options: Options, checkpoint: Path) -> "LLMEngine":
    """An engine in this process with random weights."""
    from vllm import EngineArgs, LLMEngine

    from examples.vllm_torch.policy import Policy

    Policy(options).save(checkpoint)
    arguments = EngineArgs(
        model=str(checkpoint),
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=options.context_tokens,
        max_num_seqs=options.slots,
        enable_prefix_caching=False,
        disable_log_stats=True,
    )
    return LLMEngine.from_engine_args(arguments)


def line(name: str, pairs: list[Pair], steps: int, field: str) -> str:
    """One kind of time: per step, and the spread of the ratio over pairs."""
    values = [(getattr(pair.hooked, field), getattr(pair.plain, field)) for pair in pairs]
    ratios = [hooked / plain for hooked, plain in values]
    low, _, high = quantiles(ratios, n=4)
    hooked_ms, plain_ms = (1e3 * median(column) / steps for column in zip(*values, strict=True))
    return (
        f"{name:<22}{field:<13}hooked {hooked_ms:8.4f} ms  plain {plain_ms:8.4f} ms  "
        f"ratio {median(ratios):.4f} (quartiles {low:.4f} to {high:.4f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    chosen = parser.parse_args()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    prepare()
    sizes = ("--width", str(chosen.width), "--layers", str(chosen.layers), "--slots", str(chosen.batch))
    with tempfile.TemporaryDirectory() as name:
        engine = make_engine(parse_options([name, *sizes]), Path(name) / "checkpoint")
        steps = [generate(engine, chosen.batch, chosen.tokens) for _ in range(WARM_UP_BLOCKS)][-1]
        load_before = os.getloadavg()[0]
        with rlscope_otel.start_run(Path(name) / "run", "sampler", "engine", gpu_count=1) as run:
            pairs = measure(engine, run, chosen.pairs, chosen.batch, chosen.tokens)
            faults = dict(run.faults.counts)
        alone = hook_alone(engine, Path(name) / "alone", max(1, chosen.pairs // 4), chosen.batch, chosen.tokens)
    plain_us = 1e6 * median(pair.plain.processor_s for pair in pairs) / steps
    step = f"step, {chosen.batch} running"
    report = [
        f"{chosen.pairs} pairs of blocks of {steps} steps, model {chosen.layers}x{chosen.width}; {platform.machine()}, "
        f"{os.cpu_count()} cores, Python {platform.python_version()}, "
        f"load {load_before:.1f} to {os.getloadavg()[0]:.1f}",
        *(line(step, pairs, steps, field) for field in Turn._fields),
        f"the hook alone: {alone.calls_us:.1f} us a step on the engine's thread, {alone.writing_us:.1f} us on the one "
        f"that writes, {sum(alone) / plain_us:.4f} of the step",
        f"faults of the hook: {faults or 'none'}",
    ]
    print("\n".join(report))
    with FIGURES.open("a") as figures:
        figures.write("\n".join(report) + "\n\n")


if __name__ == "__main__":
    main()
