"""How far off is a layout that a run never had? Predicted from a recorded trace, against simulating it.

Each system of `prediction_systems.py` is recorded at one layout by the token simulator, half of them once more without
noise. rlscope predicts every other split of the GPUs, with the recorded limit of running requests and with twice that,
and recommends a layout; the same layouts are then simulated, which is the truth up to its own Monte Carlo error.
"Known" is the model's closed form given the true parameters: what it errs is the form's, the rest is the fit's.
Each system is recorded once more with other trainer GPUs, twice as many where that leaves samplers and half as many
where not, and the predictions are made again with that run named as `--also`.

    python benchmarks/prediction_error.py [--systems 42] [--processes 2]

Writes its figures to `benchmarks/prediction_error.txt`.
"""

import argparse
import os
import platform
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # one process per core; before numpy is loaded

import numpy as np
from prediction_systems import System, quiet_twins, systems
from prediction_truth import fresh_enough, simulated_rate, true_rates
from token_simulator import Layout, Truth, simulate_world, true_tokens_per_s, truth_of
from token_simulator.cases import NEGATIVE_CASES, Case
from trace_predictions import Advice, Told, predict

from rlscope.errors import AnalysisError
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.result import NoModelResult

FIGURES = Path(__file__).with_suffix(".txt")
TRUE_STEPS = 90
"""Steps of a simulation that counts as truth; the first third is left out."""
WORST = 5
NEAR_BEST_RATIO = 0.03


@dataclass(frozen=True, slots=True)
class Transfer:
    """One layout of one system, predicted from the recording at another."""

    system: System
    is_quiet: bool
    layout: Layout
    true: float
    known: float
    """By the closed form with the true parameters; NaN where it refuses the layout. Tokens per second, as `true`."""
    predicted: Estimate
    scaling_known: Estimate
    """Predicted, had somebody said how the trainers scale."""
    beside_another: Estimate
    """Predicted with one more recording."""
    other_trainer_gpus: int
    """Of that recording."""

    @property
    def error_ratio(self) -> float:
        """Predicted over true, less 1."""
        return self.predicted.value / self.true - 1.0

    @property
    def is_covered(self) -> bool:
        """Whether the truth lies in the 90 % interval."""
        return self.predicted.low <= self.true <= self.predicted.high

    @property
    def is_recorded(self) -> bool:
        """Whether this is the layout of the recording itself."""
        return self.layout == self.system.recorded


@dataclass(frozen=True, slots=True)
class Judged:
    """One recording."""

    system: System
    is_quiet: bool
    transfers: tuple[Transfer, ...]
    advice: Advice | None
    """None where rlscope says nothing of the run."""
    shortfall_ratio: float
    """True rate of the layout advised below that of the best layout fresh enough to be recommended; at least 0."""
    stale_ratio: float
    """Likewise below the best layout of all."""
    staying_ratio: float
    """Of the recorded layout below the best one fresh enough."""
    tried_ratio: float
    """Of the layout advised, or of the one to try where that is truly faster: what a user has who follows all of it."""
    best: Layout
    """The best one fresh enough."""
    truth_noise_ratio: float
    """Between two seeds of the truth at the recorded layout."""


def judge(task: tuple[System, bool]) -> Judged:
    """Record, predict, simulate."""
    system, is_quiet = task
    world, other = system.world, other_recording(system)
    with tempfile.TemporaryDirectory() as scratch:
        run, beside = Path(scratch) / "run", Path(scratch) / "beside"
        simulate_world(world, system.recorded, system.steps, 0, run)
        simulate_world(world, other, system.steps, 3, beside)
        told = predict(run, system.layouts, world.training.scaling_exponent)
        told_more = predict_beside(run, beside, system.layouts)
    true = {layout: truth_of(world, layout, TRUE_STEPS) for layout in system.layouts}
    again = true_tokens_per_s(world, system.recorded, TRUE_STEPS, seed=2)
    noise = again / true[system.recorded].tokens_per_s - 1.0
    if told_more is None:
        told_more = told
    if isinstance(told, NoModelResult) or isinstance(told_more, NoModelResult):
        stay, most = shortfalls(system, true, system.recorded)
        return Judged(system, is_quiet, (), None, stay, most, stay, stay, best_fresh(system, true), noise)
    chosen, best = told.advice.layout, best_fresh(system, true)
    for layout in (chosen, told.advice.tried):
        if layout is not None and layout not in true:
            true[layout] = truth_of(world, layout, TRUE_STEPS)
    known = true_rates(world, system.layouts)
    transfers = tuple(
        Transfer(
            *(system, is_quiet, layout, true[layout].tokens_per_s, known[layout]),
            told.tokens_per_s[layout],
            told.scaling_known_tokens_per_s[layout],
            told_more.tokens_per_s[layout],
            other.trainer_gpus,
        )
        for layout in system.layouts
    )
    stay, _ = shortfalls(system, true, system.recorded)
    short, most = shortfalls(system, true, chosen)
    tried = short if told.advice.tried is None else min(short, shortfalls(system, true, told.advice.tried)[0])
    return Judged(system, is_quiet, transfers, told.advice, short, most, stay, tried, best, noise)


