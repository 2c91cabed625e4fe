"""One run of the example pipeline, recorded by the hooks and logged by verl's own Tracking: both say the same."""

from pathlib import Path

import pytest

from rlscope.analysis.result import AnalysisResult
from rlscope.api import analyze
from rlscope.importers.options import import_options
from tests.pipelines.pipeline_process import TINY
from tests.pipelines.processes import run_module

pytestmark = pytest.mark.frameworks

FLAGS = (*TINY, "--steps", "40", "--slow-sampler", "2", "--eval-every", "10", "--checkpoint-every", "20", "--no-pin")
AGREE_RATIO = 0.005
"""Of the time that the steps took: what docs/importers.md promises of each phase."""
SHOWN = ("waiting_for_samples", "train", "eval", "checkpoint", "publishing_weights", "reward")


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logged")
    lines = {"VERL_FILE_LOGGER_PATH": str(folder / "metrics.jsonl")}
    done = run_module("examples.pipeline_rl", folder / "run", *FLAGS, "--verl-metrics", "console,file", **lines)
    (folder / "run.log").write_text(done.stdout)
    return folder


@pytest.fixture(scope="module")
def recorded(logged: Path) -> AnalysisResult:
    return analyze(logged / "run")


def trainer_seconds(result: AnalysisResult) -> dict[str, float]:
    """Seconds of the trainer in each state but its start-up, which verl does not log."""
    own = [state for state in result.ledger.states if state.role == "trainer" and state.state != "startup"]
    return {name: sum(state.gpu_s for state in own if state.state == name) for name in (*SHOWN, "unattributed")}


@pytest.mark.parametrize("name", ["run.log", "metrics.jsonl"])
def test_each_state_of_the_trainer_agrees_with_what_the_hooks_recorded(
    logged: Path, recorded: AnalysisResult, name: str
) -> None:
    recorded_s = trainer_seconds(recorded)
    # JSON lines hold no config, which says that the samplers have a GPU of their own.
    options = import_options(gpus="trainer=1,sampler=1")
    imported = trainer_seconds(analyze(logged / name, options=options))
    steps_s = sum(imported.values())
    for state in SHOWN:
        assert imported[state] == pytest.approx(recorded_s[state], abs=AGREE_RATIO * steps_s), state


def test_both_name_the_same_bottleneck(logged: Path, recorded: AnalysisResult) -> None:
    assert analyze(logged / "run.log").verdict.bottleneck == recorded.verdict.bottleneck == "samplers"
