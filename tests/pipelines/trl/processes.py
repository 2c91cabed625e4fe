"""Runs a module as a process of its own, as a user would: what TRL and transformers warn of is not under test."""

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
TIME_LIMIT_S = 600


def run_module(module: str, *arguments: object) -> None:
    """Run `python -m module arguments` to its end, which is to be a good one."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=TIME_LIMIT_S)
    assert done.returncode == 0, done.stderr[-4000:]
