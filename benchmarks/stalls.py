"""Does `watch` name the worker that holds up a run, and does it stay quiet about a healthy one?

A small pipeline of processes without a model: samplers that generate, wait for an environment, apply weights and fill a
queue, and two trainer ranks that wait for samples and for each other, train, publish, save and evaluate. Every process
records through the hooks. After a random time one fault is injected. `LiveRun` looks at the folder every five seconds,
as `rlscope watch` does; at the end all processes are killed and the finding of `rlscope analyze` is asked for too.

Right: the worker at fault is named as stuck, or among those that are not heard, and no other worker is named as stuck.
Healthy runs save checkpoints and evaluate for up to twenty times as long as a step takes. Prints its figures and writes
them to `stalls.txt`; exits with 1 if fewer than 95% are right or a healthy run is called stuck.

    python -m benchmarks.stalls [--each 6] [--healthy 20] [--at-once 10]
"""

import argparse
import math
import os
import platform
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import rlscope_otel
from rlscope_otel import json_files

from rlscope.alerts.config import built_in_rules
from rlscope.alerts.live.follow import LiveRun
from rlscope.pipeline import find_problems, read_run

FIGURES: Final = Path(__file__).with_suffix(".txt")
FAULTS: Final[dict[str, tuple[str, ...]]] = {
    "the only engine is killed": ("sampler-0",),
    "an engine is stopped by SIGSTOP": ("sampler-0",),
    "the disk of an engine is full": ("sampler-0",),
    "a queue that nobody takes from": ("trainer-0", "sampler-0", "sampler-1", "sampler-2"),
    "a collective that a rank never joins": ("trainer-1",),
    "an environment that never returns": ("sampler-0",),
    "a weight update that hangs in an engine": ("sampler-0",),
    "a publication that hangs": ("trainer-0",),
}
"""Faults, and the workers that may be named for each."""
ALONE: Final = "the only engine is killed"
LOOK_S: Final = 5.0
LONGEST_S: Final = 75.0
STEP_S: Final = 0.4
BATCH: Final = 12


@dataclass
class Shared:
    """What the processes of one run share."""

    queue: Any
    barrier: Any
    version: Any
    broken_from: Any
    """When the fault begins, UTC seconds."""


@dataclass
class Outcome:
    """What was said of one run."""

    fault: str
    named: set[str] = field(default_factory=set[str])
    """Workers named as stuck or as not heard."""
    stuck: set[str] = field(default_factory=set[str])
    """Workers named as stuck."""
    after_s: float | None = None
    """From the fault until a worker was named."""
    found: str | None = None
    """The worker that the finding of `analyze` names."""

    @property
    def is_right(self) -> bool:
        """Whether the worker at fault was named, and no other one as stuck."""
        culprits = set(FAULTS.get(self.fault, ()))
        return bool(self.named & culprits) and self.stuck <= culprits


def is_broken(shared: Shared, fault: str, wanted: str) -> bool:
    return fault == wanted and time.time() >= shared.broken_from.value


def hang() -> None:
    threading.Event().wait()


def sample(folder: Path, name: str, shared: Shared, fault: str, seed: int, long_s: float) -> None:
    """One engine."""
    run = rlscope_otel.start_run(role="sampler", worker_id=name, run_dir=folder, gpu_count=1)
    fault = fault if name == "sampler-0" else ""
    rng, version, evaluated = random.Random(seed), 0, 0
    while True:
        if is_broken(shared, fault, "an engine is stopped by SIGSTOP"):
            os.kill(os.getpid(), signal.SIGSTOP)
        if is_broken(shared, fault, ALONE):
            os.kill(os.getpid(), signal.SIGKILL)
        if is_broken(shared, fault, "the disk of an engine is full"):
            os.pwrite = json_files._write_part = refuse  # type: ignore[assignment]
        if shared.version.value > version:
            version = shared.version.value
            with run.apply_weights(version, paused=True, kv="recomputed"):
                time.sleep(0.05)
                if is_broken(shared, fault, "a weight update that hangs in an engine"):
                    hang()
            if long_s and version // 20 > evaluated:
                evaluated = version // 20
                with run.evaluation():
                    time.sleep(rng.uniform(0.2, 1.0) * long_s)
        for _ in range(4):
            began_ns = run.now_ns()
            time.sleep(0.02)
            run.engine_step(began_ns, run.now_ns(), running=4, decode_tokens=4)
        with run.wait("environment"):
            time.sleep(0.02)
            if is_broken(shared, fault, "an environment that never returns"):
                hang()
        with run.wait("backpressure"):
            shared.queue.put((name, version))


def refuse(*_given: object) -> int:
    raise OSError(28, "No space left on device")


