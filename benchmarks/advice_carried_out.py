"""The first action of recorded runs, carried out for real: what was promised, and what came.

Each run of the example pipelines is recorded and analyzed; the first action that the example has a setting for is
carried out, nothing else is changed, and the run is recorded again, one right after the other on the same machine.
Promised is the gain of the trained tokens per second with its 90 % interval; achieved, the ratio of the two steady
rates; the other prices that the action named, and what the comparison of both recordings measured of them, stand below.
The example pipeline runs with a learning rate of 0: responses that change their length while the policy learns
would move the rate more than most actions do. Where what came lies outside the interval, what a comparison of the two
recordings found to differ besides is kept beside it.

    python benchmarks/advice_carried_out.py [--steps 120] [--vllm-python .venv-vllm/bin/python] [--keep DIR]

Needs torch and two idle cores; the TRL runs need vLLM's CPU build (`make pipelines-vllm` installs it). Writes its
figures to `benchmarks/advice_carried_out.txt`.
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the cores are the pipeline's; before numpy is loaded

from rlscope.analysis.result import AnalysisResult
from rlscope.comparison.attribution import Attribution, Promise
from rlscope.comparison.facts import run_of
from rlscope.comparison.runs import compare_runs
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.actions import Action
from rlscope.model.forecast.result import ModelResult
from rlscope.model.system import Layout
from rlscope.pipeline import analyze
from rlscope.reports.text.actions import what_to_do

REPOSITORY = Path(__file__).parents[1]
FIGURES = Path(__file__).with_suffix(".txt")

Flags = Mapping[str, str]
"""Command line flags of the example; a flag without a value has an empty one."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run of an example, as somebody might have it."""

    name: str
    module: str
    flags: Flags


PIPELINE: Final = "examples.pipeline_rl"
ALIKE: Final[Flags] = {"learning-rate": "0"}
"""The policy stays as it is, so that responses are as long in both recordings."""
TRL: Final = "examples.trl_async"
FLEET: Final[Flags] = {"slow": "8", "no-pin": "", "batch": "96", "queue-capacity": "192"}
"""Ten workers, each an eighth of a core: GPUs can be moved from one side to the other."""
CASES: Final = (
    Case("few slots, slow engines", PIPELINE, {"samplers": "2", "slots": "8", "slow-sampler": "3"}),
    Case("few slots", PIPELINE, {"slots": "8", "queue-capacity": "256"}),
    Case("tight limit in flight", PIPELINE, {"max-in-flight": "64", "slots": "64"}),
    Case(
        "tight staleness cap",
        PIPELINE,
        {"batch": "32", "slow-sampler": "1.6", "staleness-policy": "publication_waits", "max-staleness": "1"},
    ),
    Case("synchronous", PIPELINE, {"synchronous": "", "slots": "64"}),
    Case("slow trainer", PIPELINE, {"slow-trainer": "3", "queue-capacity": "256"}),
    Case(
        "fleet, one slow engine of five",
        PIPELINE,
        {**FLEET, "trainers": "5", "samplers": "5", "slow-sampler": "2", "slow-sampler-id": "sampler-3"},
    ),
    Case("fleet, few samplers", PIPELINE, {**FLEET, "trainers": "7", "samplers": "3"}),
    Case("fleet, few trainers", PIPELINE, {**FLEET, "trainers": "2", "samplers": "8"}),
    Case("TRL and vLLM, few in flight", TRL, {"engine": "vllm", "in-flight": "8"}),
    Case("TRL and vLLM, as it comes", TRL, {"engine": "vllm"}),
)


@dataclass(frozen=True, slots=True)
class Pair:
    """A run before and after. Rates in trained response tokens per second, over the steady states."""

    case: Case
    action: Action | None
    """None where no action has a setting in the example."""
    before: AnalysisResult
    after: AnalysisResult | None

    @property
    def achieved_ratio(self) -> float | None:
        """The rate after over the rate before, less 1; None where one of them is not known."""
        after = None if self.after is None else self.after.throughput.steady_tokens_per_s
        before = self.before.throughput.steady_tokens_per_s
        return after / before - 1.0 if after is not None and before else None


def record(case: Case, flags: Flags, folder: Path, steps: int, vllm_python: Path) -> None:
    """Run the example."""
    python = str(vllm_python) if case.module == TRL else sys.executable
    given = {**flags, "steps": str(steps), **(ALIKE if case.module == PIPELINE else {})}
    words = [word for name, value in given.items() for word in (f"--{name}", value) if word]
    subprocess.run(
        [python, "-m", case.module, str(folder), *words], cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL
    )


def carried_out(case: Case, action: Action) -> Flags | None:
    """The flags with the action done; None where the example has no setting for it."""
    pipeline, after = case.module == PIPELINE, action.after
    if isinstance(after, Layout):
        return _laid_out(case, after)
    names = {
        "staleness_cap": "max-staleness",
        "in_flight_limit": "max-in-flight" if pipeline else "in-flight",
        "queue_capacity_samples": "queue-capacity",
        "publish_every": "publish-every" if pipeline else "sync-every",
    }
    if action.what in names and after is not None:
        return {**case.flags, names[action.what]: str(int(after))}
    slow = {"trainer_speed": "slow-trainer", "engine_speed": "slow-sampler"}.get(action.what)
    if slow in case.flags and after is not None:
        return {**case.flags, slow: str(float(case.flags[slow]) / after)}
    return None


