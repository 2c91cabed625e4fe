"""Is what an action names as its price what it costs?

The systems are drawn like those of `prediction_error.py`, with another seed. Each is recorded twice: where few GPUs
train and where many do. Every setting that is advised, and the layout that is recommended, is carried out. Rate,
dropped share of the tokens, mean trained length, trained share of the longest tenth of responses and p95 staleness are
then those of four simulations together. A price holds if its 90% interval, as it is printed, has the true value, or
misses it by less than a hundredth, which the reports do not mention; p95 staleness, if it misses it by at most one
optimizer step.

    python benchmarks/named_prices.py [--seed 20261129] [--systems 12]

Writes its figures to `benchmarks/named_prices.txt`.
"""

import argparse
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is loaded

import numpy as np
from prediction_systems import System, system_of
from same_rate import recorded_at
from token_simulator import Layout, Outcome, World, simulate_world

from rlscope.model.estimate import Estimate
from rlscope.model.forecast.actions import Action
from rlscope.model.forecast.price import NOTABLE_RATIO
from rlscope.model.forecast.result import ModelResult
from rlscope.model.simulate.results import longest_trained_ratio
from rlscope.model.system import Layout as ModelLayout
from rlscope.pipeline import analyze

FIGURES = Path(__file__).with_suffix(".txt")
TRUE_STEPS = 90
"""Steps of a simulation that counts as truth; the first third is left out."""
TRUE_SEEDS = (1, 2, 3, 4)
PRINTED_RATIO = 0.0005
"""Half of the last digit of a price: an interval is read as it is printed."""
LIMITS = {
    "staleness_cap": "max_staleness",
    "in_flight_limit": "max_in_flight_samples",
    "queue_capacity_samples": "queue_capacity_samples",
}
"""Limits of a world, by the action that moves one."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run at one setting gains and costs."""

    tokens_per_s: float
    dropped_ratio: float
    trained_tokens: float
    """Mean length of the trained samples."""
    longest_trained_ratio: float
    p95_steps: float


@dataclass(frozen=True, slots=True)
class Priced:
    """One price of one action."""

    name: str
    promised: Estimate
    true: float
    is_exact: bool
    """Whether the interval, as it is printed, has the true value."""
    holds: bool
    """The same, or off by less than what is worth a word."""


@dataclass(frozen=True, slots=True)
class CarriedOut:
    """An action, and the truth before and after it."""

    system: str
    action: Action
    prices: tuple[Priced, ...]


def cost_of(world: World, layout: Layout) -> Cost:
    """Simulate a world at a layout with each seed; the mean of each figure."""
    each = [_cost(simulate_world(world, layout, TRUE_STEPS, seed)) for seed in TRUE_SEEDS]
    return Cost(*(float(np.mean([getattr(cost, name) for cost in each])) for name in Cost.__slots__))


def _cost(run: Outcome) -> Cost:
    first_step = TRUE_STEPS // 3 + 1
    trained, dropped, filtered = (
        np.array(run.lengths_tokens(name, first_step), dtype=np.int64)
        for name in ("trained", "dropped_stale", "filtered")
    )
    return Cost(
        run.tokens_per_s(first_step),
        float(dropped.sum() / (trained.sum() + dropped.sum() + filtered.sum())),
        float(trained.mean()),
        longest_trained_ratio(trained, dropped),
        run.staleness_p95(first_step) * run.version_steps(first_step),
    )


def done(system: System, layout: Layout, action: Action) -> tuple[World, Layout] | None:
    """Return the system with the action carried out; None if no setting does that."""
    world, after = system.world, action.after
    if isinstance(after, ModelLayout):
        return world, Layout(after.trainer_gpus, after.sampler_gpus, after.max_running)
    if action.what == "publish_every" and after is not None:
        return replace(world, training=replace(world.training, steps_per_version=round(after))), layout
    if action.kind == "fix" or action.what not in LIMITS:
        return None
    return replace(world, limits=replace(world.limits, **{LIMITS[action.what]: after})), layout


def carried_out(system: System) -> list[CarriedOut]:
    """Record a system at two splits and do what is advised."""
    return [each for layout in recorded_at(system) for each in _at(system, layout)]


