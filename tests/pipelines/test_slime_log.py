"""One run of the example pipeline, recorded by the hooks, with the console lines of slime's trainer beside."""

import subprocess
import sys
from pathlib import Path

import pytest

from rlscope.analysis.result import AnalysisResult
from rlscope.api import analyze
from tests.pipelines.pipeline_process import REPOSITORY, TIME_LIMIT_S, TINY

# By day, tests/importers/test_slime.py reads the log of one such run.
pytestmark = [pytest.mark.pipelines, pytest.mark.nightly]

FLAGS = ("--steps", "16", "--slow-sampler", "30", "--slow-trainer", "60", "--checkpoint-every", "4", "--no-pin")
AGREE_RATIO = 0.01
"""Of the time that the steps took: what docs/importers.md promises beside the rounding."""
ROUNDING_S = 0.05
"""By which a duration printed to a tenth may be off. Phases of one length are all off alike: no sum averages it out."""
TIMERS = {
    "waiting_for_samples": ("train_wait", "update_weights", "save_model"),
    "train": ("actor_train",),
    "checkpoint": ("save_model",),
    "publishing_weights": ("update_weights",),
}
"""The timers whose durations make up each state: a wait is what the timers inside it leave."""


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
    return {name: sum(state.gpu_s for state in own if state.state == name) for name in TIMERS}


def rounding_s(log: str, state: str) -> float:
    """What the printed tenths leave open of the time in a state."""
    return ROUNDING_S * sum(log.count(f"Timer {name} end") for name in TIMERS[state])


def test_stamps_of_whole_seconds_and_durations_to_a_tenth_say_what_the_hooks_recorded(logged: Path) -> None:
    recorded, result = trainer_seconds(analyze(logged / "run")), analyze(logged / "job.log")
    imported = trainer_seconds(result)
    steps_s = sum(imported.values())
    log = (logged / "job.log").read_text()
    assert sum(recorded.values()) == pytest.approx(steps_s, abs=1.0 + AGREE_RATIO * steps_s), "first and last stamp"
    for state in TIMERS:
        open_s = rounding_s(log, state) + AGREE_RATIO * steps_s
        assert imported[state] == pytest.approx(recorded[state], abs=open_s), state
    steps = result.answers["training_metrics"].height
    assert steps == 16
