"""Runs a program of this folder in a process of its own, as vLLM wants to be run, and reads what it says at its end."""

import json
from pathlib import Path
from typing import Any

from tests.pipelines.processes import run_module


def run_program(name: str, run_dir: Path, *flags: str, **environment: str) -> dict[str, Any]:
    """What the program wrote to its result file, `run_dir`'s neighbour."""
    result = run_dir.with_suffix(".json")
    run_module(f"tests.pipelines.vllm.{name}", run_dir, result, *flags, **environment)
    return json.loads(result.read_text())
