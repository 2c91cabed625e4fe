"""Does a lower limit, or a smaller layout, keep the rate and save what it promises?

The systems are drawn like those of `prediction_error.py`, with another seed. Each is recorded twice: where few GPUs
train, so that samplers make more than trainers take, and where many do. Every lower queue capacity, limit in flight and
smaller layout that is advised is carried out: the true change of the rate, and the dropped share of the tokens and p95
staleness before, promised and after.

    python benchmarks/same_rate.py [--seed 20261128] [--systems 42]

Writes its figures to `benchmarks/same_rate.txt`.
"""

import argparse
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is loaded

from prediction_systems import System, system_of
from token_simulator import Layout, World, simulate_world

from rlscope.model.forecast.actions import Action
from rlscope.model.forecast.result import NoModelResult
from rlscope.model.system import Layout as ModelLayout
from rlscope.pipeline import analyze

FIGURES = Path(__file__).with_suffix(".txt")
TRUE_STEPS = 90
"""Steps of a simulation that counts as truth; the first third is left out."""
KINDS = {"fresher": "Lower limits", "cheaper": "Smaller layouts"}
SIDES = ("trainer_gpus", "sampler_gpus")
HARM_RATIO = 0.02
"""Loss of rate beyond the noise of the truth."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run at one setting."""

    tokens_per_s: float
    dropped_ratio: float
    p95_steps: float


@dataclass(frozen=True, slots=True)
class Tried:
    """An action that was advised and carried out."""

    name: str
    action: Action
    before: Outcome
    after: Outcome

    @property
    def gain_ratio(self) -> float:
        """True change of the rate."""
        return self.after.tokens_per_s / self.before.tokens_per_s - 1.0


def outcome_of(world: World, layout: Layout) -> Outcome:
    """Simulate a world at a layout."""
    run, first_step = simulate_world(world, layout, TRUE_STEPS, 1), TRUE_STEPS // 3 + 1
    tokens = {name: sum(run.lengths_tokens(name)) for name in ("trained", "filtered", "dropped_stale")}
    return Outcome(
        run.tokens_per_s(first_step),
        tokens["dropped_stale"] / sum(tokens.values()),
        run.staleness_p95(first_step) * run.version_steps(first_step),
    )


def recorded_at(system: System) -> tuple[Layout, Layout]:
    """Return the splits with the fewest and the most trainer GPUs, at the recorded limit of running requests."""
    alike = [each for each in system.layouts if each.max_running == system.recorded.max_running]
    alike.sort(key=lambda each: each.trainer_gpus)
    return alike[0], alike[-1]


def advised(system: System, layout: Layout) -> list[Action]:
    """Record a run and return the actions that are to keep its rate."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        simulate_world(system.world, layout, system.steps, 0, folder)
        model = analyze(folder).model
    if isinstance(model, NoModelResult):
        return []
    return [each for each in model.ranking.actions if each.kind in KINDS]


def carried_out(system: System, layout: Layout, action: Action) -> Tried:
    """Run the system with the action and without."""
    before, world = outcome_of(system.world, layout), system.world
    if action.kind == "cheaper":
        after = outcome_of(world, replace(layout, **{name: getattr(action.after, name) for name in SIDES}))
    else:
        name = "queue_capacity_samples" if action.what == "queue_capacity_samples" else "max_in_flight_samples"
        after = outcome_of(replace(world, limits=replace(world.limits, **{name: action.after})), layout)
    return Tried(world.name, action, before, after)


def lines_of(tried: Sequence[Tried], asked: int) -> list[str]:
    """Write the figures."""
    lines = [f"{asked} systems, each recorded at two splits."]
    for kind, name in KINDS.items():
        alike = [each for each in tried if each.action.kind == kind]
        gains = sorted(each.gain_ratio for each in alike)
        held = [_holds(each) for each in alike if each.action.price.dropped_ratio is not None]
        lines += [
            f"{name}: advised in {len(alike)} of {2 * asked} runs.",
            f"     True change of the rate: median {median(gains):+.1%}, from {gains[0]:+.1%} to {gains[-1]:+.1%};"
            f" {sum(each < -HARM_RATIO for each in gains)} lose more than {HARM_RATIO:.0%}.",
            f"     Dropped share within its 90% interval, or within 3 points: {sum(held)} of {len(held)}.",
        ]
    return [
        *lines,
        "",
        f"{'system':26} {'action':>24} {'rate':>7} {'dropped: before':>16} {'promised':>9} {'after':>6}"
        f" {'p95 steps: before':>18} {'promised':>9} {'after':>6}",
        *map(_line, tried),
    ]


def _holds(tried: Tried) -> bool:
    promised = tried.action.price.dropped_ratio
    assert promised is not None
    return promised.low - 0.03 <= tried.after.dropped_ratio <= promised.high + 0.03


def _line(tried: Tried) -> str:
    action, before, after = tried.action, tried.before, tried.after
    promised, age = action.price.dropped_ratio, action.staleness
    return (
        f"{tried.name:26} {_change(action):>24} {tried.gain_ratio:+7.1%} {before.dropped_ratio:16.1%}"
        f" {'unknown' if promised is None else f'{promised.value:.1%}':>9} {after.dropped_ratio:6.1%}"
        f" {before.p95_steps:18.1f} {'unknown' if age is None else f'{age.p95_steps:.1f}':>9} {after.p95_steps:6.1f}"
    )


def _change(action: Action) -> str:
    if isinstance(action.before, ModelLayout) and isinstance(action.after, ModelLayout):
        before, after = (f"{each.trainer_gpus} + {each.sampler_gpus}" for each in (action.before, action.after))
        return f"GPUs {before} -> {after}"
    return f"{'queue' if action.what == 'queue_capacity_samples' else 'in flight'} {action.before} -> {action.after}"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=20261128)
    parser.add_argument("--systems", type=int, default=42)
    given, tried = parser.parse_args(), list[Tried]()
    for index in range(given.systems):
        system = system_of(index, given.seed)
        for layout in recorded_at(system):
            for action in advised(system, layout):
                tried.append(carried_out(system, layout, action))
                print(_line(tried[-1]), flush=True)
    command = f"command: python benchmarks/same_rate.py --seed {given.seed} --systems {given.systems}"
    FIGURES.write_text("\n".join([command, "", *lines_of(tried, given.systems)]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
