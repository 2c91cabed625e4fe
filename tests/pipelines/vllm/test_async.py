"""AsyncLLM, recorded in its engine core's process by the plug-in alone: no call of ours in the program."""

import pytest

from rlscope.pipeline import analyze
from tests.journals import recorded_rows
from tests.pipelines.vllm.async_program import REQUESTS, RESPONSE_TOKENS, TOKENS_BETWEEN
from tests.pipelines.vllm.programs import run_program

pytestmark = pytest.mark.vllm


class Recorded:
    def __init__(self, run_dir):
        self.said = run_program("async_program", run_dir)
        self.analysis = analyze(run_dir)
        self.run_dir = run_dir
        self.samples = {row["sample_id"]: row for row in self.rows("samples")}

    def rows(self, table):
        return recorded_rows(self.run_dir, table)

    def seconds_of(self, state):
        return sum(found.gpu_ns for found in self.analysis.ledger.states if found.state == state) / 1e9


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return Recorded(tmp_path_factory.mktemp("runs") / "async")


def test_there_is_one_worker_and_it_owns_the_engine_s_device(recorded):
    (worker,) = recorded.analysis.answers["worker_extents"].iter_rows(named=True)
    assert (worker["worker_id"], worker["role"], worker["gpu_count"], worker["has_end"]) == (
        "engine",
        "sampler",
        1,
        True,
    )


def test_the_versions_of_every_sample_are_those_that_the_front_end_got(recorded):
    said = {name: sample["spans"] for name, sample in recorded.said["samples"].items()}
    assert len(said) == REQUESTS  # the first one and all but the cancelled one
    assert {
        name: [
            [str(run["version"] or "default"), run["start"], run["end"]] for run in recorded.samples[name]["versions"]
        ]
        for name in said
    } == said
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
    assert recorded.seconds_of("applying_weights") >= recorded.said["paused_s"]
    assert recorded.seconds_of("no_requests") >= recorded.said["quiet_s"]
    assert recorded.seconds_of("startup") > 0


def test_nothing_is_lost_and_nearly_all_time_is_explained(recorded):
    ledger, quality = recorded.analysis.ledger, recorded.analysis.data_quality
    assert sum(state.gpu_ns for state in ledger.states) == ledger.total_gpu_ns
    assert recorded.seconds_of("unattributed") < 0.05 * ledger.total_gpu_ns / 1e9
    assert sum(quality.dropped_rows.values()) == 0
    assert recorded.analysis.answers["row_faults"].is_empty()


def test_tokens_of_passes_and_of_samples_are_the_same_tokens(recorded):
    assert sum(row["decode_tokens"] for row in recorded.rows("engine_steps")) == sum(
        row["output_tokens"] for row in recorded.samples.values()
    )
