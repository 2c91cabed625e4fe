"""One run of the example pipeline, recorded by the hooks, with the console lines of slime's trainer beside."""

import subprocess
import sys
from pathlib import Path

import pytest

from rlscope.analysis.result import AnalysisResult
from rlscope.api import analyze
from tests.pipelines.pipeline_process import REPOSITORY, TIME_LIMIT_S, TINY

pytestmark = pytest.mark.pipelines

FLAGS = ("--steps", "16", "--slow-sampler", "30", "--slow-trainer", "60", "--checkpoint-every", "4", "--no-pin")
AGREE_RATIO = 0.01
"""Of the time that the steps took: what docs/importers.md promises of each phase of at least half a second."""
SHOWN = ("waiting_for_samples", "train", "checkpoint", "publishing_weights")


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slime")
    command = [sys.executable, "-m", "examples.pipeline_rl", str(folder / "run"), *TINY, *FLAGS, "--slime-log"]
    with (folder / "job.log").open("w") as log:
        subprocess.run(command, cwd=REPOSITORY, stdout=log, stderr=subprocess.STDOUT, timeout=TIME_LIMIT_S, check=True)
    return folder


def trainer_seconds(result: AnalysisResult) -> dict[str, float]:
    """Seconds of the trainer in each state that slime's timers tell."""
    own = [state for state in result.ledger.states if state.role == "trainer"]
    return {name: sum(state.gpu_s for state in own if state.state == name) for name in SHOWN}


def test_stamps_of_whole_seconds_and_durations_to_a_tenth_say_what_the_hooks_recorded(logged: Path) -> None:
    recorded, result = trainer_seconds(analyze(logged / "run").result), analyze(logged / "job.log").result
    imported = trainer_seconds(result)
    steps_s = sum(imported.values())
    for state in SHOWN:
        assert imported[state] == pytest.approx(recorded[state], abs=AGREE_RATIO * steps_s), state
    steps = result.answers["training_metrics"].height
    assert steps == 16