def _at(system: System, layout: Layout) -> Iterator[CarriedOut]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        simulate_world(system.world, layout, system.steps, 0, folder)
        model = analyze(folder).model
    if not isinstance(model, ModelResult):
        return
    before = cost_of(system.world, layout)
    for action in model.ranking.actions:
        changed = done(system, layout, action)
        if changed is not None:
            steps_per_version = action.steps_per_version(model.calibration.steps_per_version)
            prices = _prices(action, steps_per_version, before, cost_of(*changed))
            yield CarriedOut(system.world.name, action, tuple(prices))


def _prices(action: Action, steps_per_version: float, before: Cost, after: Cost) -> Iterator[Priced]:
    price, staleness = action.price, action.staleness
    named: Mapping[str, tuple[Estimate | None, float]] = {
        "gain": (action.gain_ratio, after.tokens_per_s / before.tokens_per_s - 1.0),
        "dropped": (price.dropped_ratio, after.dropped_ratio),
        "longest tenth": (price.longest_trained_ratio, after.longest_trained_ratio),
        "trained length": (
            price.trained_length_ratio(action.price_before),
            after.trained_tokens / before.trained_tokens - 1.0,
        ),
    }
    for name, (promised, true) in named.items():
        if promised is not None:
            exact, near = (_has(promised, true, margin) for margin in (PRINTED_RATIO, NOTABLE_RATIO))
            yield Priced(name, promised, true, exact, near)
    if staleness is not None:
        steps = staleness.p95_in_optimizer_steps(steps_per_version)
        # It is counted in whole versions, and the mean of four runs is not.
        yield Priced(
            "p95 steps", steps, after.p95_steps, _has(steps, after.p95_steps, 0.5), _has(steps, after.p95_steps, 1.0)
        )


def _has(promised: Estimate, true: float, margin: float) -> bool:
    return promised.low - margin <= true <= promised.high + margin


def lines_of(runs: Sequence[CarriedOut], systems: int) -> list[str]:
    """Write the figures."""
    kinds = Counter(each.action.kind for each in runs)
    prices = [price for each in runs for price in each.prices]
    lines = [
        f"{systems} systems, each recorded at two splits; {len(runs)} actions carried out:"
        f" {', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))}.",
        "",
        f"{'price':16} {'named':>6} {'in the interval':>16} {'or within 1%':>13} {'(p95: 1 step)':>14}",
    ]
    for name in dict.fromkeys(each.name for each in prices):
        alike = [each for each in prices if each.name == name]
        lines.append(_share(name, alike))
        moved = [each for each in alike if _is_costly(each)]
        if name != "gain" and moved:
            lines.append(_share("- that changes", moved))
    return [*lines, _share("all", prices), "", *(line for each in runs for line in _lines(each))]


def _share(name: str, prices: Sequence[Priced]) -> str:
    exact, held = (sum(getattr(each, which) for each in prices) for which in ("is_exact", "holds"))
    return f"{name:16} {len(prices):6} {exact:10} {exact / len(prices):5.0%} {held:7} {held / len(prices):5.0%}"


def _is_costly(price: Priced) -> bool:
    """Whether it is a price at all: samples are dropped, by what was promised or in truth."""
    free = {"dropped": 0.0, "longest tenth": 1.0, "trained length": 0.0}.get(price.name)
    return free is not None and max(abs(price.promised.value - free), abs(price.true - free)) >= NOTABLE_RATIO


def _lines(run: CarriedOut) -> Iterator[str]:
    action = run.action
    yield f"{run.system}: {action.kind} {action.what} {_setting(action.before)} -> {_setting(action.after)}"
    for each in run.prices:
        value, low, high = each.promised
        verdict = "in" if each.is_exact else "near" if each.holds else "OUT"
        yield f"    {each.name:16} {value:8.3f} ({low:.3f} to {high:.3f})  true {each.true:8.3f}  {verdict}"


def _setting(setting: ModelLayout | float | None) -> str:
    if isinstance(setting, ModelLayout):
        return f"{setting.trainer_gpus}:{setting.sampler_gpus} x {setting.max_running}"
    return "none" if setting is None else f"{setting:g}"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=20261129)
    parser.add_argument("--systems", type=int, default=12)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--output", type=Path, default=FIGURES)
    given = parser.parse_args()
    systems = [system_of(index, given.seed) for index in range(given.systems)]
    with ProcessPoolExecutor(given.processes) as pool:
        runs = [each for found in pool.map(carried_out, systems) for each in found]
    command = f"command: python benchmarks/named_prices.py --seed {given.seed} --systems {given.systems}"
    text = "\n".join([command, "", *lines_of(runs, given.systems)]) + "\n"
    print(text)
    given.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
