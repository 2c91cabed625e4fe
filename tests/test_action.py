"""The GitHub Action: its script checks a run as the command does, and its inputs are data and no code."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.trace_folder import train_row, worker, write_run

ACTION: Any = yaml.safe_load((Path(__file__).parents[1] / "action.yml").read_text(encoding="utf-8"))
(STEP,) = ACTION["runs"]["steps"]
SECOND = 10**9


@pytest.mark.parametrize(
    ("options", "code", "begin"),
    [
        ("", 0, "#### "),
        ("--fail-if=throughput.steady_tokens_per_s < $(touch hacked)1e9\n", 2, ""),
        ("\n--fail-if=step.time_s > 0\n", 3, "#### "),
    ],
)
def test_the_script_writes_the_summary_and_ends_as_the_check(
    options: str, code: int, begin: str, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "rlscope"
    command.write_text(f"#!{sys.executable}\nfrom rlscope.cli import main\nmain()\n")
    command.chmod(0o755)
    steps = [train_row("t0", 10 * step * SECOND, (10 * step + 5) * SECOND, step) for step in range(8)]
    write_run(tmp_path / "-a run", [worker("t0", stop_ns=100 * SECOND)], train_steps=steps)
    given = {"RUN": "-a run", "BASELINE": "-a run", "OPTIONS": options, "PYTHON": "", "ACTION": ""}
    outputs = {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"), "GITHUB_OUTPUT": str(tmp_path / "output")}
    environment = os.environ | given | outputs | {"PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}"}
    ended = subprocess.run(
        ["bash", "-e", "-c", STEP["run"]], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert ended.returncode == code, ended.stderr
    assert (tmp_path / "output").read_text() == f"exit-code={code}\n"
    assert (tmp_path / "summary.md").read_text()[:5] == begin
    assert not (tmp_path / "hacked").exists()
    assert bool(ended.stderr) == (code == 2)
    assert all(line.startswith("| ") for line in ended.stderr.splitlines()), "no line is a command to the runner"


def test_no_input_is_an_expression_inside_the_script() -> None:
    assert "${{" not in STEP["run"]
    assert set(STEP["env"]) == {"RUN", "BASELINE", "OPTIONS", "PYTHON", "ACTION"}
