"""Two simulators of the same systems that share no code: the model's, which jumps, and the token by token one.

Both are told the same costs, lengths and limits; each draws its own random numbers. The model's is run twice: with
engines that take groups themselves, as in `token_simulator`, and with a router to the least loaded engine, which shows
what the manner of dispatch is worth. The last result is in `simulator_agreement.txt`.

    python benchmarks/simulator_agreement.py
"""

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

import token_simulator as tokens

from rlscope.model.decode.curves import RooflineCurve
from rlscope.model.lengths import LengthLaw
from rlscope.model.simulate import Settings, simulate
from rlscope.model.system import Admission, Engine, Layout, System, Trainer, WeightUpdateCost, Workload

WARM_UP_RATIO: Final = 0.3
PREFILL_TOKENS_PER_S: Final = 1000.0
"""So slow that a prefill pass of one prompt takes as long as reading the weights, which is its least."""
BATCH, GROUP, PROMPT_TOKENS, OVERHEAD_S = 48, 4, 20, 0.1
FAST, EVEN, SLOW = 30_000.0, 8_000.0, 3_000.0
"""Tokens per second of the trainer."""
LAYOUT: Final = Layout(trainer_gpus=1, sampler_gpus=4, max_running=24)
SYSTEM: Final = System(
    Workload(LengthLaw.lognormal(100, 0.6, 500), PROMPT_TOKENS, GROUP, BATCH, trained_prompt_tokens=PROMPT_TOKENS),
    Engine(1, RooflineCurve(0.01, 0.0002, 2.0, kv_s_per_token=1e-6), 24, prefill_tokens_per_s=PREFILL_TOKENS_PER_S),
    Trainer(EVEN, seen_gpus=1, overhead_s=OVERHEAD_S),
)
WORLD: Final = tokens.World(
    "agreement",
    gpus=5,
    passes=tokens.Passes(0.01, 0.0002, 2.0, kv_token_s=1e-6, prefill_tokens_per_s=PREFILL_TOKENS_PER_S),
    responses=tokens.Responses(100, 0.6, 500, prompt_tokens=PROMPT_TOKENS),
    rollouts=tokens.Rollouts(BATCH, GROUP),
    training=tokens.Training(EVEN, 1, overhead_s=OVERHEAD_S),
)


@dataclass(frozen=True, slots=True)
class Case:
    """The same system in both vocabularies."""

    name: str
    world: tokens.World
    system: System
    settings: Settings


def case(
    name: str,
    trainer_tokens_per_s: float = EVEN,
    *,
    limits: tokens.Limits = WORLD.limits,
    admission: Admission = SYSTEM.admission,
    settings: Settings | None = None,
) -> Case:
    training = replace(WORLD.training, tokens_per_gpu_s=trainer_tokens_per_s)
    trainer = replace(SYSTEM.trainer, tokens_per_gpu_s=trainer_tokens_per_s)
    return Case(
        name,
        replace(WORLD, training=training, limits=limits),
        replace(SYSTEM, trainer=trainer, admission=admission),
        settings or Settings(),
    )


def costly_updates(plain: Case) -> Case:
    return replace(
        plain,
        world=replace(plain.world, updates=tokens.Updates(publish_s=0.1, transfer_s=0.2, apply_s=0.15, kv_kept=False)),
        system=replace(plain.system, update=WeightUpdateCost(0.15, trainer_blocked_s=0.1, delay_s=0.3, kv_kept=False)),
    )


def small_cache(plain: Case, capacity_tokens: int) -> Case:
    return replace(
        plain,
        world=replace(plain.world, kv_capacity_tokens=capacity_tokens),
        system=replace(plain.system, engine=replace(plain.system.engine, kv_capacity_tokens=capacity_tokens)),
    )


def by_admission(cap: int) -> Case:
    limits = tokens.Limits(max_staleness=cap, staleness_policy="admission")
    return case(f"staleness cap {cap}, by admission", limits=limits, admission=Admission(max_staleness=cap))


def one_ahead(plain: Case) -> Case:
    world, workload = plain.world, plain.system.workload
    return replace(
        plain,
        name=f"{plain.name}, a batch ahead",
        world=replace(world, training=replace(world.training, batches_ahead=1)),
        system=replace(plain.system, workload=replace(workload, prefetched_batches=1.0)),
    )


def by_the_trainer(cap: int) -> Case:
    limits = tokens.Limits(2 * BATCH, max_staleness=cap, staleness_policy="publication_waits")
    admission = Admission(2 * BATCH, max_staleness=cap, staleness_policy="publication_waits")
    return case(f"staleness cap {cap}, by the trainer", limits=limits, admission=admission)


