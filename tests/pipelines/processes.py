"""Runs a module as a process of its own, as a user would: what a framework warns of is not under test."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlscope.analysis.result import AnalysisResult
from rlscope.pipeline import analyze
from tests.journals import recorded_rows

REPOSITORY = Path(__file__).parents[2]
TIME_LIMIT_S = 600


def run_module(module: str, *arguments: object, **environment: str) -> str:
    """What `python -m module arguments` writes to its output; it is to end well."""
    command, variables = [sys.executable, "-m", module, *map(str, arguments)], {**os.environ, **environment}
    done = subprocess.run(command, cwd=REPOSITORY, env=variables, capture_output=True, text=True, timeout=TIME_LIMIT_S)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@dataclass(frozen=True, slots=True)
class Recorded:
    """A run, and what its program counted itself."""

    run_dir: Path
    analysis: AnalysisResult
    counted: dict[str, Any]

    def rows(self, table: str, outcome: str | None = None) -> list[dict[str, Any]]:
        """The rows of a table, all or the deliveries of an outcome."""
        return [row for row in recorded_rows(self.run_dir, table) if outcome in (None, row.get("outcome"))]


def recorded(run_dir: Path, module: str, *arguments: object, **environment: str) -> Recorded:
    """The run that a module records, which prints its counts on its last line."""
    printed = run_module(module, *arguments, RLSCOPE_RUN_DIR=str(run_dir), **environment)
    return Recorded(run_dir, analyze(run_dir), json.loads(printed.splitlines()[-1]))
