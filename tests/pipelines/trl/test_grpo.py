"""TRL's synchronous GRPOTrainer, for real: what its hook recorded is what reward function and trainer counted."""

from collections import Counter

import pytest

from tests.pipelines import processes
from tests.pipelines.processes import assert_accounted

pytestmark = pytest.mark.pipelines


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return processes.recorded(tmp_path_factory.mktemp("grpo"), "tests.pipelines.trl.grpo_run")


def test_samples_are_the_completions_that_the_reward_function_saw(recorded):
    samples = recorded.rows("samples")
    assert [row["output_tokens"] for row in samples] == recorded.counted["scored_tokens"]
    # Three generations of sixteen, in groups of four.
    names = [(f"{number // 16}-{number % 16}", f"{number // 16}-{number % 16 // 4}") for number in range(48)]
    assert [(row["sample_id"], row["group_id"]) for row in samples] == names
    assert all(row["submitted_ns"] == row["started_ns"] < row["finished_ns"] for row in samples)
    tokens = sum(row["output_tokens"] + row["prompt_tokens"] for row in samples)
    assert tokens == recorded.counted["logged"][-1]["num_tokens"]  # The last step generates, and only then TRL logs it.


def test_steps_are_the_trainer_s_with_its_own_loss(recorded):
    steps = recorded.rows("train_steps")
    assert recorded.analysis.run.steps == len(steps) == recorded.counted["steps"] == 9
    assert [row["version_out"] for row in steps] == [row["version"] for row in recorded.updates("publish")]
    assert [row["loss"] for row in steps] == [entry["loss"] for entry in recorded.counted["logged"]]
    assert [row["grad_norm"] for row in steps] == pytest.approx(
        [entry["grad_norm"] for entry in recorded.counted["logged"]]
    )


def test_each_sample_is_used_as_often_as_the_trainer_iterates(recorded):
    deliveries = recorded.rows("deliveries")
    assert len(deliveries) == recorded.counted["steps"] * recorded.counted["batch"]
    uses = [sum(row["sample_id"] == sample["sample_id"] for row in deliveries) for sample in recorded.rows("samples")]
    # Two generations of sixteen samples for four steps each, and one of which a ninth step uses half.
    assert uses == [2] * 32 + uses[32:] and sorted(uses[32:]) == [0] * 8 + [1] * 8
    assert recorded.analysis.run.samples_trained == recorded.counted["steps"] * recorded.counted["batch"]


def test_staleness_is_the_number_of_steps_since_the_generation(recorded):
    by_step = recorded.analysis.answers["token_staleness"]
    found = {row["step"]: row["staleness"] for row in by_step.iter_rows(named=True)}
    assert found == {step: (step - 1) % 4 for step in range(1, 10)}
    moments = {row["step"]: row["importance"] for row in recorded.rows("train_steps")}
    tokens = {row["step"]: row["tokens"] for row in by_step.iter_rows(named=True)}
    for step, (moment,) in moments.items():
        assert (moment["staleness"], moment["tokens"]) == (found[step], tokens[step])


def test_the_ratio_is_1_before_the_first_step_on_a_generation_and_not_after_it(recorded):
    steps = {row["step"]: row for row in recorded.rows("train_steps")}
    assert steps[5]["fresh_sum_w"] == pytest.approx(steps[5]["fresh_tokens"], abs=1e-3)
    assert steps[8]["fresh_tokens"] is None
    (last,) = steps[8]["importance"]
    assert abs(last["sum_w2"] / last["tokens"] - 1) > 1e-4


def test_the_worker_s_time_is_told_apart(recorded):
    assert {"generating", "reward", "logprobs", "train", "checkpoint"} <= recorded.states().keys()
    # Log-probabilities of the loss are training.
    counts = Counter(row["activity"] for row in recorded.rows("activities"))
    assert counts == {"generate": 3, "logprobs": 3, "reward": 3, "checkpoint": 2}
    assert_accounted(recorded.analysis)


def test_the_settings_are_the_trainer_s(recorded):
    config = recorded.config
    assert (config["samples_per_step"], config["group_size"], config["staleness_policy"]) == (8, 4, "none")
    assert (config["framework"], config["max_output_tokens"], config["total_steps"]) == ("trl", 16, 9)
