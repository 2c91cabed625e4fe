"""Does a lower limit keep the rate and save what it promises? Each run is recorded, advised, and run again with it.

The systems are drawn like those of `prediction_error.py`, with another seed, and recorded where few GPUs train, so that
samplers make more than trainers take. For every system in which a lower queue capacity or limit in flight is advised:
the true change of the rate, and the dropped share of the tokens and p95 staleness before, promised and after.

    python benchmarks/lower_limits.py [--seed 20261127] [--systems 42]

Writes its figures to `benchmarks/lower_limits.txt`.
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
from rlscope.pipeline import analyze

FIGURES = Path(__file__).with_suffix(".txt")
TRUE_STEPS = 90
"""Steps of a simulation that counts as truth; the first third is left out."""
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
    """A lower limit that was advised and carried out."""

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
    tokens = run.outcome_tokens
    dropped = sum(count for name, count in tokens.items() if name not in ("trained", "filtered"))
    return Outcome(
        run.tokens_per_s(first_step),
        dropped / sum(tokens.values()),
        run.staleness_p95(first_step) * run.version_steps(first_step),
    )


def sampler_heavy(system: System) -> Layout:
    """Return the split with the fewest trainer GPUs, at the recorded limit of running requests."""
    alike = [each for each in system.layouts if each.max_running == system.recorded.max_running]
    return min(alike, key=lambda each: each.trainer_gpus)


def advised(system: System, layout: Layout) -> Action | NoModelResult | None:
    """Record a run and return the lower limit that is advised; None without one."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        simulate_world(system.world, layout, system.steps, 0, folder)
        model = analyze(folder).model
    if isinstance(model, NoModelResult):
        return model
    return next((each for each in model.ranking.actions if each.kind == "fresher"), None)


def carried_out(system: System, layout: Layout, action: Action) -> Tried:
    """Run the system with the limit and without."""
    name = "queue_capacity_samples" if action.what == "queue_capacity_samples" else "max_in_flight_samples"
    limited = replace(system.world, limits=replace(system.world.limits, **{name: action.after}))
    return Tried(system.world.name, action, outcome_of(system.world, layout), outcome_of(limited, layout))


def lines_of(tried: Sequence[Tried], asked: int, unmodeled: int) -> list[str]:
    """Write the figures."""
    gains = sorted(each.gain_ratio for each in tried)
    held = [_holds(each) for each in tried]
    return [
        f"{asked} runs, {unmodeled} without a model; a lower limit is advised in {len(tried)}.",
        f"True change of the rate: median {median(gains):+.1%}, from {gains[0]:+.1%} to {gains[-1]:+.1%};",
        f"     {sum(each < -HARM_RATIO for each in gains)} lose more than {HARM_RATIO:.0%}.",
        f"Dropped share within its 90% interval, or within 3 points: {sum(held)} of {len(held)}.",
        "",
        f"{'system':26} {'limit':>24} {'rate':>7} {'dropped: before':>16} {'promised':>9} {'after':>6}"
        f" {'p95 steps: before':>18} {'promised':>9} {'after':>6}",
        *map(_line, tried),
    ]


def _holds(tried: Tried) -> bool:
    promised = tried.action.price.dropped_ratio
    assert promised is not None
    return promised.low - 0.03 <= tried.after.dropped_ratio <= promised.high + 0.03


def _line(tried: Tried) -> str:
    action, before, after = tried.action, tried.before, tried.after
    assert action.price.dropped_ratio is not None
    assert action.staleness is not None
    kind = "queue" if action.what == "queue_capacity_samples" else "in flight"
    limit = f"{kind} {action.before} -> {action.after}"
    return (
        f"{tried.name:26} {limit:>24} {tried.gain_ratio:+7.1%} {before.dropped_ratio:16.1%}"
        f" {action.price.dropped_ratio.value:9.1%} {after.dropped_ratio:6.1%} {before.p95_steps:18.1f}"
        f" {action.staleness.p95_steps:9.1f} {after.p95_steps:6.1f}"
    )


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=20261127)
    parser.add_argument("--systems", type=int, default=42)
    given, tried, unmodeled = parser.parse_args(), list[Tried](), 0
    for index in range(given.systems):
        system = system_of(index, given.seed)
        layout = sampler_heavy(system)
        action = advised(system, layout)
        if isinstance(action, NoModelResult):
            unmodeled += 1
        elif action is not None:
            tried.append(carried_out(system, layout, action))
            print(_line(tried[-1]), flush=True)
    command = f"command: python benchmarks/lower_limits.py --seed {given.seed} --systems {given.systems}"
    FIGURES.write_text("\n".join([command, "", *lines_of(tried, given.systems, unmodeled)]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
