"""An engine in the program's own process: the trace says of each pass and each sample what vLLM says itself."""

import pytest

from tests.pipelines import processes
from tests.pipelines.processes import assert_accounted

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module", params=["calm", "pressure"])
def recorded(request, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("runs") / request.param
    return processes.recorded(run_dir, "tests.pipelines.vllm.engine_program", request.param)


@pytest.fixture(scope="module")
def passes(recorded):
    return recorded.rows("engine_steps")


def test_every_pass_has_the_batch_and_the_tokens_that_vllm_says(recorded, passes):
    said = [(one["running"], one["sampled_tokens"], one["waiting"]) for one in recorded.counted["passes"]]
    assert [(row["running"], row["decode_tokens"], row["waiting"]) for row in passes] == said


@pytest.mark.parametrize("recorded", ["calm"], indirect=True)
def test_without_preemptions_prompt_tokens_are_those_that_vllm_says(recorded, passes):
    assert [row["prefill_tokens"] for row in passes] == [one["prompt_tokens"] for one in recorded.counted["passes"]]
    assert sum(row["preemptions"] for row in passes) == 0


@pytest.mark.parametrize("recorded", ["pressure"], indirect=True)
def test_what_a_preemption_lost_is_prompt_again(recorded, passes):
    said = recorded.counted["passes"]
    assert sum(row["preemptions"] for row in passes) == sum(one["preempted"] for one in said) > 0
    lost_tokens = sum(row["prefill_tokens"] for row in passes) - sum(one["prompt_tokens"] for one in said)
    ones_of_decoding = sum(row["decode_tokens"] for row in passes)
    assert 0 < lost_tokens < sum(one["scheduled_tokens"] for one in said) - sum(one["prompt_tokens"] for one in said)
    assert ones_of_decoding == sum(one["sampled_tokens"] for one in said)
    said_of_samples = {name: count for one in said for name, count in one["preemptions_of"].items()}
    assert {name: recorded.samples[name]["preemptions"] for name in said_of_samples} == said_of_samples


def test_the_cache_holds_what_vllm_says_wherever_no_request_ended_in_the_pass(recorded, passes):
    capacity_tokens = recorded.counted["capacity_tokens"]
    compared = [
        (row["kv_used_tokens"], round(one["kv_usage"] * capacity_tokens))
        for row, one in zip(passes, recorded.counted["passes"], strict=True)
        if not one["finished"]
    ]
    assert len(compared) > 50
    assert [kept for kept, _ in compared] == [said for _, said in compared]


def test_every_sample_is_what_vllm_handed_out(recorded):
    said = recorded.counted["samples"]
    assert len(said) == 39
    for name, sample in said.items():
        row = recorded.samples[name]
        versions = [[str(run["version"] or "default"), run["start"], run["end"]] for run in row["versions"]]
        assert versions == sample["spans"]
        assert (row["output_tokens"], row["finish_reason"]) == (sample["tokens"], sample["finish_reason"])
        assert row["version_source"] == "engine"
    assert max(len(sample["spans"]) for sample in said.values()) == 3


@pytest.mark.parametrize("recorded", ["calm"], indirect=True)
def test_tokens_found_in_the_prefix_cache_are_those_that_vllm_says(recorded):
    said = {name: sample["cached_tokens"] for name, sample in recorded.counted["samples"].items()}
    assert {name: recorded.samples[name]["cached_tokens"] for name in said} == said
    assert sum(said.values()) > 0


def test_the_aborted_request_is_a_sample_that_was_aborted(recorded):
    assert recorded.samples["request-39"]["finish_reason"] == "abort"
    assert len(recorded.samples) == 40


def test_sampled_tokens_of_passes_and_of_samples_are_the_same_tokens(recorded, passes):
    tokens = sum(row["output_tokens"] for row in recorded.samples.values())
    assert tokens == sum(row["decode_tokens"] for row in passes)
    assert recorded.analysis.answers["token_balance"]["generated_tokens"][0] == tokens


def test_updates_between_steps_stopped_the_engine_and_kept_the_cache(recorded):
    updates = recorded.rows("weight_updates")
    said = [(row["version"], row["label"], row["paused"], row["kv"], row["phase"]) for row in updates]
    assert said == [(1, "1", True, "kept", "apply"), (2, "2", True, "kept", "apply")]


def test_nothing_is_lost_and_nearly_all_time_is_explained(recorded):
    assert recorded.counted["faults"] == {}
    assert_accounted(recorded.analysis, unattributed_ratio=0.1)
