"""Does `watch` name the worker that holds up a run, and does it stay quiet about a healthy one?

A small pipeline of processes without a model: samplers that generate, wait for an environment, apply weights and fill a
queue, and two trainer ranks that wait for samples and for each other, train, publish, save and evaluate. Every process
records through the hooks. With --trl also TRL's asynchronous GRPO on the CPU build of vLLM (`examples/trl_async`), one
run at a time beside the others. After a random time one fault is injected. `LiveRun` looks at the folder every five
seconds, as `rlscope watch` does. A worker that is not heard is left so for a minute, as a run that hangs is; then all
processes are killed and the finding of `rlscope analyze` is asked for too.

Right: the worker at fault is named as stuck, or among those that are not heard, and no other worker is named as stuck.
"beyond" counts from the moment at which a wait was longer than any of its kind before. Healthy runs save checkpoints
and evaluate for up to twenty times as long as a step takes. Prints its figures and writes them to `stalls.txt`; exits
with 1 if fewer than 95% are right or a healthy run is called stuck.

    python -m benchmarks.stalls [--each 6] [--healthy 20] [--at-once 10] [--trl 2]
"""

import argparse
import json
import math
import os
import platform
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import polars as pl
import rlscope_otel
from rlscope_otel import json_files

from rlscope.alerts.config import built_in_rules
from rlscope.alerts.live.follow import LiveRun
from rlscope.diagnose.stalled import WAITS
from rlscope.pipeline import find_problems
from rlscope.trace.query import ask
from rlscope.trace.store import read_run

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
"""Faults of the small pipeline, and the workers that may be named for each."""
TRL_FAULTS: Final[dict[str, tuple[str, ...]]] = {
    "vLLM's engine is killed": ("sampler",),
    "vLLM's engine is stopped by SIGSTOP": ("sampler",),
    "the disk of vLLM's engine is full": ("sampler",),
    "a reward that never returns": ("trainer-rollouts",),
    "a transfer of weights that hangs": ("trainer",),
}
"""The same for TRL with vLLM."""
HEALTHY: Final = "healthy"
TRL_HEALTHY: Final = "healthy, TRL and vLLM"
CULPRITS: Final = {**FAULTS, **TRL_FAULTS, HEALTHY: (), TRL_HEALTHY: ()}
TRL_STEPS: Final = 20
"""Steps of TRL before its fault."""
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
    beyond_s: float | None = None
    """The same from the moment at which a wait was longer than any before; None if only silence was noticed."""
    found: str | None = None
    """The worker that the finding of `analyze` names."""

    @property
    def is_right(self) -> bool:
        """Whether the worker at fault was named, and no other one as stuck."""
        culprits = set(CULPRITS[self.fault])
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
                with run.activity("eval"):
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
                with run.activity("checkpoint"):
                    time.sleep(rng.uniform(0.2, 1.0) * long_s)


@contextmanager
def pipeline(folder: Path, fault: str, seed: int) -> Iterator[float]:
    """The processes of a run; yields when its fault begins, after some steps. All are killed at the end."""
    spawn, rng = get_context("spawn"), random.Random(seed)
    long_s = 20 * STEP_S if fault == HEALTHY else 0.0
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


@contextmanager
def trl(folder: Path, fault: str, seed: int) -> Iterator[float]:
    """A run of TRL with vLLM; yields when its fault begins, after some steps. All are killed at the end."""
    stall, log = folder.with_name("stall"), folder.with_name("log")
    flags = ["--engine", "vllm", "--steps", "1000000", "--seed", str(seed)]
    with log.open("wb") as output:
        run = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.trl_stalls", str(folder), *flags],
            env={**os.environ, "STALL": str(stall)},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    sessions = {run.pid}
    try:
        while steps_of(folder) < TRL_STEPS:
            if run.poll() is not None:
                raise RuntimeError(log.read_text()[-2000:])
            time.sleep(0.5)
        time.sleep(random.Random(seed).uniform(0.0, 3.0))
        sessions |= sessions_of(stall)
        break_trl(fault, json.loads((folder / "workers" / "sampler.json").read_text())["pid"], stall)
        yield time.time()
    finally:
        kill_sessions(sessions | sessions_of(stall))
        run.wait()


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def sessions_of(stall: Path) -> set[int]:
    """The sessions of the processes of a run, by its environment, which vLLM's engines overwrite with their titles."""
    found = set[int]()
    for pid in pids():
        with suppress(OSError):
            if f"STALL={stall}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.add(os.getsid(pid))
    return found


def kill_sessions(sessions: Collection[int]) -> None:
    """Kill all processes of some sessions, and wait until they are gone."""

    def running() -> list[int]:
        found = list[int]()
        for pid in pids():
            with suppress(OSError):
                if os.getsid(pid) in sessions and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][1] != "Z":
                    found.append(pid)
        return found

    while left := running():
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.5)


def steps_of(folder: Path) -> int:
    """Steps that the trainer has recorded; 0 before its first flush."""
    file = folder / "workers" / "trainer.json"
    return int(json.loads(file.read_text())["rows"]["train_steps"]) if file.exists() else 0


