"""Runs a program of this folder in a process of its own, as vLLM wants to be run, and reads what it says at its end."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[3]
TIME_LIMIT_S = 600


def run_program(name: str, run_dir: Path, *flags: str, **environment: str) -> dict[str, Any]:
    """What the program wrote to its result file, `run_dir`'s neighbour."""
    result = run_dir.with_suffix(".json")
    command = [sys.executable, "-m", f"tests.pipelines.vllm.{name}", str(run_dir), str(result), *flags]
    done = subprocess.run(
        command, cwd=REPOSITORY, env={**os.environ, **environment}, capture_output=True, text=True, timeout=TIME_LIMIT_S
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(result.read_text())


def run_pipeline(run_dir: Path, *flags: str) -> dict[str, Any]:
    """What the processes of `examples.vllm_torch` counted themselves."""
    command = [sys.executable, "-m", "examples.vllm_torch", str(run_dir), *flags]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=TIME_LIMIT_S)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((run_dir / "pipeline_summary.json").read_text())
