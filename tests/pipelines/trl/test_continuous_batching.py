"""transformers' continuous batching, for real: what its hook recorded is what the engine itself gave and scheduled."""

from collections import Counter

import pytest

from tests.pipelines import processes
from tests.pipelines.processes import assert_accounted

pytestmark = pytest.mark.pipelines


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return processes.recorded(tmp_path_factory.mktemp("batching"), "tests.pipelines.trl.batching_run")


def test_every_request_is_one_sample_with_the_tokens_of_its_result(recorded):
    samples = recorded.rows("samples")
    assert {row["sample_id"]: row["output_tokens"] for row in samples} == recorded.counted["tokens"]
    assert len(samples) == len(recorded.counted["tokens"])
    assert {row["finish_reason"] for row in samples} <= {"stop", "length"}


def test_engine_steps_are_the_batches_that_the_engine_prepared(recorded):
    steps = recorded.rows("engine_steps")
    assert [row["running"] for row in steps] == recorded.counted["batches"]
    assert sum(row["decode_tokens"] for row in steps) == sum(recorded.counted["tokens"].values())
    assert all(0 < row["busy_ns"] <= row["end_ns"] - row["start_ns"] for row in steps)
    # A token that is decoded is a query of its own; all other queries are prompts, computed again after a preemption.
    decoded_alone = sum(recorded.counted["tokens"].values()) - len(recorded.counted["tokens"])
    preemptions = sum(row["preemptions"] for row in steps)
    queries = sum(recorded.counted["queries"])
    assert sum(row["prefill_tokens"] for row in steps) == queries - decoded_alone + preemptions


def test_with_too_little_cache_requests_are_preempted_and_the_cache_is_never_over_full(recorded):
    steps, samples = recorded.rows("engine_steps"), recorded.rows("samples")
    preemptions = sum(row["preemptions"] for row in steps)
    assert preemptions == sum(row["preemptions"] for row in samples) > 0
    assert max(row["kv_used_tokens"] for row in steps) <= recorded.counted["capacity_tokens"]
    assert max(row["kv_used_tokens"] for row in steps) > recorded.counted["capacity_tokens"] / 2


def test_tokens_are_of_the_version_whose_update_ended_before_their_pass(recorded):
    updates = recorded.updates("apply")
    versions = list(range(1, recorded.counted["updates"] + 1))
    assert [(row["version"], row["paused"], row["kv"]) for row in updates] == [
        (each, True, "kept") for each in versions
    ]
    for part in ("drain", "resume"):
        assert [row["version"] for row in recorded.updates(part)] == versions
    assert len(recorded.rows("activities", activity="weight_update")) == len(versions)
    expected: Counter[int] = Counter()
    for row in recorded.rows("engine_steps"):
        expected[sum(update["end_ns"] <= row["start_ns"] for update in updates)] += row["decode_tokens"]
    assert recorded.tokens_by_version() == +expected


def test_the_engine_s_time_is_accounted_for(recorded):
    assert_accounted(recorded.analysis)
    assert {"decoding", "mixed_passes", "between_passes", "applying_weights"} <= recorded.states().keys()
