"""What is the advice worth? Each run is recorded, advised, and what was advised is then simulated.

For every system of `advice_systems.py`: how far the model is off at the run's own layout and at other splits, how often
the truth lies in its interval, what the first change brings in truth, how far that falls short of the best split at
today's running limit that is fresh enough to be recommended, and whether the verdict names the cause whose removal
truly brings most. Without a cap a change may not make samples much staler: splits beyond that are faster and no regret,
and whether one as fast is named beside the advice is counted.

    python benchmarks/advice_value.py [--processes 2] [--seed 20261122]

Writes its figures to `benchmarks/advice_value.txt`.
"""

import argparse
import math
import os
import platform
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # one process per core; before numpy is loaded

import numpy as np
from advice_systems import advice_systems
from prediction_systems import System
from prediction_truth import fresh_enough
from token_simulator import Layout, Truth, Updates, World, simulate_world, true_tokens_per_s, truth_of
from trace_predictions import Told, predict

from rlscope.model.forecast.result import NoModelResult

FIGURES = Path(__file__).with_suffix(".txt")
TRUE_STEPS = 90
"""Steps of a simulation that counts as truth; the first third is left out."""
HARM_RATIO = 0.02
"""Advice that trains less than today's layout by more than this did harm; less is the truth's own noise."""
FASTER = 2.0
"""A side costs what twice its speed brings: that is what the verdict weighs against the other causes."""
TIE_RATIO = 0.02
"""Causes within this share of the rate are tied."""
NEAR_BEST_RATIO = 0.03
"""A layout within this share of the best is as good."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One system. Rates in trained response tokens per second."""

    system: System
    told: Told | None
    """None where rlscope says nothing of the run."""
    bottleneck: str
    true: Mapping[Layout, Truth]
    """Of every split asked about, and of the layouts advised."""
    true_gains: Mapping[str, float]
    """What removing or easing each cause brings in truth, over today's rate, less 1."""

    @property
    def chosen(self) -> Layout:
        """The layout advised; the run's own where it is to stay."""
        return self.told.advice.layout if self.told else self.system.recorded

    def ratio(self, layout: Layout) -> float:
        """A layout's true rate over that of today's."""
        return self.true[layout].tokens_per_s / self.true[self.system.recorded].tokens_per_s

    @property
    def best(self) -> Layout:
        """The truly fastest split at today's running limit."""
        return max(self.system.layouts, key=self.ratio)

    @property
    def best_fresh(self) -> Layout:
        """The truly fastest of those that are fresh enough for a change."""
        fresh = fresh_enough(self.system, self.true)
        return max((layout for layout in self.system.layouts if layout in fresh), key=self.ratio)

    @property
    def regret_ratio(self) -> float:
        """True rate of the advised layout below that of the best split fresh enough; at least 0."""
        return max(0.0, 1.0 - self.ratio(self.chosen) / self.ratio(self.best_fresh))

    @property
    def tried_regret_ratio(self) -> float:
        """The same where what is to be tried is tried, and kept if it is truly faster."""
        tried = self.told.advice.tried if self.told else None
        kept = max([self.chosen, *([] if tried is None else [tried])], key=self.ratio)
        return max(0.0, 1.0 - self.ratio(kept) / self.ratio(self.best_fresh))

    @property
    def staler_is_named(self) -> bool | None:
        """Whether one as fast as the best of all splits stands beside the advice; None where the best is fresh."""
        if self.told is None or self.ratio(self.best) <= self.ratio(self.best_fresh):
            return None
        named = [layout for layout in (self.chosen, self.told.advice.staler) if layout is not None]
        return max(map(self.ratio, named)) >= (1.0 - NEAR_BEST_RATIO) * self.ratio(self.best)

    @property
    def cause_is_right(self) -> bool:
        """Whether what the verdict names truly brings most, or is tied with what does; balanced: nothing brings 5 %."""
        most = max(self.true_gains.values())
        if self.bottleneck in ("balanced", "unknown"):
            return self.bottleneck == "balanced" and most < 0.05
        return self.true_gains.get(self.bottleneck, 0.0) >= most - TIE_RATIO


