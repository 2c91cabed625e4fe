"""Runs the example pipeline as a user would, in a process of its own, on a tiny model."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
TINY = (
    *("--batch", "16", "--group", "4", "--slots", "8", "--queue-capacity-samples", "32"),
    *("--width", "32", "--layers", "1"),
)
SHORT = ("--response-cap", "32", "--flush-interval-s", "0.5", "--log-every", "1000")
TIME_LIMIT_S = 120


@dataclass(frozen=True, slots=True)
class Ended:
    """A pipeline that has ended, and what it counted itself."""

    run_dir: Path
    exit_status: int
    stderr: str

    @property
    def counted(self) -> dict[str, Any]:
        return json.loads((self.run_dir / "pipeline_summary.json").read_text())


def run(run_dir: Path, *flags: str) -> Ended:
    """Run the pipeline to its end."""
    command = [sys.executable, "-m", "examples.pipeline_rl", str(run_dir), *TINY, *SHORT, *flags]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=TIME_LIMIT_S)
    return Ended(run_dir, done.returncode, done.stderr)
