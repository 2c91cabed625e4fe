"""AsyncLLM, recorded in its engine core's process by the plug-in alone: no call of ours in the program."""

import pytest

from tests.pipelines import processes
from tests.pipelines.processes import assert_accounted
from tests.pipelines.vllm.async_program import REQUESTS, RESPONSE_TOKENS, TOKENS_BETWEEN

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return processes.recorded(tmp_path_factory.mktemp("runs") / "async", "tests.pipelines.vllm.async_program")


def test_there_is_one_worker_and_it_owns_the_engine_s_device(recorded):
    (worker,) = recorded.analysis.answers["worker_extents"].iter_rows(named=True)
    about = (worker["worker_id"], worker["role"], worker["gpu_count"], worker["has_end"])
    assert about == ("engine", "sampler", 1, True)


def test_the_versions_of_every_sample_are_those_that_the_front_end_got(recorded):
    said = {name: sample["spans"] for name, sample in recorded.counted["samples"].items()}
    assert len(said) == REQUESTS  # the first one and all but the cancelled one
    for name, spans in said.items():
        versions = recorded.samples[name]["versions"]
        assert [[str(run["version"] or "default"), run["start"], run["end"]] for run in versions] == spans
    assert max(len(spans) for spans in said.values()) == 4


def test_all_samples_are_there_and_only_the_cancelled_one_was_aborted(recorded):
    assert {row["version_source"] for row in recorded.samples.values()} == {"engine"}
    assert {name: row["finish_reason"] for name, row in recorded.samples.items()} == {
        "first": "length",
        **{f"request-{number}": "length" for number in range(REQUESTS - 1)},
        f"request-{REQUESTS - 1}": "abort",
    }
    assert recorded.samples["request-0"]["output_tokens"] == RESPONSE_TOKENS


def test_each_update_says_whether_generation_stopped_and_what_became_of_the_cache(recorded):
    rows = recorded.rows("weight_updates")
    said = [(row["version"], row["label"], row["paused"], row["kv"]) for row in rows if row["phase"] == "apply"]
    assert said == [(1, "1", True, "kept"), (2, "2", True, "recomputed"), (3, "3", False, "kept")]
    parts = sorted((row["version"], row["phase"]) for row in rows if row["phase"] != "apply")
    assert parts == [(1, "drain"), (1, "resume"), (2, "drain"), (2, "resume")]


def test_only_the_update_without_a_pause_tears_tokens(recorded):
    torn = recorded.samples["request-0"]["torn_tokens"]
    assert TOKENS_BETWEEN <= torn < RESPONSE_TOKENS
    assert recorded.samples["first"]["torn_tokens"] is None


def test_the_cache_that_was_thrown_away_preempted_what_was_running(recorded):
    assert recorded.samples["request-0"]["preemptions"] == 1


def test_the_pauses_are_weight_updates_in_the_ledger_and_the_quiet_is_a_lack_of_requests(recorded):
    spent_ns = recorded.states()
    assert spent_ns["applying_weights"] >= recorded.counted["paused_s"] * 1e9
    assert spent_ns["no_requests"] >= recorded.counted["quiet_s"] * 1e9
    assert spent_ns["startup"] > 0


def test_nothing_is_lost_and_nearly_all_time_is_explained(recorded):
    assert_accounted(recorded.analysis, unattributed_ratio=0.05)
