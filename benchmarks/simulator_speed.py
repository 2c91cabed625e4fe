"""How long the event simulator takes over 200 steps of 64 GPUs, by what holds the samplers.

Seconds of the machine say little on another, or on one that others use: each case is also given in turns of an empty
loop of the same interpreter, timed right before it. The last result is in `simulator_speed.txt`.

    python benchmarks/simulator_speed.py
"""

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

from rlscope.model.decode.curves import RooflineCurve
from rlscope.model.lengths import LengthLaw
from rlscope.model.simulate import Settings, Simulated, simulate
from rlscope.model.system import Admission, Engine, Layout, System, Trainer, WeightUpdateCost, Workload

AIM_S: Final = 1.0
LOOP_TURNS: Final = 2_000_000
LENGTHS: Final = LengthLaw.lognormal(1500, 0.6, max_output_tokens=8192)
SYSTEM: Final = System(
    Workload(LENGTHS, prompt_tokens=200, group_size=8, samples_per_step=1024),
    Engine(1, RooflineCurve(8e-3, 3e-5, 2.0, kv_s_per_token=4.35e-8), max_running=256, prefill_tokens_per_s=50_000),
    Trainer(9000, seen_gpus=16),
    WeightUpdateCost(engine_pause_s=0.3, delay_s=0.5),
)
LAYOUT: Final = Layout(trainer_gpus=16, sampler_gpus=48, max_running=32)


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to simulate."""

    name: str
    system: System
    settings: Settings = field(default_factory=Settings)
    layout: Layout = LAYOUT


def cases() -> tuple[Case, ...]:
    slow = replace(SYSTEM, trainer=Trainer(3000, seen_gpus=16))
    fast = replace(SYSTEM, trainer=Trainer(20_000, seen_gpus=16))
    cache = replace(fast, engine=replace(SYSTEM.engine, kv_capacity_tokens=60_000))

    def under(system: System, admission: Admission) -> System:
        return replace(system, admission=admission)

    large = replace(fast, workload=replace(SYSTEM.workload, samples_per_step=5120))
    return (
        Case("trainer waits", fast),
        Case("trainer waits, 5120 samples a step", large, layout=replace(LAYOUT, max_running=160)),
        Case("queue of 2 steps, waits when full", under(slow, Admission(queue_capacity_samples=2048))),
        Case("queue of 2 steps, drops its oldest", under(slow, Admission(2048, "drop_oldest"))),
        Case("staleness cap 1, by admission", under(fast, Admission(max_staleness=1))),
        Case(
            "staleness cap 2, kept by the trainer",
            under(fast, Admission(2048, max_staleness=2, staleness_policy="publication_waits")),
        ),
        Case("trainer waits, engines take groups", fast, Settings(dispatch="pulled")),
        Case("cap 1 by admission, engines take", under(fast, Admission(max_staleness=1)), Settings(dispatch="pulled")),
        Case("synchronous", under(fast, Admission(max_staleness=0))),
        Case("cache overflows", cache, layout=replace(LAYOUT, max_running=40)),
    )


@dataclass(frozen=True, slots=True)
class Timing:
    """One run of a case."""

    wall_s: float
    cpu_s: float
    loop_s: float
    """CPU seconds of one turn of an empty loop."""


def loop_s() -> float:
    start_s = time.process_time()
    for _ in range(LOOP_TURNS):
        pass
    return (time.process_time() - start_s) / LOOP_TURNS


def timed(work: Callable[[], Simulated]) -> tuple[Timing, Simulated]:
    turn_s = loop_s()
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    simulated = work()
    return Timing(time.perf_counter() - wall_s, time.process_time() - cpu_s, turn_s), simulated


def line(case: Case, steps: int, repeats: int) -> str:
    rounds = [
        timed(lambda: simulate(case.system, case.layout, steps=steps, seed=1, warm_up_steps=0, settings=case.settings))
        for _ in range(repeats)
    ]
    run = rounds[0][1]
    samples = round(run.engine_totals.tokens / LENGTHS.mean_tokens)
    wall_s, cpu_s, turns = (
        statistics.median(values)
        for values in zip(*((t.wall_s, t.cpu_s, t.cpu_s / samples / t.loop_s) for t, _ in rounds), strict=True)
    )
    return (
        f"{case.name:38} {samples:9,} {wall_s:7.2f} {cpu_s:7.2f} {samples / cpu_s:10,.0f} {turns:8.0f}"
        f" {run.engine_totals.preemptions:9,} {run.step_s:8.2f}"
    )


def report(steps: int, repeats: int) -> str:
    return "\n".join(
        [
            f"date      {datetime.now(UTC):%Y-%m-%d}",
            f"machine   {os.cpu_count()} cores, {platform.machine()}, {platform.system()},"
            f" load {os.getloadavg()[0]:.1f} at the start, {loop_s() * 1e9:.0f} ns a turn of an empty loop",
            f"versions  Python {platform.python_version()}, numpy {version('numpy')}, rlscope {version('rlscope')}",
            "command   python benchmarks/" + " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            f"case      {steps} steps of 16 trainer and 48 sampler GPUs, 1024 samples a step but where said,"
            f" mean length {LENGTHS.mean_tokens:.0f} tokens",
            f"rounds    {repeats}, medians; aim: about {AIM_S:.0f} s; samples: tokens generated over the mean length",
            "",
            f"{'':38} {'samples':>9} {'wall_s':>7} {'cpu_s':>7} {'samples/s':>10} {'turns':>8}"
            f" {'preempted':>9} {'step_s':>8}",
            *(line(case, steps, repeats) for case in cases()),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="where the result goes; printed too")
    given = parser.parse_args()
    text = report(given.steps, given.repeats)
    print(text)
    if given.out is not None:
        target = given.out / "simulator_speed.txt" if given.out.is_dir() else given.out
        target.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
