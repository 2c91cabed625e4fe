"""Does `rlscope compare` find differences where there are none, and does it find those that there are?

Ten pairs of one setting: the two halves of each sample trace with a steady state that is long enough, and two
simulated recordings of one system with different seeds. Then pairs of series whose truth is known, for the rate of
false alarms at several autocorrelations and lengths, recordings of one system with many seeds, whose rates spread as
the intervals of their pairs should say, and pairs that differ by one known change.

    python benchmarks/comparison_null.py [--series 400] [--seeds 20]

Writes its figures to `benchmarks/comparison_null.txt`.
"""

import argparse
import math
import os
import platform
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # one process per core; before numpy is loaded

import numpy as np
from token_simulator import Layout, World, simulate_world
from token_simulator.cases import PLAIN

from rlscope.comparison.facts import ComparedRun, StepTable, run_of
from rlscope.comparison.gate import steady_steps
from rlscope.comparison.runs import Pair, compare_runs
from rlscope.comparison.statistics import StepSeries, difference
from rlscope.model.numerics.bootstrap import autocorrelation_time, block_steps
from rlscope.pipeline import analyze
from rlscope.trace.store import open_run

FIGURES = Path(__file__).with_suffix(".txt")
TRACES = Path(__file__).parents[1] / "sample_traces"
HALVED = ("pipeline", "starved_trainer", "capped_staleness", "overproduction", "vllm_trl")
STEPS = 80
BALANCED, FEW_SAMPLERS, FEW_TRAINERS = Layout(4, 4, 32), Layout(5, 3, 16), Layout(3, 5, 32)
SYSTEMS: tuple[tuple[str, World, Layout], ...] = (
    ("plain system, 4:4", PLAIN, BALANCED),
    ("plain system, 5:3", PLAIN, FEW_SAMPLERS),
    ("noise of 5%", replace(PLAIN, passes=replace(PLAIN.passes, noise_sd=0.05),
                            training=replace(PLAIN.training, noise_sd=0.05)), BALANCED),
    ("long responses", replace(PLAIN, responses=replace(PLAIN.responses, sigma=1.0)), BALANCED),
    ("a checkpoint every 10 steps", replace(PLAIN, training=replace(PLAIN.training, checkpoint_steps=10,
                                                                    checkpoint_s=3.0)), BALANCED),
)  # fmt: skip
SPREADS: tuple[tuple[str, World, Layout], ...] = (
    ("limited by samplers, 5:3", PLAIN, FEW_SAMPLERS),
    ("limited by samplers, 6:2", PLAIN, Layout(6, 2, 32)),
    ("balanced, 4:4", PLAIN, BALANCED),
    ("limited by trainers, 3:5", PLAIN, FEW_TRAINERS),
    ("limited by trainers, 2:6", PLAIN, Layout(2, 6, 32)),
)
LONG: World = replace(PLAIN, responses=replace(PLAIN.responses, max_output_tokens=1200))
CHANGES: tuple[tuple[str, str, World, Layout, World, Layout], ...] = (
    ("running limit 8 to 32", "max_running", PLAIN, Layout(5, 3, 8), PLAIN, Layout(5, 3, 32)),
    ("layout 6:2 to 4:4", "layout", PLAIN, Layout(6, 2, 32), PLAIN, BALANCED),
    ("responses twice as long", "response_lengths", LONG, FEW_TRAINERS,
     replace(LONG, responses=replace(LONG.responses, median_tokens=300)), FEW_TRAINERS),
)  # fmt: skip


def recorded(world: World, layout: Layout, seed: int, steps: int = STEPS) -> ComparedRun:
    """A simulated recording, analyzed."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        simulate_world(world, layout, steps, seed, folder)
        return run_of(analyze(folder), f"{world.name} {layout} {seed}")


def null_pairs() -> Iterator[tuple[str, Pair]]:
    """The ten."""
    for name in HALVED:
        first, second = halves(run_of(analyze(TRACES / name)))
        yield f"halves of {name}", compare_runs(first, [second]).pairs[0]
    for name, world, layout in SYSTEMS:
        yield f"two recordings, {name}", compare_runs(recorded(world, layout, 1), [recorded(world, layout, 2)]).pairs[0]


def halves(run: ComparedRun) -> tuple[ComparedRun, ComparedRun]:
    """The two halves of a run's steady state, as if they were two runs."""
    assert run.table is not None
    middle, end = run.table.step.size // 2, run.table.step.size
    first, second = (_part_of(run, run.table, cut) for cut in (slice(0, middle), slice(middle, end)))
    return replace(first, name=f"{run.name} first half"), replace(second, name=f"{run.name} second half")


def _part_of(run: ComparedRun, table: StepTable, cut: slice) -> ComparedRun:
    columns = {name: getattr(table, name) for name in StepTable.__slots__ if name != "state_gpu_s"}
    part = StepTable(
        **{name: None if column is None else column[cut] for name, column in columns.items()},
        state_gpu_s={key: values[cut] for key, values in table.state_gpu_s.items()},
    )
    assert run.run.window is not None
    last = int(part.step[-1])
    assert run.steady is not None and part.trained_tokens is not None
    tokens, seconds = int(part.trained_tokens.sum()), float(part.step_s.sum())
    states = {key: round(float(spent.sum()) * 1e9) for key, spent in part.state_gpu_s.items()}
    steady = replace(run.steady, states=states, length_ns=round(seconds * 1e9), tokens=tokens, steps=part.step.size)
    return replace(
        run,
        table=part,
        steady=steady,
        throughput=replace(run.throughput, steady_tokens_per_s=tokens / seconds),
        run=replace(run.run, window=replace(run.run.window, first_step=int(part.step[0]), last_step=last)),
        update_s=np.zeros(0),
        dropped_ratio=None,
        steady_staleness_p95=None,
    )


