"""What the hooks cost the example pipeline: the same loop with and without them, in turns, in one process.

Two samplers, of which one records, and then one trainer with its hooks live and inert, take turns in short blocks, so
that whatever else the machine does hits both. Compared is the processor time of the process, which holds the hooks and
the thread that writes the files; wall-clock time is shown beside it.

    python benchmarks/pipeline_overhead.py [--blocks 60]

Needs torch. Writes its figures to `benchmarks/pipeline_overhead.txt`.
"""

import argparse
import multiprocessing
import os
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

REPOSITORY = Path(__file__).parents[1]
FIGURES = Path(__file__).with_suffix(".txt")
sys.path.insert(0, str(REPOSITORY))

import rlscope_otel  # noqa: E402
import torch  # noqa: E402

from examples.pipeline_rl.gate import Gate  # noqa: E402
from examples.pipeline_rl.groups import FinishedGroup  # noqa: E402
from examples.pipeline_rl.grpo import ScoredGroup  # noqa: E402
from examples.pipeline_rl.links import Links, StopSignal, limits_of  # noqa: E402
from examples.pipeline_rl.mailbox import WeightMailbox  # noqa: E402
from examples.pipeline_rl.options import Options  # noqa: E402
from examples.pipeline_rl.sampler import Sampler  # noqa: E402
from examples.pipeline_rl.task import reward_of  # noqa: E402
from examples.pipeline_rl.trainer import Trainer  # noqa: E402

PASSES_PER_BLOCK = 100
STEPS_PER_BLOCK = 3
HOOK_ROUNDS = 100_000
UNLIMITED = 10**9


class Turn(NamedTuple):
    """One block of one of the two."""

    processor_s: float
    wall_s: float


class Pair(NamedTuple):
    """Two blocks, one right after the other."""

    recorded: Turn
    plain: Turn


def take_turn(block: Callable[[], None]) -> Turn:
    """Run a block and time it."""
    processor_s, wall_s = time.process_time(), time.perf_counter()
    block()
    return Turn(time.process_time() - processor_s, time.perf_counter() - wall_s)


def take_turns(recorded: Callable[[], None], plain: Callable[[], None], blocks: int) -> list[Pair]:
    """Blocks of both in turns; which comes first alternates. The first pair warms up and is left out."""
    pairs: list[Pair] = []
    for block in range(blocks + 1):
        if block % 2:
            first = take_turn(recorded)
            pairs.append(Pair(first, take_turn(plain)))
        else:
            first = take_turn(plain)
            pairs.append(Pair(take_turn(recorded), first))
    return pairs[1:]


def link(options: Options) -> tuple[Links, Connection]:
    """Links for one worker in this process, and the other end of its queue."""
    context = multiprocessing.get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    mailbox, gate = WeightMailbox(context, options.shape.bytes), Gate(context, 1, limits_of(options))
    return Links("benchmark", mailbox, gate, StopSignal(context), (writer,), writer), reader


def start_sampler(options: Options, run: rlscope_otel.Run) -> tuple[Sampler, list[FinishedGroup]]:
    """A sampler whose queue never fills, and the list that its finished groups go to."""
    links, reader = link(options)
    groups: list[FinishedGroup] = []

    def drain() -> None:
        with suppress(EOFError):
            while True:
                groups.append(reader.recv())

    threading.Thread(target=drain, daemon=True).start()
    sampler = Sampler(options, links, 0, run)
    return sampler, groups


def start_trainer(options: Options, run: rlscope_otel.Run) -> Trainer:
    """A trainer that is handed its batches."""
    links, _ = link(options)
    return Trainer(options, replace(links, groups=()), run)


def measure_sampler(options: Options, run: rlscope_otel.Run, blocks: int) -> tuple[list[Pair], list[FinishedGroup]]:
    """Pairs of blocks of decode passes, and what was sampled without hooks."""
    recorded, _ = start_sampler(options, run)
    plain, groups = start_sampler(options, rlscope_otel.start_run(None))

    def passes_of(sampler: Sampler) -> None:
        for _ in range(PASSES_PER_BLOCK):
            sampler.iterate()

    return take_turns(lambda: passes_of(recorded), lambda: passes_of(plain), blocks), groups