def judge(system: System) -> Judged:
    """Record, ask, simulate as the recording ended."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        simulate_world(system.world, system.recorded, system.steps, 0, folder)
        system = replace(system, world=latest(system))
        told = predict(folder, system.layouts)
        bottleneck = verdict_of(folder)
    said = None if isinstance(told, NoModelResult) else told
    every = (said.advice.layout, said.advice.staler, said.advice.tried) if said else ()
    advised = [each for each in every if each is not None]
    true = {layout: truth_of(system.world, layout, TRUE_STEPS) for layout in {*system.layouts, *advised}}
    return Judged(system, said, bottleneck, true, true_gains(system, true[system.recorded].tokens_per_s))


def latest(system: System) -> World:
    """The world as it is when the recording ends; responses grow no further."""
    responses = system.world.responses
    grown_tokens = responses.median_tokens * (1.0 + responses.growth_ratio) ** system.steps
    return replace(system.world, responses=replace(responses, median_tokens=grown_tokens, growth_ratio=0.0))


def verdict_of(folder: Path) -> str:
    """The cause that rlscope names."""
    from rlscope.pipeline import analyze

    return analyze(folder).verdict.bottleneck


def true_gains(system: System, today: float) -> dict[str, float]:
    """What each cause costs, by simulating the world without it, or with the side twice as fast."""
    world = system.world
    training, passes, limits = world.training, world.passes, world.limits
    eased: dict[str, World] = {
        "trainers": replace(
            world,
            training=replace(
                training, tokens_per_gpu_s=training.tokens_per_gpu_s * FASTER, overhead_s=training.overhead_s / FASTER
            ),
        ),
        "samplers": replace(
            world,
            passes=replace(
                passes,
                weights_s=passes.weights_s / FASTER,
                request_s=passes.request_s / FASTER,
                experts_s=passes.experts_s / FASTER,
                kv_token_s=passes.kv_token_s / FASTER,
                between_s=passes.between_s / FASTER,
                prefill_tokens_per_s=passes.prefill_tokens_per_s * FASTER,
            ),
        ),
        "weight_updates": replace(world, updates=Updates(0.0, 0.0, 0.0, world.updates.kv_kept)),
        "environment": replace(world, rollouts=replace(world.rollouts, environment_ratio=0.0)),
    }
    if limits.max_staleness is not None or limits.max_in_flight_samples is not None:
        free = replace(limits, max_staleness=None, staleness_policy="none", max_in_flight_samples=None)
        eased["staleness_cap"] = replace(world, limits=free)
    rates = {
        cause: true_tokens_per_s(changed, system.recorded, TRUE_STEPS)
        for cause, changed in eased.items()
        if changed != world
    }
    return {cause: rate / today - 1.0 for cause, rate in rates.items()}


def system_line(each: Judged) -> str:
    """One system: the run, what it was told, what is true."""
    recorded, best, told = each.system.recorded, each.best_fresh, each.told
    same = errors(each, lambda layout, own: layout == own)[0] if told else math.nan
    off = np.abs(errors(each, lambda layout, own: layout != own)) if told else np.empty(0)
    said = (
        "nothing"
        if told is None
        else f"{_split(each.chosen) if told.advice.changes else 'keep'} ({told.advice.reason})"
    )
    right = "right" if each.cause_is_right else "WRONG"
    causes = ", ".join(f"{name} {gain:+.0%}" for name, gain in sorted(each.true_gains.items(), key=lambda one: -one[1]))
    return (
        f"{each.system.family:<36} {_split(recorded):>10}  {same:+6.1%} {np.median(off) if off.size else math.nan:6.1%}"
        f"  {said:<28} {each.ratio(each.chosen) - 1.0:+6.1%}  best {_split(best):>10} {each.ratio(best) - 1.0:+6.1%}"
        f"  short {each.regret_ratio:5.1%}{_staler(each)}  {each.bottleneck:<14} {right:<5} ({causes})"
    )


def _staler(each: Judged) -> str:
    """The best of all splits, where it is too stale for a change."""
    if each.staler_is_named is None:
        return " " * 30
    named = "named" if each.staler_is_named else "not named"
    return f"  stale {_split(each.best):>10} {each.ratio(each.best) - 1.0:+7.1%} {named:<9}"


def summary_lines(judged: Sequence[Judged]) -> list[str]:
    """The figures that the aims are about."""
    told = [each for each in judged if each.told is not None]
    same = [errors(each, lambda layout, own: layout == own)[0] for each in told]
    others = [errors(each, lambda layout, own: layout != own) for each in told]
    pooled = np.abs(np.concatenate(others))
    regrets = np.array([each.regret_ratio for each in judged])
    tried = np.array([each.tried_regret_ratio for each in judged])
    harm = [each.system.family for each in judged if each.ratio(each.chosen) < 1.0 - HARM_RATIO]
    right = sum(each.cause_is_right for each in judged)
    staler = [each.staler_is_named for each in judged if each.staler_is_named is not None]
    return [
        f"same run: |error| median {np.median(np.abs(same)):.1%}, worst {np.max(np.abs(same)):.1%}",
        f"other splits: median of the systems' medians {np.median([np.median(np.abs(one)) for one in others]):.1%},"
        f" nine in ten within {np.quantile(pooled, 0.9):.1%}, worst {pooled.max():.1%}",
        f"90% interval covers {np.mean(covered(told)):.0%} of the other splits",
        f"regret against the best split at today's running limit that is fresh enough: median {np.median(regrets):.1%},"
        f" nine in ten within {np.quantile(regrets, 0.9):.1%}, worst {regrets.max():.1%}",
        f"with what is to be tried tried, and kept where it is faster: nine in ten within"
        f" {np.quantile(tried, 0.9):.1%}, worst {tried.max():.1%}",
        f"a faster split is too stale for a change: {len(staler)} of {len(judged)}; one within {NEAR_BEST_RATIO:.0%} of"
        f" its rate is named beside the advice in {sum(staler)}",
        f"told to change: {sum(bool(each.told and each.told.advice.changes) for each in judged)} of {len(judged)};"
        f" worse than staying by {HARM_RATIO:.0%}: {', '.join(harm) or 'none'}",
        f"right cause named: {right} of {len(judged)}",
    ]


def covered(judged: Sequence[Judged]) -> list[bool]:
    """Whether the interval of each other split holds its true rate."""
    return [
        each.told.tokens_per_s[layout].low <= each.true[layout].tokens_per_s <= each.told.tokens_per_s[layout].high
        for each in judged
        if each.told
        for layout in each.system.layouts
        if layout != each.system.recorded
    ]


def errors(each: Judged, wanted: Callable[[Layout, Layout], bool]) -> np.ndarray:
    """Predicted over true rate, less 1, of the layouts that are wanted beside the recorded one."""
    if each.told is None:
        raise ValueError(f"nothing was said of {each.system.family}")
    chosen = [layout for layout in each.system.layouts if wanted(layout, each.system.recorded)]
    told, true = each.told.tokens_per_s, each.true
    return np.array([told[layout].value / true[layout].tokens_per_s - 1.0 for layout in chosen])


def _split(layout: Layout) -> str:
    return f"{layout.trainer_gpus}:{layout.sampler_gpus} x {layout.max_running}"


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=20261122)
    parser.add_argument("--systems", type=int, default=None, help="only so many of the first")
    parser.add_argument("--output", type=Path, default=FIGURES)
    options = parser.parse_args()
    start_s = time.perf_counter()
    chosen = advice_systems(options.seed)[: options.systems]
    with ProcessPoolExecutor(options.processes) as pool:
        judged = list(pool.map(judge, chosen))
    lines = [
        f"{len(judged)} systems, seed {options.seed}; {platform.machine()}, {os.cpu_count()} cores,"
        f" Python {platform.python_version()}, {time.perf_counter() - start_s:.0f} s",
        "",
        *summary_lines(judged),
        "",
        "system, recorded at; error of the same run, median of other splits; told, true gain; best split fresh enough;"
        " best of all where that is staler; cause",
        *map(system_line, judged),
    ]
    print("\n".join(lines))
    options.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