def null_line(name: str, pair: Pair) -> str:
    """One pair: the rate, its interval, and everything that was called significant."""
    rate, table = pair.differences.row("tokens_per_s"), pair.run.table
    found = significant(pair)
    assert rate.change is not None and table is not None
    interval = "no interval" if rate.low is None else f"{rate.low:+6.1%} to {rate.high:+6.1%}"
    assert table.trained_tokens is not None
    series = table.trained_tokens - float(rate.after or 0) * table.step_s
    block = (
        f"{table.step.size:3} steps, block {block_steps(series)}, autocorrelation {autocorrelation_time(series):.1f}"
    )
    return f"{name:<46} {rate.change:+6.1%}  {interval:<18} {block:<42} " + (", ".join(found) or "nothing")


def significant(pair: Pair) -> list[str]:
    """The differences that are called significant."""
    rows = [row.quantity for row in pair.differences.quantities if row.difference.is_significant]
    rows += [f"{row.learned} by {row.at}" for row in pair.differences.learning if row.difference.is_significant]
    shares = [part for each in pair.differences.breakdowns if each.name == "role_share" for part in each.parts]
    return [
        *rows,
        *(f"{part.role} {part.name}" for part in shares if part.difference and part.difference.is_significant),
    ]


def false_alarms(correlation: float, steps: int, pairs: int) -> tuple[float, float]:
    """Shares of pairs of related series without a difference whose interval misses 0, and that count as significant."""
    rng = np.random.default_rng([steps, round(100 * correlation)])
    missed = called = 0
    for _ in range(pairs):
        series = [StepSeries(np.full(steps, 100.0), _related(rng, correlation, steps)) for _ in range(2)]
        found = difference(series[0], series[1], "ratio")
        missed += found.low is not None and not found.low <= 0.0 <= found.high
        called += found.is_significant
    return missed / pairs, called / pairs


def _related(rng: np.random.Generator, correlation: float, steps: int) -> np.ndarray:
    """Step periods about 1 s that vary by 10% and remember the one before."""
    noise = rng.standard_normal(steps)
    for step in range(1, steps):
        noise[step] = correlation * noise[step - 1] + np.sqrt(1.0 - correlation**2) * noise[step]
    return np.exp(0.1 * noise)


def spread_line(name: str, world: World, layout: Layout, seeds: int) -> str:
    """How far the rates of one system spread, beside the intervals of all pairs of its recordings."""
    runs = [steps_of(world, layout, seed) for seed in range(1, seeds + 1)]
    wanted = 1.96 * 2**0.5 * float(np.std(np.log([run.value or math.nan for run in runs]), ddof=1))
    pairs = [difference(first, then, "ratio") for first, then in combinations(runs, 2)]
    ends = [(each.low, each.high) for each in pairs if each.low is not None]
    half, held = np.median([(high - low) / 2.0 for low, high in ends]), sum(low <= 0.0 <= high for low, high in ends)
    called = sum(each.is_significant for each in pairs)
    return (
        f"{name:<26} 95% of differences within {wanted:.2%}, interval +-{half:.2%}, "
        f"holds 0 in {held} of {len(ends)}, {called} called significant"
    )


def steps_of(world: World, layout: Layout, seed: int) -> StepSeries:
    """The steady rate of a simulated recording, step by step."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        simulate_world(world, layout, STEPS, seed, folder)
        with open_run(folder) as run:
            steps = steady_steps(run)
    assert steps is not None
    return steps


def change_line(name: str, wanted: str, before: ComparedRun, after: ComparedRun) -> str:
    """One known change: what came, what was named as its largest cause, and what the model made of it."""
    pair = compare_runs(before, [after]).pairs[0]
    rate, largest = pair.differences.row("tokens_per_s"), next(iter(pair.attribution.causes), None)
    named = "nothing" if largest is None else largest.name
    assert rate.change is not None
    alone = None if largest is None or not rate.is_significant else largest.alone_ratio
    share = "" if alone is None else f", {math.log1p(alone) / math.log1p(rate.change):.0%} of the change"
    return f"{name:<26} {rate.change:+7.1%}  {'right' if named == wanted else 'WRONG'}: {named}{share}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=400, help="pairs of series per autocorrelation and length")
    parser.add_argument("--seeds", type=int, default=20, help="recordings of each system whose spread is measured")
    given = parser.parse_args()
    lines = [f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores", "", "Pairs of one setting:"]
    quiet = 0
    for name, pair in null_pairs():
        quiet += not significant(pair)
        lines.append(null_line(name, pair))
        print(lines[-1], flush=True)
    lines += ["", f"{quiet} of {len(HALVED) + len(SYSTEMS)} without any significant difference", ""]
    lines.append("Related series without a difference: interval misses 0 (5% nominal), called significant:")
    for correlation in (0.0, 0.5, 0.8):
        for steps in (20, 40, 100):
            missed, called = false_alarms(correlation, steps, given.series)
            lines.append(f"autocorrelation {correlation:.1f}, {steps:3} steps: {missed:5.1%}  {called:5.1%}")
            print(lines[-1], flush=True)
    lines += ["", f"{given.seeds} recordings of one setting each:"]
    for name, world, layout in SPREADS:
        lines.append(spread_line(name, world, layout, given.seeds))
        print(lines[-1], flush=True)
    lines += ["", "Pairs with one known change:"]
    for name, wanted, world, layout, other, other_layout in CHANGES:
        lines.append(change_line(name, wanted, recorded(world, layout, 1), recorded(other, other_layout, 2)))
        print(lines[-1], flush=True)
    FIGURES.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
