"""Is a change in the middle of a run found at its step, and called by its cause?

The systems are those of `prediction_error.py`, drawn with another seed. In each, one thing becomes slower or longer for
good at a version in the middle: training, publications, the passes of the engines, or the responses. The truth is what
the run then shows: a change counts if the mean step time, without the steps around it, differs by 15% or more, and its
step is the first, from the step that first trains with the change, at which the running median of five passes the
middle between both levels. The same systems without a change
tell how often one is reported that is none; so do systems whose lengths grow with every version.

    python benchmarks/change_points.py [--seed 20261127] [--systems 60]

Writes its figures to `benchmarks/change_points.txt`.
"""

import argparse
import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is loaded

import numpy as np
from prediction_systems import system_of
from token_simulator import Change, Layout, World, simulate_world

from rlscope.analysis.shifts import RunEvent, run_events
from rlscope.trace.query import ask
from rlscope.trace.store import open_run

FIGURES = Path(__file__).with_suffix(".txt")
STEPS = 90
LEAST_RATIO = 0.15
"""Least true change of step time that has to be found."""
NEAR_STEPS = 3
"""Most steps between a change and where it is reported."""
AROUND_STEPS = 12
"""Steps after a change that belong to neither level: what is in flight has to be trained first."""
FIRST_STEP = 2
"""The first step with a step time."""
SPEEDS = {"step_s", "trained_tokens_per_s"}
KINDS = ("training", "publish", "passes", "lengths")
CAUSES = {
    "training": {"training"},
    "publish": {"weight_updates"},
    "passes": {"waits"},
    "lengths": {"lengths"},
}
"""The causes that are right, by kind of change."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One run, what truly changed in it, and what was reported."""

    name: str
    kind: str
    change_ratio: float
    """True change of the step time."""
    step: int
    """The step of that change."""
    at: int
    """The step after which the system changed."""
    events: tuple[RunEvent, ...]

    @property
    def found(self) -> RunEvent | None:
        """The event of the change; None if it was missed."""
        near = [each for each in self.events if abs(each.step - self.step) <= NEAR_STEPS]
        timed = [each for each in near if SPEEDS & {shift.quantity for shift in each.shifts}]
        return (timed or [None])[0]


def recorded(world: World, layout: Layout, seed: int) -> tuple[list[float], tuple[RunEvent, ...]]:
    """Record a run; return its step times and the events that are reported."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        simulate_world(world, layout, STEPS, seed, folder)
        with open_run(folder) as run:
            asked = ("training_steps", "trainer_steps", "worker_extents", "token_staleness_by_step")
            answers = {name: ask(run, name) for name in asked}
    periods = answers["training_steps"]["step_s"].drop_nulls().to_list()
    return periods, run_events(answers)


def truth(periods: Sequence[float], at: int) -> tuple[float, int]:
    """Return the true change of step time after place `at`, and the step at which it shows."""
    before, after = mean(periods[10:at]), mean(periods[at + AROUND_STEPS :])
    middle, rises = (before + after) / 2, after > before
    # The change is first trained with in step at + 1; the first step, which has no step time, is at no place.
    for middle_place in range(at + 1 - FIRST_STEP, len(periods)):
        if (median(periods[middle_place - 2 : middle_place + 3]) > middle) is rises:
            return after / before - 1.0, middle_place + FIRST_STEP
    return after / before - 1.0, at + 1


def tried(index: int, seed: int) -> Tried:
    """Change one system."""
    system, random = system_of(index, seed), np.random.default_rng([seed, index, 1])
    kind, at = KINDS[index % len(KINDS)], int(random.integers(30, STEPS - 30))
    factor = float(random.uniform(1.3, 2.5)) * (10.0 if kind == "publish" else 1.0)
    version = at // system.world.training.steps_per_version
    world = replace(system.world, change=replace(Change(from_version=version), **{kind: factor}))
    periods, events = recorded(world, system.recorded, index)
    return Tried(system.world.name, kind, *truth(periods, at), at, events)


def alarms(index: int, seed: int, growth_ratio: float) -> int:
    """Return how many events a run reports in which nothing changes at once."""
    system = system_of(index, seed)
    world = replace(system.world, responses=replace(system.world.responses, growth_ratio=growth_ratio))
    return len(recorded(world, system.recorded, index)[1])


def lines_of(runs: Sequence[Tried], steady: Sequence[int], growing: Sequence[int]) -> list[str]:
    """Write the figures."""
    large = [each for each in runs if abs(each.change_ratio) >= LEAST_RATIO]
    hit = [each for each in large if each.found is not None]
    # Where a few long steps make up the change, no step is the one from which steps are longer.
    sudden = [each for each in large if each.step - each.at <= AROUND_STEPS]
    right = [each for each in hit if each.found and each.found.cause in CAUSES[each.kind]]
    by_kind = Counter(each.kind for each in large)
    return [
        f"{len(runs)} runs of {STEPS} steps with a change; the step time changes by {LEAST_RATIO:.0%} or more in"
        f" {len(large)}: " + ", ".join(f"{kind} {by_kind[kind]}" for kind in KINDS) + ".",
        f"Found within {NEAR_STEPS} steps: {len(hit)} of {len(large)}. Cause as changed: {len(right)} of {len(hit)}.",
        f"The median step changes within {AROUND_STEPS} steps of the system in {len(sudden)} of {len(large)}; of these,"
        f" {sum(each.found is not None for each in sudden)} are found.",
        f"Without a change: {sum(steady)} events in {len(steady)} runs. Lengths that grow by 1% a version:"
        f" {sum(growing)} in {len(growing)}.",
        "",
        f"{'system':26} {'changed':>10} {'step time':>10} {'at step':>8}  reported",
        *(
            f"{each.name:26} {each.kind:>10} {each.change_ratio:+10.0%} {each.step:8}  {_reported(each)}"
            for each in runs
        ),
    ]


def _reported(run: Tried) -> str:
    return "; ".join(
        f"{each.step} {each.cause} ({', '.join(shift.quantity for shift in each.shifts)})" for each in run.events
    )


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=20261127)
    parser.add_argument("--systems", type=int, default=60)
    given = parser.parse_args()
    runs = [tried(index, given.seed) for index in range(given.systems)]
    steady, growing = (
        [alarms(index, given.seed, ratio) for index in range(given.systems // 2)] for ratio in (0.0, 0.01)
    )
    text = "\n".join(lines_of(runs, steady, growing)) + "\n"
    print(text)
    FIGURES.write_text(text)


if __name__ == "__main__":
    main()