def break_trl(fault: str, engine_pid: int, stall: Path) -> None:
    """Inject a fault."""
    if fault == "vLLM's engine is killed":
        os.kill(engine_pid, signal.SIGKILL)
    elif fault == "vLLM's engine is stopped by SIGSTOP":
        os.kill(engine_pid, signal.SIGSTOP)
    elif fault == "the disk of vLLM's engine is full":
        # Every write to a file fails, as on a full disk.
        resource.prlimit(engine_pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    elif fault in TRL_FAULTS:
        stall.write_text(fault)


def watched(fault: str, seed: int) -> Outcome:
    """Follow one run until a worker is named, or for as long as is enough."""
    outcome = Outcome(fault)
    running = trl if fault in (TRL_HEALTHY, *TRL_FAULTS) else pipeline
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        with running(folder, fault, seed) as broken_from:
            live, until_s = LiveRun(folder, built_in_rules()), broken_from + LONGEST_S
            while time.time() < until_s and not outcome.named:
                time.sleep(LOOK_S)
                facts = live.poll(time.time_ns()).facts
                if facts is not None:
                    outcome.stuck = set() if facts.stall is None else {str(facts.stall["worker_id"])}
                    outcome.named = outcome.stuck | {each.worker_id for each in facts.silent_workers}
            outcome.after_s = time.time() - broken_from
            outcome.beyond_s = read_run(folder, lambda run: beyond_s(ask(run, "open_phases"), time.time_ns()))
            if not outcome.stuck:
                time.sleep(max(0.0, until_s - time.time()))
        found = [each for each in read_run(folder, find_problems) if each.rule == "stalled"]
        outcome.found = str(found[0].evidence["worker_id"]) if found else None
    print(outcome, flush=True)
    return outcome


def beyond_s(open_phases: pl.DataFrame, now_ns: int) -> float | None:
    """Seconds since a wait, or an update, became longer than any of its kind before; None if none has."""
    beyond_ns = now_ns - pl.col("heard_ns") + pl.col("age_ns") - pl.col("longest_ns")
    waits = open_phases.filter(pl.col("doing").is_in(WAITS)).select(beyond_ns.max())
    longest_ns = waits.item()
    return longest_ns / 1e9 if longest_ns is not None and longest_ns > 0 else None


def shown(values: Sequence[float | None]) -> str:
    """Median and longest, in seconds."""
    known = [each for each in values if each is not None]
    return f"{statistics.median(known):.0f} ({max(known):.0f})" if known else "-"


def main(each: int, healthy: int, at_once: int, trl_each: int) -> int:
    jobs = [(fault, seed) for seed in range(each) for fault in FAULTS]
    jobs += [(HEALTHY, 1_000 + seed) for seed in range(healthy)]
    of_trl = [(fault, seed) for seed in range(trl_each) for fault in (*TRL_FAULTS, TRL_HEALTHY)]
    with ThreadPoolExecutor(at_once) as pool, ThreadPoolExecutor(1) as beside:
        found = [pool.map(lambda job: watched(*job), jobs), beside.map(lambda job: watched(*job), of_trl)]
        outcomes = [outcome for each_found in found for outcome in each_found]
    lines = [
        f"command: python -m benchmarks.stalls --each {each} --healthy {healthy} --at-once {at_once} --trl {trl_each}",
        f"machine: {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"load {os.getloadavg()[0]:.1f}",
        "",
        "seconds until named: median (longest)",
        f"{'fault':40s} {'right':>7s}  {'after it':>10s} {'beyond':>10s}  {'also by analyze':>15s}",
    ]
    for fault, culprits in CULPRITS.items():
        own = [outcome for outcome in outcomes if outcome.fault == fault and culprits]
        if not own:
            continue
        named = [outcome for outcome in own if outcome.named]
        after, beyond = shown([run.after_s for run in named]), shown([run.beyond_s for run in named])
        found = sum(outcome.found in culprits for outcome in own)
        right = sum(outcome.is_right for outcome in own)
        lines.append(f"{fault:40s} {right:3d}/{len(own):<3d}  {after:>10s} {beyond:>10s}  {found:>11d}/{len(own)}")
    faulty = [outcome for outcome in outcomes if CULPRITS[outcome.fault]]
    sound = [outcome for outcome in outcomes if not CULPRITS[outcome.fault]]
    right = sum(outcome.is_right for outcome in faulty)
    false = sum(bool(outcome.named) or outcome.found is not None for outcome in sound)
    lines += ["", f"{right} of {len(faulty)} right; {false} of {len(sound)} healthy runs called stuck or not heard"]
    text = "\n".join(lines) + "\n"
    print(text)
    FIGURES.write_text(text)
    return int(right < 0.95 * len(faulty) or false > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=6, help="runs of each fault")
    parser.add_argument("--healthy", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=10)
    parser.add_argument("--trl", type=int, default=0, help="runs of each fault with TRL and vLLM, and healthy ones")
    given = parser.parse_args()
    sys.exit(main(given.each, given.healthy, given.at_once, given.trl))
