"""Other runs beside the one that is analyzed: whose trainers may be compared, what is read of them, what is said."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.token_simulator import Layout, Limits, simulate_world
from benchmarks.token_simulator.cases import PLAIN
from rlscope.analysis.other_runs import read_other_runs
from rlscope.analysis.result import Constraints
from rlscope.document import as_dict
from rlscope.errors import AnalysisError, RunFolderError
from rlscope.model.forecast.change import Change
from rlscope.model.forecast.result import ModelResult, model_run
from rlscope.model.forecast.what_if import what_if
from rlscope.model.observed import OtherRun
from rlscope.model.system import Admission
from rlscope.model.warnings import ModelWarning
from rlscope.pipeline import analyze
from rlscope.reports.documents.model import training_scaling
from rlscope.reports.documents.what_if import what_if_document
from rlscope.reports.text import what_if as what_if_words
from rlscope.reports.text.model import remarks
from rlscope.reports.text.names import scaling_sentence
from rlscope.trace.store import open_run
from tests.cli.command import invoke
from tests.model.few_draws import few_draws
from tests.model.known_run import QUESTION, TODAY, TRUTH, candidates_of, observed
from tests.trace_folder import damaged, delivery_row, sample_row, train_row, worker, write_rows, write_run

MS = 10**6
MODEL = {"name": "m", "parameters": 7_000_000_000, "layers": 32, "bytes_per_weight": 2, "bytes_per_kv": 2}
CONFIG = {"model": MODEL, "framework": "made", "gpus_per_trainer_replica": 1}


def record(folder: Path, trainers: int = 2, steps: int = 14, tokens: int = 1_000, **config: Any) -> Path:
    """Steps of 400 ms on two trainers, less on more, every 500 ms; after five slower ones."""
    names = [f"t{number}" for number in range(trainers)]
    rows = []
    for step in range(1, steps + 6):
        end_ns = 500 * MS * step + 2_000 * MS * min(step, 5)
        for name in names:
            start_ns = end_ns - 800 * MS // trainers
            rows.append(train_row(name, start_ns, end_ns, step, samples=4, tokens=tokens // trainers))
    stop_ns = rows[-1]["end_ns"]
    workers = [worker(name, "trainer", 0, stop_ns, device_name=config.pop("device", None)) for name in names]
    given = {name: value for name, value in {**CONFIG, **config}.items() if value is not None}
    return write_run(folder, workers, given, train_steps=rows)


def read(run: Path, *others: Path) -> tuple[OtherRun, ...]:
    with open_run(run) as opened:
        return read_other_runs(opened, others, lambda _doing: None)


def test_the_steady_train_steps_of_another_run_are_read_whatever_else_is_damaged(tmp_path: Path) -> None:
    own, other = record(tmp_path / "own"), record(tmp_path / "other", trainers=4)
    write_rows(other, "samples", "e0", [sample_row("a", "e0", [(0, 0, 1)])])
    damaged(write_rows(other, "deliveries", "t0", [delivery_row(f"{step}", "t0", step=step) for step in range(20)]))
    (found,) = read(own, other)
    assert (found.trainer_gpus, found.warnings) == (4, ())
    assert found.steps.period_s == pytest.approx([0.5] * 14)
    assert found.steps.train_s == pytest.approx([0.2] * 14)
    assert found.steps.tokens.tolist() == [1_000] * 14


@pytest.mark.parametrize("name", ["train_steps/t3-000001.parquet", "workers/t3.json"])
def test_a_run_of_whose_trainers_some_cannot_be_read_is_an_error(tmp_path: Path, name: str) -> None:
    # The others would pass for all of them: three trainers that do three quarters of the tokens in the same time.
    own, other = record(tmp_path / "own"), record(tmp_path / "other", trainers=4)
    damaged(other / name) if name.endswith(".parquet") else (other / name).write_text("{")
    with pytest.raises(AnalysisError, match=f"other: found {name} that cannot be read; expected all of its trainers"):
        read(own, other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model": {**MODEL, "parameters": 8}},
            r"config.model.parameters = 8; expected 7000000000, as in the analyzed",
        ),
        ({"model": {"name": "other"}}, "config.model.name = 'other'; expected 'm'"),
        ({"framework": "another"}, "config.framework = 'another'; expected 'made'"),
        ({"gpus_per_trainer_replica": 2}, "config.gpus_per_trainer_replica = 2; expected 1"),
        ({"device": "NVIDIA L4"}, "the trainers' GPUs = 'NVIDIA L4'; expected 'NVIDIA H100'"),
        ({"steps": 2}, "found 7 steps cannot show a steady state, .*; expected a run with a steady state"),
        ({"tokens": 0}, "found no step in its steady state says how many tokens it trained on"),
    ],
)
def test_a_run_whose_trainers_are_others_or_unknown_is_an_error_that_names_it(
    tmp_path: Path, change: Mapping[str, Any], message: str
) -> None:
    own, other = record(tmp_path / "own", device="NVIDIA H100"), record(tmp_path / "other", trainers=4, **change)
    with pytest.raises(AnalysisError, match=f"other: .*{message}"):
        read(own, other)


@pytest.mark.parametrize(
    ("change", "cautions"),
    [
        ({}, ()),
        ({"model": {**MODEL, "name": "checkpoint-100", "bytes_per_weight": 1}}, ()),
        ({"model": None}, ("model_not_recorded",)),
        ({"model": {"experts": 8}}, ("model_not_recorded",)),
        ({"framework": None, "gpus_per_trainer_replica": None}, ()),
        ({"max_staleness": 3, "trainer_gpus": 4}, ()),
    ],
)
def test_what_is_not_recorded_or_bears_less_on_training_is_a_caution(
    tmp_path: Path, change: Mapping[str, Any], cautions: tuple[ModelWarning, ...]
) -> None:
    (found,) = read(record(tmp_path / "own"), record(tmp_path / "other", trainers=4, **change))
    assert found.warnings == cautions


def test_each_run_is_named_once(tmp_path: Path) -> None:
    own, other = record(tmp_path / "own"), record(tmp_path / "other", trainers=4)
    for again in ((own,), (other, tmp_path / "own" / ".." / "other")):
        with pytest.raises(AnalysisError, match="found a run that is already given"):
            read(own, *again)


@pytest.mark.parametrize("command", ["analyze", "what-if"])
def test_a_folder_that_is_no_run_ends_each_command_before_the_analysis(tmp_path: Path, command: str) -> None:
    own = record(tmp_path / "own")
    with pytest.raises(RunFolderError, match="nowhere: found no such file or folder"):
        invoke(command, own, "--also", tmp_path / "nowhere")
    assert not (own / "report.html").exists()


@cache
def at(trainers: int, *, lengths: float = 1.0) -> OtherRun:
    """A run of the known truth with so many trainer GPUs."""
    steps = observed(TRUTH, replace(TODAY, trainer_gpus=trainers), seed=trainers).steps
    tokens, train_s = np.rint(steps.tokens * lengths).astype(np.int64), steps.train_s * lengths
    return OtherRun(f"with-{trainers}", trainers, replace(steps, train_s=train_s, tokens=tokens))


@cache
def model(*others: OtherRun) -> ModelResult:
    """Two trainer GPUs and six engines; training scales perfectly."""
    candidates = candidates_of(Admission(queue_capacity_samples=512))
    with few_draws(calibrations=200):
        return model_run(observed(), None, replace(QUESTION, candidates=candidates, others=others))


def test_another_run_makes_the_exponent_measured_and_surer() -> None:
    documents: list[Any] = [as_dict(training_scaling(said)) for said in (model(), model(at(4)))]
    alone, heard = documents
    assert (alone["measured"], alone["trainer_gpus"], alone["also_analyzed"]) == (False, [2], [])
    assert (heard["measured"], heard["trainer_gpus"]) == (True, [2, 4])
    assert heard["also_analyzed"] == [{"run_id": "with-4", "trainer_gpus": 4, "warnings": []}]
    surer, unsure = heard["exponent"], alone["exponent"]
    assert surer["high"] - surer["low"] < (unsure["high"] - unsure["low"]) / 2
    assert surer["low"] < 1.0 < surer["high"]


@pytest.mark.parametrize(
    ("other", "cautions"),
    [
        (at(4), ()),
        (at(2), ("same_trainers",)),
        (at(4, lengths=1.3), ("other_lengths",)),
        (at(4, lengths=0.7), ("other_lengths",)),
        (at(4, lengths=1.2), ()),
    ],
)
def test_what_shows_only_beside_the_run_is_a_caution_too(other: OtherRun, cautions: tuple[ModelWarning, ...]) -> None:
    assert other.beside(observed()).warnings == cautions


def test_runs_that_differ_in_more_than_their_gpus_are_said_to() -> None:
    contradiction = "No single scaling exponent fits the other runs"
    agreeing = model(at(4))
    training = replace(agreeing.calibration.training, scaling_contradicted=True)
    contradicting = replace(agreeing, calibration=replace(agreeing.calibration, training=training))
    for said, contradicted in ((agreeing, False), (contradicting, True)):
        assert training_scaling(said).contradicted == contradicted
        assert any(line.startswith(contradiction) for line in remarks(said)) == contradicted


@pytest.mark.parametrize(
    ("others", "trainers", "line"),
    [
        ((), 3, "Training was measured on one number of GPUs only"),
        ((at(4),), 3, None),
        ((at(4),), 4, None),
        ((at(4),), 5, "Extrapolated: more or fewer trainer GPUs than in any of the runs."),
    ],
)
def test_a_what_if_doubts_the_scaling_only_beyond_the_numbers_of_gpus_that_were_seen(
    others: tuple[OtherRun, ...], trainers: int, line: str | None
) -> None:
    said = model(*others)
    answer = what_if(said, Change(trainer_gpus=trainers))
    assert ("training_scaling" in answer.warnings) == (line is not None)
    lines = what_if_words.what_if_lines(said, answer)
    assert line is None or lines[0].startswith(line)
    assert (scaling_sentence(said) in lines) == bool(others)
    assert what_if_document(said, answer).training_scaling == training_scaling(said)


def test_a_recorded_run_hears_another_one(tmp_path: Path) -> None:
    training = replace(PLAIN.training, scaling_exponent=0.7, noise_sd=0.01)
    world = replace(PLAIN, training=training, limits=Limits(), kv_capacity_tokens=None)
    for trainers in (4, 2):
        simulate_world(world, Layout(trainers, 8 - trainers, 16), 20, trainers, tmp_path / str(trainers))
    with few_draws(calibrations=200):
        said = analyze(tmp_path / "4", constraints=Constraints(also=(tmp_path / "2",)), also_ask=()).model
    assert isinstance(said, ModelResult)
    training = said.calibration.training
    assert (training.trainer.seen_gpus, training.scaling_seen_at) == (4, (2,))
    assert training.trainer.scaling_exponent == pytest.approx(0.7, abs=0.06)
    assert [other.warnings for other in said.others] == [("model_not_recorded",)]
