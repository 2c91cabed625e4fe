"""`rlscope what-if`: the answer as text and as JSON, and what it says of a question that has none."""

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

import rlscope
from rlscope.errors import AnalysisError
from rlscope.model.forecast.result import ModelResult, NoModelResult, model_run
from rlscope.model.system import Admission, Granularity
from rlscope.model.warnings import ModelWarning
from tests.cli.command import invoke
from tests.model.known_run import QUESTION, candidates_of, observed
from tests.reports.analysis_fixture import full_analysis


@cache
def model() -> ModelResult:
    """Two trainer GPUs and six engines; trainer replicas are of two GPUs."""
    candidates = candidates_of(Admission(queue_capacity_samples=512))
    granularity = Granularity(gpus_per_engine=1, gpus_per_trainer_replica=2)
    return model_run(observed(), None, replace(QUESTION, candidates=candidates, granularity=granularity))


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run folder is the known run."""
    known = replace(full_analysis(), model=model())
    monkeypatch.setattr("rlscope.pipeline.analyze", lambda _folder, **_: known)


def document(*arguments: str | Path) -> Any:
    return json.loads(invoke("what-if", *arguments, "--json", "-").stdout)


def test_without_a_change_the_run_is_beside_itself() -> None:
    found = document("run")
    assert found["current"] == found["predicted"]
    assert (found["gain_ratio"]["value"], found["obstacle"]) == (0.0, None)
    assert "Predicted throughput: no change" in invoke("what-if", "run").stdout


@pytest.mark.parametrize("columns", [80, 120])
def test_the_answer_fits_the_terminal_and_sets_the_run_beside_what_was_asked(columns: int) -> None:
    asked = ("--trainer-gpus", "4", "--trainer-speed", "0.5", "--max-staleness", "3", "--weight-update-s", "0.2")
    done = invoke("what-if", "run", *asked, columns=columns)
    assert max(map(cell_len, done.stdout.splitlines())) <= columns
    assert "…" not in done.stdout
    rows = {line[:22].strip(): line[22:].split() for line in done.stdout.splitlines()}
    assert rows["trainer GPUs"] == ["2", "4"]
    assert rows["sampler GPUs"] == ["6", "4"]
    assert rows["training speed"] == ["0.5×"]
    assert "samples per step" not in rows
    assert rows["staleness cap"] == ["none", "3"]
    assert rows["weight update time"] == ["100", "ms", "200", "ms"]
    assert "Training was measured on one number of GPUs only" in " ".join(done.stdout.split())


def test_limits_stand_beside_those_of_the_run_and_a_version_of_several_steps_is_explained() -> None:
    done = invoke(
        "what-if", "run", "--queue-capacity-samples", "0", "--max-in-flight-samples", "800", "--publish-every", "4"
    )
    rows = {line[:24].strip(): line[24:].split() for line in done.stdout.splitlines()}
    assert rows["queue capacity"] == ["512", "none"]
    assert rows["max samples in flight"] == ["none", "800"]
    assert rows["steps per weight update"] == ["1", "4"]
    assert "Staleness is in versions: a version is 4 optimizer steps with the change and 1 now." in done.stdout
    assert "Staleness is in versions" not in invoke("what-if", "run", "--publish-every", "1").stdout


def test_what_cannot_run_is_an_answer_with_the_reason_and_no_figures() -> None:
    done, found = invoke("what-if", "run", "--samples-per-step", "1024"), document("run", "--samples-per-step", "1024")
    assert done.exit_code == 0
    assert "Infeasible: the queue holds fewer complete groups than a step needs" in done.stdout
    assert "trained tokens/s " not in done.stdout
    assert found["obstacle"] == "queue_capacity_samples"
    layout = {"trainer_gpus": 2, "sampler_gpus": 6, "max_running": 64}
    assert {name: value for name, value in found["predicted"].items() if value is not None} == layout
    assert {name: value for name, value in found["asked"].items() if value is not None} == {"samples_per_step": 1024}
    # Nor is a target called reached that no number of GPUs can run for.
    done = invoke("what-if", "run", "--target-tokens-per-s", "100", "--queue-capacity-samples", "8")
    assert "Infeasible: the queue holds fewer complete groups than a step needs" in " ".join(done.stdout.split())
    assert "fewest GPUs" not in done.stdout and "number of GPUs was given" not in done.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--trainer-gpus", "3"), "trainer GPUs come in multiples of 2"),
        (("--total-gpus", "8", "--target-tokens-per-s", "100"), "a target or a number of GPUs, not both"),
        (("--target-tokens-per-s", "0"), "--target-tokens-per-s"),
        (("--trainer-speed", "nan"), "--trainer-speed"),
        (("--publish-every", "391"), "100,096 samples between two weight updates; at most 100,000"),
    ],
)
def test_a_question_that_makes_no_sense_is_a_usage_error(options: tuple[str, ...], message: str) -> None:
    done = invoke("what-if", "run", *options)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.replace("│", " ").split())
    assert done.stdout == ""


def test_a_model_that_does_not_reproduce_its_run_predicts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    replay = model().replay
    rate = replace(replay.rate, measured=1_000.0, replayed=270.0)
    off = replace(model(), replay=replace(replay, compared=(rate, *replay.compared[1:])))
    monkeypatch.setattr("rlscope.pipeline.analyze", lambda _folder, **_: replace(full_analysis(), model=off))
    with pytest.raises(AnalysisError, match=r"does not reproduce the run: the replayed rate is −73\.0% from"):
        rlscope.analyze("runs/1").what_if(max_staleness=4)


def test_a_model_that_missed_the_held_out_steps_says_so_first(monkeypatch: pytest.MonkeyPatch) -> None:
    rough = replace(model(), warnings=(*model().warnings, ModelWarning.PREDICTION_MISSED))
    known = replace(full_analysis(), model=rough)
    monkeypatch.setattr("rlscope.pipeline.analyze", lambda _folder, **_: known)
    done = invoke("what-if", "run", "--max-running", "48", "--json", "-")
    assert json.loads(done.stdout)["warnings"][0] == "prediction_missed"
    assert "! The throughput that was predicted from the first half" in next(
        line for line in done.stderr.splitlines() if line.startswith("!")
    )


def test_a_run_that_the_model_says_nothing_of_is_an_error_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = replace(full_analysis(), model=NoModelResult("no pass was recorded"))
    monkeypatch.setattr("rlscope.pipeline.analyze", lambda _folder, **_: nothing)
    with pytest.raises(AnalysisError, match=r"found no model: no pass was recorded; expected .* or `rlscope plan`"):
        rlscope.analyze("runs/1").what_if()


def test_a_target_is_answered_with_the_fewest_gpus_and_how_surely_they_reach_it() -> None:
    done = invoke("what-if", "run", "--target-tokens-per-s", "4000.5")
    text = " ".join(done.stdout.split())
    assert "The fewest GPUs predicted to reach 4,000.5 tokens/s, in their fastest split." in text
    assert re.search(r"Probability of reaching it: \d+(\.\d)?%", text)