def measure_hook_calls(options: Options, run: rlscope_otel.Run, rounds: int) -> float:
    """Processor seconds of the hooks of one decode pass: the same calls without the model, live less inert."""

    def calls_under(hooks: rlscope_otel.Run) -> None:
        handles = [hooks.sample(str(slot), "group", prompt_tokens=5) for slot in range(options.slots)]
        for call in range(rounds):
            now_ns = hooks.now_ns()
            for handle in handles:
                handle.tokens(1, 0)
            # One sample starts and one finishes per pass; in the recorded runs it is less than that.
            handles[call % options.slots].finish("stop")
            handles[call % options.slots] = hooks.sample(str(call), "group", prompt_tokens=5, submitted_ns=now_ns)
            handles[call % options.slots].started(now_ns)
            hooks.engine_step(now_ns, hooks.now_ns(), 0, 1, options.slots, 0, options.slots, 0, 0)
        hooks.flush()

    live, inert = take_turn(lambda: calls_under(run)), take_turn(lambda: calls_under(rlscope_otel.start_run(None)))
    return (live.processor_s - inert.processor_s) / rounds


def measure_trainer(options: Options, run: rlscope_otel.Run, groups: list[FinishedGroup], blocks: int) -> list[Pair]:
    """Pairs of blocks of optimizer steps, all on the same batch."""
    batch = [
        ScoredGroup(group, tuple(reward_of(group.target, sample.tokens) for sample in group.samples), run.now_ns())
        for group in groups[: options.groups_per_step]
    ]

    trainer = start_trainer(options, run)

    def steps_under(hooks: rlscope_otel.Run) -> None:
        trainer.run = hooks
        for step in range(STEPS_PER_BLOCK):
            trainer.step(step, batch)

    inert = rlscope_otel.start_run(None)
    return take_turns(lambda: steps_under(run), lambda: steps_under(inert), blocks)


def line_of(name: str, clock: str, pairs: list[Pair], rounds_per_block: int) -> str:
    """Median times per round with and without hooks, and the paired ratio with its quartiles."""
    times = [(getattr(pair.recorded, clock), getattr(pair.plain, clock)) for pair in pairs]
    low, middle, high = quantiles([recorded / plain for recorded, plain in times], n=4)
    recorded_ms, plain_ms = (median(side) / rounds_per_block * 1e3 for side in zip(*times, strict=True))
    return (
        f"{name} {clock:<12} with {recorded_ms:8.4f} ms  without {plain_ms:8.4f} ms"
        f"  ratio {middle:.4f} (quartiles {low:.4f} to {high:.4f})"
    )


def hook_line(hook_calls_s: float, sampler_pairs: list[Pair]) -> str:
    """The hooks' own time against a pass without them."""
    pass_s = median(pair.plain.processor_s for pair in sampler_pairs) / PASSES_PER_BLOCK
    ratio = hook_calls_s / pass_s
    return f"hooks of one pass alone, and writing what they keep: {hook_calls_s * 1e6:.1f} us, {ratio:.4f} of the pass"


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=60)
    blocks = parser.parse_args().blocks
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as scratch:
        options = Options(
            Path(scratch), queue_capacity_samples=UNLIMITED, staleness_policy="none", max_in_flight_samples=UNLIMITED
        )
        with rlscope_otel.start_run(scratch, "colocated", "worker", gpu_count=1) as run:
            sampler_pairs, groups = measure_sampler(options, run, blocks)
            trainer_pairs = measure_trainer(options, run, groups, blocks)
            hook_calls_s = measure_hook_calls(options, run, HOOK_ROUNDS)
    lines = [
        f"{blocks} pairs of blocks; {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()},"
        f" load at the end {os.getloadavg()[0]:.1f}",
        *(line_of("decode pass, 32 running", clock, sampler_pairs, PASSES_PER_BLOCK) for clock in Turn._fields),
        hook_line(hook_calls_s, sampler_pairs),
        *(line_of("train step, 64 samples ", clock, trainer_pairs, STEPS_PER_BLOCK) for clock in Turn._fields),
    ]
    FIGURES.write_text("\n".join(lines) + "\n")
    print(FIGURES.read_text(), end="")


if __name__ == "__main__":
    main()