def train(folder: Path, rank: int, shared: Shared, fault: str, seed: int, long_s: float) -> None:
    """One rank of the trainers; the first takes the samples and publishes."""
    run = rlscope_otel.start_run(role="trainer", worker_id=f"trainer-{rank}", run_dir=folder, gpu_count=1)
    rng, step = random.Random(seed), 0
    while True:
        step += 1
        if not rank:
            with run.wait("samples"):
                if is_broken(shared, fault, "a queue that nobody takes from"):
                    hang()
                for _ in range(BATCH):
                    shared.queue.get()
        elif is_broken(shared, fault, "a collective that a rank never joins"):
            hang()
        with run.wait("barrier"):
            shared.barrier.wait()
        with run.train_step(step, version_in=step - 1, samples=BATCH, tokens=100):
            time.sleep(rng.uniform(0.9, 1.1) * STEP_S)
        if not rank:
            with run.publish_weights(step):
                time.sleep(0.05)
                if is_broken(shared, fault, "a publication that hangs"):
                    hang()
            shared.version.value = step
            if long_s and step % 25 == 0:
                with run.checkpoint():
                    time.sleep(rng.uniform(0.2, 1.0) * long_s)


@contextmanager
def pipeline(folder: Path, fault: str, seed: int) -> Iterator[float]:
    """The processes of a run; yields when its fault begins, after some steps. All are killed at the end."""
    spawn, rng = get_context("spawn"), random.Random(seed)
    long_s = 0.0 if fault else 20 * STEP_S
    shared = Shared(spawn.Queue(3 * BATCH), spawn.Barrier(2), spawn.Value("i", 0), spawn.Value("d", math.inf))
    engines = 1 if fault in (ALONE, "an environment that never returns") else 3
    tasks: list[tuple[Callable[..., None], Any]] = [(sample, f"sampler-{number}") for number in range(engines)]
    tasks += [(train, rank) for rank in range(2)]
    processes = [
        spawn.Process(target=target, args=(folder, name, shared, fault, seed + number, long_s), daemon=True)
        for number, (target, name) in enumerate(tasks)
    ]
    try:
        for process in processes:
            process.start()
        after = rng.randrange(20, 40)
        while shared.version.value < after:
            time.sleep(0.1)
        shared.broken_from.value = time.time()
        yield shared.broken_from.value
    finally:
        for process in processes:
            process.kill()
            process.join()


def watched(fault: str, seed: int) -> Outcome:
    """Follow one run until a worker is named, or for as long as is enough."""
    outcome = Outcome(fault)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        with pipeline(folder, fault, seed) as broken_from:
            live, until_s = LiveRun(folder, built_in_rules()), broken_from + LONGEST_S
            while time.time() < until_s and not outcome.named:
                time.sleep(LOOK_S)
                facts = live.poll(time.time_ns()).facts
                if facts is not None:
                    outcome.stuck = set() if facts.stall is None else {str(facts.stall["worker_id"])}
                    outcome.named = outcome.stuck | {each.worker_id for each in facts.silent_workers}
            outcome.after_s = time.time() - broken_from
        found = [each for each in read_run(folder, find_problems) if each.rule == "stalled"]
        outcome.found = str(found[0].evidence["worker_id"]) if found else None
    return outcome


def main(each: int, healthy: int, at_once: int) -> int:
    jobs = [(fault, seed) for seed in range(each) for fault in FAULTS] + [("", 1_000 + seed) for seed in range(healthy)]
    with ThreadPoolExecutor(at_once) as pool:
        outcomes = list(pool.map(lambda job: watched(*job), jobs))
    lines = [
        f"command: python -m benchmarks.stalls --each {each} --healthy {healthy} --at-once {at_once}",
        f"machine: {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"load {os.getloadavg()[0]:.1f}",
        "",
        f"{'fault':40s} {'right':>7s}  {'named after, s: median':>22s} {'longest':>8s}  {'also by analyze':>15s}",
    ]
    for fault in FAULTS:
        own = [outcome for outcome in outcomes if outcome.fault == fault]
        after_s = [outcome.after_s for outcome in own if outcome.named and outcome.after_s is not None]
        middle, longest = (f"{statistics.median(after_s):.0f}", f"{max(after_s):.0f}") if after_s else ("-", "-")
        found = sum(outcome.found in FAULTS[fault] for outcome in own)
        right = sum(outcome.is_right for outcome in own)
        lines.append(f"{fault:40s} {right:3d}/{len(own):<3d}  {middle:>22s} {longest:>8s}  {found:>11d}/{len(own)}")
    faulty = [outcome for outcome in outcomes if outcome.fault]
    right = sum(outcome.is_right for outcome in faulty)
    false = sum(bool(outcome.named) or outcome.found is not None for outcome in outcomes if not outcome.fault)
    lines += ["", f"{right} of {len(faulty)} right; {false} of {healthy} healthy runs called stuck or not heard"]
    text = "\n".join(lines) + "\n"
    print(text)
    for outcome in outcomes:
        if outcome.is_right != bool(outcome.fault):
            print(outcome)
    FIGURES.write_text(text)
    return int(right < 0.95 * len(faulty) or false > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=6, help="runs of each fault")
    parser.add_argument("--healthy", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=10)
    given = parser.parse_args()
    sys.exit(main(given.each, given.healthy, given.at_once))
