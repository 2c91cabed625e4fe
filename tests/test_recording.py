"""docs/recording.md keeps its word: its own loop gives the verdicts it names, and its other blocks name what exists."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rlscope
from tests.nightly import nightly
from tests.recording_blocks import ROOT, check_calls, commands_of, imported, python_of, resolved, sections

OWN = python_of("Your own loop")
LISTED = re.findall(
    r"^\| `python own_loop.py ([\d ]+)` \| .* \| `Bottleneck: ([a-z ]+)` \|$", sections()["Your own loop"], re.M
)
WITH_CODE = [title for title, text in sections().items() if "```python" in text]


def test_three_examples_are_listed_each_with_another_verdict() -> None:
    assert [verdict for _, verdict in LISTED] == ["trainers", "samplers", "weight updates"]


@pytest.mark.parametrize(("arguments", "verdict"), [LISTED[0], *(nightly(*each) for each in LISTED[1:])])
def test_the_own_loop_is_recorded_and_gets_the_verdict_that_is_named(
    arguments: str, verdict: str, tmp_path: Path
) -> None:
    (tmp_path / "own_loop.py").write_text(OWN, encoding="utf-8")
    command = [sys.executable, "own_loop.py", *arguments.split()]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RLSCOPE_")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    analysis = rlscope.analyze(tmp_path / "runs" / "monday", page=False)
    assert analysis.verdict.bottleneck == verdict.replace(" ", "_")
    assert (analysis.run.steps, analysis.run.trainer_gpus, analysis.run.sampler_gpus) == (40, 1, 1)
    assert not analysis.data_quality.workers_without_end and not analysis.data_quality.dropped_rows
    unrecorded = sum(state.gpu_s for state in analysis.ledger.states if state.state == "unattributed")
    assert unrecorded < 0.1 * analysis.ledger.total_gpu_s


@pytest.mark.parametrize("title", WITH_CODE)
def test_every_block_compiles_and_its_hooks_exist_with_these_arguments(title: str) -> None:
    code = python_of(title)
    compile(code, title, "exec")
    hooks = [(module, name) for module, name in imported(code) if module.startswith("rlscope_otel")]
    for module, name in hooks:
        resolved(module, name)
    own = "\n".join(line for line in code.splitlines() if "import" not in line or "rlscope_otel" in line)
    if hooks:
        assert check_calls(own) >= 1


@pytest.mark.parametrize("title", [title for title in sections() if "RLSCOPE_RUN_DIR" in commands_of(title)])
def test_every_variable_of_a_command_is_one_that_is_read(title: str) -> None:
    source = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "instrumentation" / "rlscope_otel").rglob("*.py")
    )
    for name in set(re.findall(r"RLSCOPE_[A-Z_]+", sections()[title])):
        assert f'"{name}"' in source, name
