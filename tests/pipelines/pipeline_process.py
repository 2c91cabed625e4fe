"""Runs the example pipeline as a user would, in a process of its own, on a tiny model."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rlscope.analysis.result import AnalysisResult
from rlscope.pipeline import analyze
from tests.pipelines.processes import Recorded, run_module

TINY = (
    *("--batch", "16", "--group", "4", "--slots", "8", "--queue-capacity-samples", "32"),
    *("--width", "32", "--layers", "1"),
)
SHORT = ("--response-cap", "32", "--flush-interval-s", "0.5", "--log-every", "1000")


@dataclass(frozen=True)
class Ended(Recorded):
    """A pipeline that has ended."""

    stderr: str
    COUNTED = "pipeline_summary.json"

    @cached_property
    def analysis(self) -> AnalysisResult:
        return analyze(self.run_dir, also_ask=())


def run(run_dir: Path, *flags: str) -> Ended:
    """Run the pipeline to its end."""
    return Ended(run_dir, run_module("examples.pipeline_rl", run_dir, *TINY, *SHORT, *flags).stderr)
