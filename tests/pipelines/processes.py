"""Runs a module as a process of its own, as a user would, and reads what it recorded and what it counted itself."""

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from rlscope.analysis.result import AnalysisResult
from rlscope.pipeline import analyze
from tests.journals import recorded_rows

REPOSITORY = Path(__file__).parents[2]
TIME_LIMIT_S = 600
COUNTED = "counted.json"
"""The file in the run folder in which a program leaves its counts."""


def run_module(module: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m module arguments`, which is to end well."""
    command, variables = [sys.executable, "-m", module, *map(str, arguments)], {**os.environ, **environment}
    done = subprocess.run(command, cwd=REPOSITORY, env=variables, capture_output=True, text=True, timeout=TIME_LIMIT_S)
    assert done.returncode == 0, done.stderr[-4000:]
    return done


@dataclass(frozen=True)
class Recorded:
    """A run, and what its program counted itself."""

    run_dir: Path
    COUNTED: ClassVar[str] = COUNTED

    @cached_property
    def counted(self) -> dict[str, Any]:
        return json.loads((self.run_dir / self.COUNTED).read_text())

    @cached_property
    def analysis(self) -> AnalysisResult:
        return analyze(self.run_dir)

    @property
    def config(self) -> dict[str, Any]:
        return json.loads((self.run_dir / "run.json").read_text())["config"]

    def rows(self, table: str, **wanted: object) -> list[dict[str, Any]]:
        """The rows of a table whose columns have these values."""
        return [row for row in recorded_rows(self.run_dir, table) if wanted.items() <= row.items()]

    @cached_property
    def samples(self) -> dict[str, dict[str, Any]]:
        """The last row of every sample."""
        return {row["sample_id"]: row for row in self.rows("samples")}

    def updates(self, phase: str) -> list[dict[str, Any]]:
        """The weight updates of a phase, in the order of their starts."""
        return sorted(self.rows("weight_updates", phase=phase), key=lambda row: row["start_ns"])

    def tokens_by_sample(self) -> Counter[str]:
        tokens: Counter[str] = Counter()
        for row in self.rows("samples"):
            tokens[row["sample_id"]] += row["output_tokens"]
        return tokens

    def tokens_by_version(self) -> Counter[int]:
        tokens: Counter[int] = Counter()
        for row in self.rows("samples"):
            for run in row["versions"]:
                tokens[run["version"]] += run["end"] - run["start"]
        return +tokens

    def states(self, role: str | None = None) -> dict[str, int]:
        """GPU time by state, of one role or of all."""
        found: Counter[str] = Counter()
        for state in self.analysis.ledger.states:
            if role in (None, state.role):
                found[state.state] += state.gpu_ns
        return dict(found)


def recorded(run_dir: Path, module: str, *arguments: object, **environment: str) -> Recorded:
    """The run that a module records into the folder, its first argument."""
    run_module(module, run_dir, *arguments, **environment)
    return Recorded(run_dir)


def assert_accounted(analysis: AnalysisResult, unattributed_ratio: float = 1.0, *, without_end: object = ()) -> None:
    """The ledger adds up with little unexplained time, no row is lost or impossible, and these workers have no end."""
    ledger, quality = analysis.ledger, analysis.data_quality
    assert sum(state.gpu_ns for state in ledger.states) == ledger.total_gpu_ns
    unattributed_ns = sum(state.gpu_ns for state in ledger.states if state.state == "unattributed")
    assert unattributed_ns <= unattributed_ratio * ledger.total_gpu_ns
    assert (quality.skipped_files, quality.workers_without_end) == ((), without_end)
    assert sum(quality.dropped_rows.values()) == 0
    assert analysis.answers["row_faults"].is_empty()
    assert not any("negative staleness" in gap or "not recorded" in gap for gap in quality.gaps)
