"""An engine in the program's own process: the trace says of each pass and each sample what vLLM says itself."""

from dataclasses import dataclass
from typing import Any

import pytest

from rlscope.analysis.result import AnalysisResult
from rlscope.pipeline import analyze
from tests.journals import recorded_rows
from tests.pipelines.vllm.programs import run_program

pytestmark = pytest.mark.vllm


@dataclass(frozen=True, slots=True)
class Recorded:
    regime: str
    said: dict[str, Any]
    passes: list[dict[str, Any]]
    samples: dict[str, dict[str, Any]]
    updates: list[dict[str, Any]]
    analysis: AnalysisResult


@pytest.fixture(scope="module", params=["calm", "pressure"])
def recorded(request, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("runs") / request.param
    said = run_program("engine_program", run_dir, request.param)

    def rows(table):
        return recorded_rows(run_dir, table)

    samples = {row["sample_id"]: row for row in rows("samples")}
    return Recorded(request.param, said, rows("engine_steps"), samples, rows("weight_updates"), analyze(run_dir))


def test_every_pass_has_the_batch_and_the_tokens_that_vllm_says(recorded):
    said = [(one["running"], one["sampled_tokens"], one["waiting"]) for one in recorded.said["passes"]]
    assert [(row["running"], row["decode_tokens"], row["waiting"]) for row in recorded.passes] == said


@pytest.mark.parametrize("recorded", ["calm"], indirect=True)
def test_without_preemptions_prompt_tokens_are_those_that_vllm_says(recorded):
    assert [row["prefill_tokens"] for row in recorded.passes] == [
        one["prompt_tokens"] for one in recorded.said["passes"]
    ]
    assert sum(row["preemptions"] for row in recorded.passes) == 0


@pytest.mark.parametrize("recorded", ["pressure"], indirect=True)
def test_what_a_preemption_lost_is_prompt_again(recorded):
    said = recorded.said["passes"]
    assert sum(row["preemptions"] for row in recorded.passes) == sum(one["preempted"] for one in said) > 0
    lost_tokens = sum(row["prefill_tokens"] for row in recorded.passes) - sum(one["prompt_tokens"] for one in said)
    ones_of_decoding = sum(row["decode_tokens"] for row in recorded.passes)
    assert 0 < lost_tokens < sum(one["scheduled_tokens"] for one in said) - sum(one["prompt_tokens"] for one in said)
    assert ones_of_decoding == sum(one["sampled_tokens"] for one in said)
    said_of_samples = {name: count for one in said for name, count in one["preemptions_of"].items()}
    assert {name: recorded.samples[name]["preemptions"] for name in said_of_samples} == said_of_samples


def test_the_cache_holds_what_vllm_says_wherever_no_request_ended_in_the_pass(recorded):
    capacity_tokens = recorded.said["capacity_tokens"]
    compared = [
        (row["kv_used_tokens"], round(one["kv_usage"] * capacity_tokens))
        for row, one in zip(recorded.passes, recorded.said["passes"], strict=True)
        if not one["finished"]
    ]
    assert len(compared) > 50
    assert [kept for kept, _ in compared] == [said for _, said in compared]


def test_every_sample_is_what_vllm_handed_out(recorded):
    said = recorded.said["samples"]
    assert len(said) == 39
    for name, sample in said.items():
        row = recorded.samples[name]
        versions = [[str(run["version"] or "default"), run["start"], run["end"]] for run in row["versions"]]
        assert versions == sample["spans"]
        assert (row["output_tokens"], row["finish_reason"], row["version_source"]) == (
            sample["tokens"],
            sample["finish_reason"],
            "engine",
        )
    assert max(len(sample["spans"]) for sample in said.values()) == 3


@pytest.mark.parametrize("recorded", ["calm"], indirect=True)
def test_tokens_found_in_the_prefix_cache_are_those_that_vllm_says(recorded):
    said = {name: sample["cached_tokens"] for name, sample in recorded.said["samples"].items()}
    assert {name: recorded.samples[name]["cached_tokens"] for name in said} == said
    assert sum(said.values()) > 0


def test_the_aborted_request_is_a_sample_that_was_aborted(recorded):
    assert recorded.samples["request-39"]["finish_reason"] == "abort"
    assert len(recorded.samples) == 40


def test_sampled_tokens_of_passes_and_of_samples_are_the_same_tokens(recorded):
    tokens = sum(row["output_tokens"] for row in recorded.samples.values())
    assert tokens == sum(row["decode_tokens"] for row in recorded.passes)
    assert recorded.analysis.answers["token_balance"]["generated_tokens"][0] == tokens


def test_updates_between_steps_stopped_the_engine_and_kept_the_cache(recorded):
    said = [(row["version"], row["label"], row["paused"], row["kv"], row["phase"]) for row in recorded.updates]
    assert said == [(1, "1", True, "kept", "apply"), (2, "2", True, "kept", "apply")]


def test_nothing_is_lost_and_nearly_all_time_is_explained(recorded):
    quality, ledger = recorded.analysis.data_quality, recorded.analysis.ledger
    assert recorded.said["faults"] == {}
    assert sum(quality.dropped_rows.values()) == 0
    assert recorded.analysis.answers["row_faults"].is_empty()
    assert sum(state.gpu_ns for state in ledger.states) == ledger.total_gpu_ns
    assert sum(state.gpu_ns for state in ledger.states if state.state == "unattributed") < 0.1 * ledger.total_gpu_ns
