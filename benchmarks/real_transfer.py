"""The example pipeline on this machine: one setting predicted from the recording of another, and the error as it is.

The pipeline of `examples/pipeline_rl` runs one trainer and one sampler, each on its core, with several limits of
running requests, batch sizes and response caps. Each recording predicts the steady rate of every other setting. The
policy learns while it runs, so lengths drift and differ between settings: that is part of the error.

    python benchmarks/real_transfer.py [--steps 60]

Needs torch and two idle cores. Writes its figures to `benchmarks/real_transfer.txt`.
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the cores are the pipeline's; before numpy is loaded

import numpy as np

from rlscope.analysis.result import AnalysisResult
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.change import Change
from rlscope.model.forecast.result import ModelResult, NoModelResult
from rlscope.model.forecast.what_if import what_if
from rlscope.pipeline import analyze

REPOSITORY = Path(__file__).parents[1]
FIGURES = Path(__file__).with_suffix(".txt")
QUEUE_CAPACITY = 256
"""Samples, in every setting: twice the largest batch."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is varied."""

    slots: int = 32
    batch: int = 64
    response_cap: int = 96

    def __str__(self) -> str:
        return f"slots {self.slots:2d}, batch {self.batch:3d}, cap {self.response_cap:2d}"


SETTINGS = (
    Setting(),
    Setting(slots=8),
    Setting(slots=16),
    Setting(slots=64),
    Setting(batch=32),
    Setting(batch=128),
    Setting(response_cap=48),
)


@dataclass(frozen=True, slots=True)
class Transfer:
    """One setting predicted from another. Trained response tokens per second."""

    seen: Setting
    asked: Setting
    achieved: float
    predicted: Estimate

    @property
    def error_ratio(self) -> float:
        """Predicted over achieved, less 1."""
        return self.predicted.value / self.achieved - 1.0


def record(setting: Setting, folder: Path, steps: int) -> None:
    """Run the pipeline."""
    flags = {"slots": setting.slots, "batch": setting.batch, "response-cap": setting.response_cap, "steps": steps}
    flags |= {"queue-capacity": QUEUE_CAPACITY, "log-every": steps}
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "examples.pipeline_rl", str(folder), *words]
    subprocess.run(command, cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL)


def predict(model: ModelResult, asked: Setting) -> Estimate | None:
    """The rate under another setting, as `rlscope what-if` answers it; None where it says that nothing would run."""
    change = Change(max_running=asked.slots, samples_per_step=asked.batch, max_output_tokens=asked.response_cap)
    drawn = what_if(model, change).predicted.drawn_tokens_per_s
    return None if drawn is None else Estimate.of(drawn)


def transfers(analyses: Sequence[tuple[Setting, AnalysisResult]]) -> list[Transfer]:
    """Every setting from every other of which the model says something."""
    found: list[Transfer] = []
    for (seen, analysis), (asked, truth) in permutations(analyses, 2):
        achieved = truth.throughput.steady_tokens_per_s
        if achieved is None or isinstance(analysis.model, NoModelResult):
            continue
        predicted = predict(analysis.model, asked)
        if predicted is not None:
            found.append(Transfer(seen, asked, achieved, predicted))
    return found


def report(analyses: Sequence[tuple[Setting, AnalysisResult]], found: Sequence[Transfer]) -> list[str]:
    """One line a setting, the errors, one line a transfer."""
    errors = np.array([each.error_ratio for each in found])
    covered = np.mean([each.predicted.low <= each.achieved <= each.predicted.high for each in found])
    own = [f"  {setting}: {_own_line(analysis)}" for setting, analysis in analyses]
    return [
        "achieved tokens/s in steady state, and the model of the same run held to its second half:",
        *own,
        f"{len(found)} transfers: median |error| {np.median(np.abs(errors)):.1%}, mean {np.abs(errors).mean():.1%},"
        f" bias {errors.mean():+.1%}, in the 90 % interval {covered:.0%}",
        *(
            f"  {each.seen} -> {each.asked}: {each.predicted.value:6.0f} ({each.predicted.low:.0f} to"
            f" {each.predicted.high:.0f}) against {each.achieved:6.0f}, {each.error_ratio:+.1%}"
            for each in found
        ),
    ]


def _own_line(analysis: AnalysisResult) -> str:
    steady, model = analysis.throughput.steady_tokens_per_s, analysis.model
    rate = "no steady state" if steady is None else f"{steady:6.0f}"
    if isinstance(model, NoModelResult):
        return f"{rate}, no outlook: {model.reason}"
    if model.prediction is None:
        return f"{rate}, too short to hold a part out"
    return f"{rate}, achieved over predicted {model.prediction.residual_ratio:+.1%}"


def main() -> None:
    """Record, predict, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        analyses: list[tuple[Setting, AnalysisResult]] = []
        for index, setting in enumerate(SETTINGS):
            record(setting, Path(scratch) / str(index), steps)
            analyses.append((setting, analyze(Path(scratch) / str(index))))
    head = (
        f"{steps} steps a setting; {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()},"
        f" load at the start {load:.1f}"
    )
    FIGURES.write_text("\n".join([head, *report(analyses, transfers(analyses))]) + "\n")
    print(FIGURES.read_text(), end="")


if __name__ == "__main__":
    main()
