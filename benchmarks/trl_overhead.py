"""What the hooks cost TRL: one asynchronous training on a CPU whose hooks are put in and taken out in turns.

The trainer and the engine (transformers' continuous batching) share a process, as in `examples.trl_async`. Blocks of a
few steps with and without hooks take turns, so that whatever else the machine does hits both; compared are neighboring
blocks. On a shared machine they spread wider than the hooks cost, so the time inside the hooks is measured too, call by
call on every thread, against the same steps.

    python benchmarks/trl_overhead.py [--blocks 40]

Needs TRL (`examples/trl_async/requirements.txt`). Writes its figures to `benchmarks/trl_overhead.txt`.
"""

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Any

REPOSITORY = Path(__file__).parents[1]
FIGURES = Path(__file__).with_suffix(".txt")
sys.path.insert(0, str(REPOSITORY))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import rlscope_otel  # noqa: E402
import torch  # noqa: E402
from rlscope_otel.integrations import transformers_cb, trl_async  # noqa: E402
from rlscope_otel.integrations.seams import Seams  # noqa: E402
from transformers import TrainerCallback  # noqa: E402

from examples.trl_async import train as example  # noqa: E402
from examples.trl_async.counts import Counts  # noqa: E402
from examples.trl_async.cpu import prepare_trl  # noqa: E402
from examples.trl_async.options import Options  # noqa: E402
from examples.trl_async.tiny_model import save_tiny  # noqa: E402
from examples.trl_async.transformers_engine import TransformersEngine  # noqa: E402

STEPS_PER_BLOCK = 4
WARM_UP_BLOCKS = 2


@dataclass(slots=True)
class Block:
    """A few steps, all with hooks or all without."""

    hooked: bool
    step_s: float
    inside_s: float
    """Processor time inside the hooks, per step."""


@dataclass(slots=True)
class Inside:
    """Processor time inside the watchers, of all threads."""

    seconds: float = 0.0
    calls: int = 0
    host_guard: Callable[..., None] = field(default=Seams._guard)

    def timed_guard(self) -> Callable[..., None]:
        """A stand-in for the place where every watcher is called."""

        def guard(seams: Seams, watcher: Callable[..., None], *arguments: object) -> None:
            begin_s = time.thread_time()
            self.host_guard(seams, watcher, *arguments)
            self.seconds += time.thread_time() - begin_s
            self.calls += 1

        return guard


class Turns(TrainerCallback):
    """Puts the hooks in and takes them out, and times the steps between."""

    def __init__(self, trainer_run: rlscope_otel.Run, engine_run: rlscope_otel.Run, inside: Inside) -> None:
        self.trainer: Any = None
        self.engine: Any = None
        self.blocks: list[Block] = []
        self._runs = (trainer_run, engine_run)
        self._inside = inside
        self._hooks: list[Any] = []
        self._since_s, self._inside_before_s = 0.0, 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: object) -> None:  # noqa: ANN401
        """At the end of a block, begin the other kind."""
        if state.global_step % STEPS_PER_BLOCK:
            return
        now_s = time.perf_counter()
        if self._since_s:
            inside_s = self._inside.seconds - self._inside_before_s
            step_s = (now_s - self._since_s) / STEPS_PER_BLOCK
            self.blocks.append(Block(bool(self._hooks), step_s, inside_s / STEPS_PER_BLOCK))
        self._change()
        self._since_s, self._inside_before_s = time.perf_counter(), self._inside.seconds

    def _change(self) -> None:
        if self._hooks:
            for hook in self._hooks:
                hook.close()
            self.trainer._rollout_dataset.queue = self.trainer.rollout_queue
            self._hooks = []
            return
        hook = trl_async.instrument(self.trainer, self._runs[0])
        # The data loader has the queue from before.
        self.trainer._rollout_dataset.queue = self.trainer.rollout_queue
        self._hooks = [hook, transformers_cb.instrument(self.engine.manager, self._runs[1])]


def measure(options: Options, scratch: Path, inside: Inside) -> list[Block]:
    """Train, and return the blocks after the first few."""
    counts = Counts()
    model_dir = save_tiny(scratch / "model", options.seed, tied=False)
    prompts = [{"prompt": [{"role": "user", "content": f"say {number}"}]} for number in range(example.PROMPTS)]
    with (
        rlscope_otel.start_run(scratch / "run", "trainer", "trainer") as trainer_run,
        rlscope_otel.start_run(scratch / "run", "sampler", "sampler") as engine_run,
    ):
        engine = TransformersEngine(options, model_dir, prompts, counts, rlscope_otel.start_run(None))
        turns = Turns(trainer_run, engine_run, inside)
        arguments = {"rollout_worker": engine, "weight_transfer": engine, "callbacks": [turns]}
        trainer = example._make_trainer(options, model_dir, scratch, prompts, counts, arguments)
        turns.engine = engine
        trainer.train()
        engine.stop()
    return turns.blocks[WARM_UP_BLOCKS:]


def lines_of(blocks: list[Block], calls_per_step: float) -> list[str]:
    """The figures."""
    pairs = [(first, second) for first, second in pairwise(blocks) if first.hooked]
    low, middle, high = quantiles([hooked.step_s / plain.step_s for hooked, plain in pairs], n=4)
    plain_s = median(block.step_s for block in blocks if not block.hooked)
    hooked_s = median(block.step_s for block in blocks if block.hooked)
    inside_s = median(block.inside_s for block in blocks if block.hooked)
    return [
        f"step of 16 samples wall_s  with {hooked_s * 1e3:8.2f} ms  without {plain_s * 1e3:8.2f} ms"
        f"  ratio {middle:.4f} (quartiles {low:.4f} to {high:.4f})",
        f"inside the hooks, trainer and engine: {inside_s * 1e6:.0f} us of processor time a step in"
        f" {calls_per_step:.0f} calls, {inside_s / plain_s:.4f} of the step",
    ]


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=40, help="pairs of blocks")
    blocks = parser.parse_args().blocks
    torch.set_num_threads(1)
    prepare_trl()
    inside = Inside()
    Seams._guard = inside.timed_guard()
    steps = (2 * blocks + WARM_UP_BLOCKS + 1) * STEPS_PER_BLOCK
    with tempfile.TemporaryDirectory() as scratch:
        options = Options(Path(scratch), steps=steps, pin=False)
        found = measure(options, Path(scratch), inside)
    hooked_steps = sum(block.hooked for block in found) * STEPS_PER_BLOCK
    lines = [
        f"{blocks} pairs of blocks of {STEPS_PER_BLOCK} steps; {platform.machine()}, {os.cpu_count()} cores,"
        f" Python {platform.python_version()}, load at the end {os.getloadavg()[0]:.1f}",
        *lines_of(found, inside.calls / hooked_steps),
    ]
    FIGURES.write_text("\n".join(lines) + "\n")
    print(FIGURES.read_text(), end="")


if __name__ == "__main__":
    main()