def _laid_out(case: Case, layout: Layout) -> Flags | None:
    """None where it needs another split and workers share cores: two on one core are no two GPUs."""
    flags = {name: value for name, value in case.flags.items() if name != "synchronous"}
    running = "slots" if case.module == PIPELINE else "in-flight"
    split = {"trainers": layout.trainer_gpus, "samplers": layout.sampler_gpus}
    if "slow" in flags:
        return {**flags, **{name: str(gpus) for name, gpus in split.items()}, running: str(layout.max_running)}
    if any(gpus != int(flags.get(name, "1")) for name, gpus in split.items()):
        return None
    return {**flags, running: str(layout.max_running)}


def try_out(case: Case, steps: int, vllm_python: Path, scratch: Path) -> Pair:
    """Record, ask, do as told, record again."""
    folder = scratch / case.name.replace(" ", "_").replace(",", "")
    record(case, case.flags, folder, steps, vllm_python)
    before = analyze(folder)
    actions = before.model.ranking.actions if isinstance(before.model, ModelResult) else ()
    for action in actions:
        flags = carried_out(case, action)
        if flags is not None:
            again = folder.with_name(f"{folder.name}_after")
            record(case, flags, again, steps, vllm_python)
            return Pair(case, action, before, analyze(again))
    return Pair(case, None, before, None)


def lines_of(pair: Pair) -> list[str]:
    """What was said, what was done, what came."""
    cause, rate = pair.before.verdict.bottleneck, pair.before.throughput.steady_tokens_per_s
    head = f"{pair.case.name}: {cause}, {rate:.0f} tokens/s" if rate else f"{pair.case.name}: {cause}"
    if pair.action is None:
        return [head, "    nothing to carry out"]
    promised, achieved = pair.action.gain_ratio, pair.achieved_ratio
    came = "no steady state" if achieved is None else f"{achieved:+.1%}"
    inside = achieved is not None and promised.low <= achieved <= promised.high
    compared = None if pair.after is None else comparison_of(pair.before, pair.after)
    differing = [] if inside or compared is None else what_differs(compared)
    return [
        head,
        f"    {pair.action.kind}: {what_to_do(pair.action)}",
        f"    promised {promised.value:+.1%} ({promised.low:+.1%} to {promised.high:+.1%}), achieved {came},"
        f" {'in' if inside else 'outside'} the interval",
        *(price_lines(compared.promise) if compared is not None and compared.promise is not None else ()),
        *([f"    besides: {'; '.join(differing)}"] if differing else []),
    ]


def comparison_of(before: AnalysisResult, after: AnalysisResult) -> Attribution:
    """Return what a comparison of the two recordings finds."""
    (compared,) = compare_runs(run_of(before), [run_of(after)]).pairs
    return compared.attribution


def price_lines(promise: Promise) -> Iterator[str]:
    """Yield each price that the action named besides its gain, and what was measured."""
    for each in promise.prices:
        yield _price_line(each.name, each.predicted, each.measured, held=each.is_as_predicted)


def _price_line(name: str, promised: Estimate, measured: float, *, held: bool) -> str:
    value, low, high = promised
    said = "as predicted" if held else "NOT as predicted"
    return f"    {name}: promised {value:.3f} ({low:.3f} to {high:.3f}), measured {measured:.3f}, {said}"


def what_differs(compared: Attribution) -> list[str]:
    """What was measured otherwise, with what it brings by the model of the first."""
    found = [
        f"{each.name} {each.before} -> {each.after} ({each.alone_ratio:+.1%})"
        for each in compared.causes
        if each.kind == "measured" and each.alone_ratio is not None
    ]
    return found or ["nothing that the model of the first can predict"]


def main() -> None:
    """Record, advise, carry out, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--vllm-python", type=Path, default=REPOSITORY / ".venv-vllm" / "bin" / "python")
    parser.add_argument("--keep", type=Path, default=None, help="a new folder for the recorded runs")
    parser.add_argument("--only", type=int, nargs="*", default=None, help="numbers of the cases, from 0")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    chosen = CASES if options.only is None else tuple(CASES[index] for index in options.only)
    if not options.vllm_python.exists():
        chosen = tuple(case for case in chosen if case.module != TRL)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(exist_ok=True)
        pairs = [try_out(case, options.steps, options.vllm_python.absolute(), folder) for case in chosen]
    head = (
        f"{options.steps} steps a run; {platform.machine()}, {os.cpu_count()} cores, Python"
        f" {platform.python_version()}, load at the start {load:.1f}"
    )
    FIGURES.write_text("\n".join([head, "", *(line for pair in pairs for line in lines_of(pair))]) + "\n")
    print(FIGURES.read_text(), end="")


if __name__ == "__main__":
    main()