def best_fresh(system: System, true: Mapping[Layout, Truth]) -> Layout:
    """The truly best layout of those fresh enough to be recommended."""
    return max(fresh_enough(system, true), key=lambda layout: true[layout].tokens_per_s)


def shortfalls(system: System, true: Mapping[Layout, Truth], layout: Layout) -> tuple[float, float]:
    """A layout's true rate below the best one fresh enough to be recommended, and below the best of all."""
    fresh = max(true[each].tokens_per_s for each in fresh_enough(system, true))
    best = max(each.tokens_per_s for each in true.values())
    own = true[layout].tokens_per_s
    return max(0.0, 1.0 - own / fresh), 1.0 - own / best


def predict_beside(run: Path, beside: Path, layouts: Sequence[Layout]) -> Told | NoModelResult | None:
    """With one more recording; None where that is refused, having no steady state: the run then speaks alone."""
    try:
        return predict(run, layouts, also=(beside,))
    except AnalysisError:
        return None


def other_recording(system: System) -> Layout:
    """The layout of one more recording: twice the trainer GPUs, or half of them, in whole pieces."""
    world, recorded = system.world, system.recorded
    piece = world.gpus_per_engine
    doubled = 2 * recorded.trainer_gpus
    trainers = doubled if doubled < world.gpus else max(piece, recorded.trainer_gpus // 2 // piece * piece)
    return Layout(trainers, world.gpus - trainers, recorded.max_running)


def error_line(name: str, transfers: Iterable[Transfer]) -> str:
    """How many, absolute errors (median, mean, 90 %), bias, coverage, and the form's own error."""
    rows = list(transfers)
    if not rows:
        return f"{name:<46}    0"
    errors = np.array([row.error_ratio for row in rows])
    sizes, known = np.abs(errors), np.array([row.known / row.true - 1.0 for row in rows])
    covered = np.mean([row.is_covered for row in rows])
    widths = [(row.predicted.high - row.predicted.low) / 2.0 / row.true for row in rows]
    return (
        f"{name:<46} {len(rows):4d}  {np.median(sizes):7.2%} {sizes.mean():7.2%} {np.quantile(sizes, 0.9):7.2%}"
        f"  {errors.mean():+7.2%}  {covered:6.1%} {np.median(widths):7.2%}"
        f"  {np.nanmedian(np.abs(known)):7.2%} {np.nanmean(np.abs(known)):7.2%}"
    )


def error_lines(judged: Sequence[Judged]) -> list[str]:
    """The table of errors, by what the systems are like."""
    rows = [row for each in judged for row in each.transfers]
    others = [row for row in rows if not row.is_recorded]
    noisy, quiet = [row for row in others if not row.is_quiet], [row for row in others if row.is_quiet]
    groups: dict[str, Callable[[Transfer], bool]] = {
        "trainers scale linearly": lambda row: row.system.world.training.scaling_exponent == 1.0,
        "trainers do not": lambda row: row.system.world.training.scaling_exponent < 1.0,
        "same limit of running requests": lambda row: row.layout.max_running == row.system.recorded.max_running,
        "twice the limit": lambda row: row.layout.max_running > row.system.recorded.max_running,
        "more trainer GPUs than recorded": lambda row: row.layout.trainer_gpus > row.system.recorded.trainer_gpus,
        "fewer": lambda row: row.layout.trainer_gpus < row.system.recorded.trainer_gpus,
        "a KV cache that may fill": lambda row: row.system.world.kv_capacity_tokens is not None,
        "updates lose the KV cache": lambda row: not row.system.world.updates.kv_kept,
        "environments": lambda row: row.system.world.rollouts.environment_ratio > 0,
        "mixture of experts": lambda row: row.system.world.passes.experts_s > 0,
    }
    families = sorted({row.system.family for row in others})
    return [
        " " * 46 + "    n  |error| median   mean    90 %     bias covered +-width  known: median mean",
        error_line("the recorded layout itself, noisy", (row for row in rows if row.is_recorded and not row.is_quiet)),
        error_line("the recorded layout itself, noise-free", (row for row in rows if row.is_recorded and row.is_quiet)),
        error_line("every other layout, noise-free", quiet),
        error_line("  had the trainers' scaling been known", map(_with_scaling, quiet)),
        *_beside_lines(quiet),
        error_line("every other layout, noisy", noisy),
        error_line("  had the trainers' scaling been known", map(_with_scaling, noisy)),
        *_beside_lines(noisy),
        *(error_line(f"  {name}", filter(test, noisy)) for name, test in groups.items()),
        *(
            error_line(f"  limited by: {family}", [row for row in noisy if row.system.family == family])
            for family in families
        ),
    ]


def _with_scaling(row: Transfer) -> Transfer:
    return replace(row, predicted=row.scaling_known)


def _beside_lines(rows: Sequence[Transfer]) -> list[str]:
    """With one more recording: the same layouts, and those whose trainer GPUs neither recording had."""
    beside = [replace(row, predicted=row.beside_another) for row in rows]
    unseen = [
        row
        for row in beside
        if row.layout.trainer_gpus not in (row.system.recorded.trainer_gpus, row.other_trainer_gpus)
    ]
    return [
        error_line("  with a run at other trainer GPUs (--also)", beside),
        error_line("    trainer GPUs that neither run had", unseen),
    ]


def advice_lines(judged: Sequence[Judged]) -> list[str]:
    """How much the advised layout falls short of the best of those simulated that are fresh enough, and of all."""
    lines: list[str] = []
    for name, is_quiet in (("noisy", False), ("noise-free", True)):
        told = [each for each in judged if each.is_quiet == is_quiet and each.advice is not None]
        if not told:
            continue
        short = np.array([each.shortfall_ratio for each in told])
        stay = np.array([each.staying_ratio for each in told])
        stale = np.array([each.stale_ratio for each in told])
        tried = np.array([each.tried_ratio for each in told])
        changes = sum(each.advice is not None and each.advice.changes for each in told)
        lines += [
            f"advice, {name}: {len(told)} runs, {changes} told to change; true rate below the best one fresh enough:"
            f" median {np.median(short):.1%}, mean {short.mean():.1%}, most {short.max():.1%},"
            f" within {NEAR_BEST_RATIO:.0%} in {np.mean(short <= NEAR_BEST_RATIO):.0%} of the runs",
            f"  staying would fall short by: median {np.median(stay):.1%}, mean {stay.mean():.1%};"
            f" advice worse than staying in {np.sum(short > stay + 0.01)} runs",
            f"  with what is to be tried tried, and kept where it is faster: median {np.median(tried):.1%},"
            f" mean {tried.mean():.1%}, most {tried.max():.1%}",
            f"  below the best one of any staleness: median {np.median(stale):.1%}, mean {stale.mean():.1%}",
        ]
    return lines


def worst_advice_lines(judged: Sequence[Judged]) -> list[str]:
    """The advice on noisy recordings that falls shortest."""
    told = [each for each in judged if not each.is_quiet and each.advice is not None]
    lines = ["the advice that falls shortest:"]
    for each in sorted(told, key=lambda each: -each.shortfall_ratio)[:WORST]:
        if each.advice is None:
            continue
        to_try = "" if each.advice.tried is None else f", to try {_split(each.advice.tried)}"
        lines.append(
            f"  {each.system.world.name}: recorded at {_split(each.system.recorded)}, told {_split(each.advice.layout)}"
            f" ({each.advice.reason}{to_try}), best {_split(each.best)}: short by {each.shortfall_ratio:.1%},"
            f" with what is to be tried by {each.tried_ratio:.1%}"
        )
    return lines


def worst_lines(judged: Sequence[Judged]) -> list[str]:
    """The largest errors in noisy systems, one a system, and where they come from."""
    rows = [row for each in judged for row in each.transfers if not row.is_quiet and not row.is_recorded]
    lines = ["worst, one layout a system:"]
    seen: set[str] = set()
    for row in sorted(rows, key=lambda row: -abs(row.error_ratio)):
        if row.system.world.name in seen or len(seen) == WORST:
            continue
        seen.add(row.system.world.name)
        recorded, layout = _split(row.system.recorded), _split(row.layout)
        lines += [
            f"  {row.system.world.name}: recorded at {recorded}, asked for {layout}: {row.error_ratio:+.1%}, interval"
            f" {row.predicted.low / row.true - 1:+.1%} to {row.predicted.high / row.true - 1:+.1%}",
            f"    {why(row)}",
        ]
    return lines


def why(row: Transfer) -> str:
    """What the error is made of, as far as the truth tells."""
    world, form = row.system.world, row.known / row.true - 1.0
    simulated = simulated_rate(world, row.layout) / row.true - 1.0
    reasons = [
        f"with all parameters known the closed form errs by {form:+.1%}, the event simulator by {simulated:+.1%}"
    ]
    if world.training.scaling_exponent < 1.0 or row.layout.trainer_gpus < row.system.recorded.trainer_gpus:
        reasons.append(
            f"trainers scale with exponent {world.training.scaling_exponent}, of which one layout shows nothing"
        )
    if world.rollouts.environment_ratio:
        reasons.append("waits for the environment are exponential, and the model knows their mean")
    if world.limits.max_staleness is not None:
        reasons.append(f"staleness is capped at {world.limits.max_staleness} ({world.limits.staleness_policy})")
    if world.kv_capacity_tokens is not None:
        reasons.append(f"the KV cache holds {world.kv_capacity_tokens} tokens")
    return "; ".join(reasons)


def case_line(case: Case) -> str:
    """What is said of a run that no change of layout helps, or of which nothing can be known."""
    with tempfile.TemporaryDirectory() as scratch:
        simulate_world(*case, seed=0, folder=Path(scratch) / "run")
        told = predict(Path(scratch) / "run", [case.layout], case.world.training.scaling_exponent)
    if isinstance(told, NoModelResult):
        return f"  {case.world.name:<22} nothing: {told.reason}"
    said = f"change to {_split(told.advice.layout)}" if told.advice.changes else "stay"
    return f"  {case.world.name:<22} {said} ({told.advice.reason})"


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--systems", type=int, default=len(systems()))
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    chosen = systems()[: options.systems]
    tasks = [(system, False) for system in chosen] + [(system, True) for system in quiet_twins(chosen)]
    with ProcessPoolExecutor(options.processes) as pool:
        judged = list(pool.map(judge, tasks))
        cases = list(pool.map(case_line, NEGATIVE_CASES))
    silent = [each.system.world.name for each in judged if each.advice is None]
    noise = np.std([each.truth_noise_ratio for each in judged]) / np.sqrt(2)
    lines = [
        f"{len(chosen)} systems and {len(tasks) - len(chosen)} noise-free twins; {platform.machine()},"
        f" {os.cpu_count()} cores, Python {platform.python_version()}",
        f"Monte Carlo error of the truth itself, one standard deviation: {noise:.2%}",
        f"runs that nothing was said of: {', '.join(silent) or 'none'}",
        "",
        *error_lines(judged),
        "",
        *advice_lines(judged),
        "",
        *worst_advice_lines(judged),
        "",
        *worst_lines(judged),
        "",
        "cases in which moving GPUs is not the answer:",
        *cases,
    ]
    FIGURES.write_text("\n".join(lines) + "\n")
    print(FIGURES.read_text(), end="")


def _split(layout: Layout) -> str:
    return f"{layout.trainer_gpus}:{layout.sampler_gpus} x {layout.max_running}"


if __name__ == "__main__":
    main()