def cases() -> tuple[Case, ...]:
    queue, drops = tokens.Limits(2 * BATCH), tokens.Limits(2 * BATCH, "drop_oldest")
    aged = tokens.Limits(max_staleness=2, staleness_policy="drop")
    in_flight = tokens.Limits(max_in_flight_samples=96)
    oldest_first = Settings(queue_order="oldest_first")
    by_age = case(
        "dropped by age",
        limits=aged,
        admission=Admission(None, "wait", 2, staleness_policy="drop"),
        settings=oldest_first,
    )
    return (
        case("trainer waits", FAST),
        costly_updates(case("weight updates", FAST)),
        small_cache(case("cache overflows", FAST), 1500),
        case("trainer behind, queue of 2 steps", SLOW, limits=queue, admission=Admission(2 * BATCH)),
        case("balanced, queue of 2 steps", 6_500.0, limits=queue, admission=Admission(2 * BATCH)),
        case("oldest dropped", SLOW, limits=drops, admission=Admission(2 * BATCH, "drop_oldest")),
        by_age,
        by_admission(1),
        by_admission(2),
        by_the_trainer(1),
        by_the_trainer(3),
        case("96 in flight", limits=in_flight, admission=Admission(max_in_flight_samples=96)),
        one_ahead(case("trainer waits", FAST)),
        one_ahead(by_age),
        one_ahead(by_admission(2)),
    )


@dataclass(frozen=True, slots=True)
class Seen:
    """What one run comes to after its warm-up; the staleness is of the whole run where that is all there is."""

    tokens_per_s: float
    staleness: float


def token_by_token(given: Case, steps: int, seed: int) -> Seen:
    layout = tokens.Layout(LAYOUT.trainer_gpus, LAYOUT.sampler_gpus, LAYOUT.max_running)
    outcome = tokens.simulate_world(given.world, layout, steps, seed)
    first = round(WARM_UP_RATIO * steps)
    seconds = outcome.step_ends_s[-1] - outcome.step_ends_s[first - 1]
    ages = outcome.staleness_tokens
    mean = sum(age * count for age, count in ages.items()) / sum(ages.values())
    return Seen(sum(outcome.step_response_tokens[first:]) / seconds, mean)


def by_jumps(given: Case, settings: Settings, steps: int, seed: int) -> Seen:
    warm_up = round(WARM_UP_RATIO * steps)
    run = simulate(given.system, LAYOUT, steps=steps, seed=seed, warm_up_steps=warm_up, settings=settings)
    return Seen(run.trained_tokens_per_s, run.staleness.tokens.mean)


def mean_and_error(runs: list[Seen], quantity: Callable[[Seen], float]) -> tuple[float, float]:
    values = [quantity(run) for run in runs]
    return statistics.fmean(values), statistics.stdev(values) / len(values) ** 0.5


def line(given: Case, steps: int, seeds: int) -> tuple[str, float]:
    pulled = replace(given.settings, dispatch="pulled")
    tried = (
        [token_by_token(given, steps, seed) for seed in range(seeds)],
        [by_jumps(given, pulled, steps, seed) for seed in range(seeds)],
        [by_jumps(given, given.settings, steps, seed) for seed in range(seeds)],
    )
    rates = [mean_and_error(runs, lambda run: run.tokens_per_s) for runs in tried]
    ages = [mean_and_error(runs, lambda run: run.staleness)[0] for runs in tried]
    (truth, truth_error), (own, own_error), (routed, _) = rates
    error_ratio = ((truth_error / truth) ** 2 + (own_error / own) ** 2) ** 0.5
    text = (
        f"{given.name:34} {truth:9.1f} {own / truth - 1:+8.2%} {error_ratio:7.2%} {routed / truth - 1:+10.2%}"
        f"   {ages[0]:6.3f} {ages[1]:6.3f} {ages[2]:6.3f}"
    )
    return text, abs(own / truth - 1)


def report(steps: int, seeds: int) -> str:
    start_s = time.perf_counter()
    lines, misses = zip(*(line(given, steps, seeds) for given in cases()), strict=True)
    return "\n".join(
        [
            f"date      {datetime.now(UTC):%Y-%m-%d}",
            f"machine   {os.cpu_count()} cores, {platform.machine()}, {platform.system()};"
            f" {time.perf_counter() - start_s:.0f} s in all",
            f"versions  Python {platform.python_version()}, numpy {version('numpy')}, rlscope {version('rlscope')}",
            "command   python benchmarks/" + " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            f"runs      {seeds} seeds of {steps} steps each, the first {WARM_UP_RATIO:.0%} left out",
            "error     one standard error of the difference of the rates, from the seeds",
            "staleness mean over tokens; token by token over the whole run, warm-up included",
            "",
            f"{'':34} {'tokens/s':>9} {'pulled':>8} {'error':>7} {'routed':>10}   {'staleness of the three':>20}",
            *lines,
            "",
            f"pulled, median and worst difference  {statistics.median(misses):.2%}  {max(misses):.2%}",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--out", type=Path, help="where the result goes; printed too")
    given = parser.parse_args()
    text = report(given.steps, given.seeds)
    print(text)
    if given.out is not None:
        target = given.out / "simulator_agreement.txt" if given.out.is_dir() else given.out
        target.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
