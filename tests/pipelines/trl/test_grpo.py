"""TRL's synchronous GRPOTrainer, for real: what its hook recorded is what reward function and trainer counted."""

import json

import pytest

from rlscope.pipeline import analyze
from tests.journals import recorded_rows
from tests.pipelines.processes import run_module

pytestmark = pytest.mark.pipelines


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grpo")
    run_module("tests.pipelines.trl.grpo_run", folder)
    return folder


@pytest.fixture(scope="module")
def counted(run_dir):
    return json.loads((run_dir / "counted.json").read_text())


@pytest.fixture(scope="module")
def analysis(run_dir):
    return analyze(run_dir)


def rows(run_dir, table):
    return recorded_rows(run_dir, table)


def test_samples_are_the_completions_that_the_reward_function_saw(run_dir, counted):
    samples = rows(run_dir, "samples")
    assert [row["output_tokens"] for row in samples] == counted["scored_tokens"]
    tokens = sum(row["output_tokens"] + row["prompt_tokens"] for row in samples)
    assert tokens == counted["logged"][-1]["num_tokens"]  # The last step generates, and only then TRL logs it.


def test_steps_are_the_trainer_s_with_its_own_loss(run_dir, counted, analysis):
    steps = rows(run_dir, "train_steps")
    assert analysis.run.steps == len(steps) == counted["steps"] == 9
    assert [row["loss"] for row in steps] == [entry["loss"] for entry in counted["logged"]]
    assert [row["grad_norm"] for row in steps] == pytest.approx([entry["grad_norm"] for entry in counted["logged"]])


def test_each_sample_is_used_as_often_as_the_trainer_iterates(run_dir, counted, analysis):
    deliveries = rows(run_dir, "deliveries")
    assert len(deliveries) == counted["steps"] * counted["batch"]
    uses = [sum(row["sample_id"] == sample["sample_id"] for row in deliveries) for sample in rows(run_dir, "samples")]
    # Two generations of sixteen samples for four steps each, and one of which a ninth step uses half.
    assert uses == [2] * 32 + uses[32:] and sorted(uses[32:]) == [0] * 8 + [1] * 8
    assert analysis.run.samples_trained == counted["steps"] * counted["batch"]


def test_staleness_is_the_number_of_steps_since_the_generation(analysis, run_dir):
    by_step = analysis.answers["token_staleness"]
    found = {row["step"]: row["staleness"] for row in by_step.iter_rows(named=True)}
    assert found == {step: (step - 1) % 4 for step in range(1, 10)}
    moments = {row["step"]: row["importance"] for row in rows(run_dir, "train_steps")}
    tokens = {row["step"]: row["tokens"] for row in by_step.iter_rows(named=True)}
    for step, (moment,) in moments.items():
        assert (moment["staleness"], moment["tokens"]) == (found[step], tokens[step])


def test_the_ratio_is_1_before_the_first_step_on_a_generation_and_not_after_it(run_dir):
    steps = {row["step"]: row for row in rows(run_dir, "train_steps")}
    assert steps[5]["fresh_sum_w"] == pytest.approx(steps[5]["fresh_tokens"], abs=1e-3)
    assert steps[8]["fresh_tokens"] is None
    (last,) = steps[8]["importance"]
    assert abs(last["sum_w2"] / last["tokens"] - 1) > 1e-4


def test_the_worker_s_time_is_told_apart(analysis):
    states = {state.state for state in analysis.ledger.states}
    assert {"generating", "reward", "logprobs", "train", "checkpoint"} <= states
    assert sum(state.gpu_ns for state in analysis.ledger.states) == analysis.ledger.total_gpu_ns
    assert analysis.answers["row_faults"].rows() == []
