"""What rlscope finds in a run of AReaL's own executor is what its manager, its servers and its workflow counted."""

from collections import Counter

import pytest

from tests.pipelines import processes
from tests.pipelines.processes import assert_accounted

pytestmark = pytest.mark.frameworks

GROUPS_A_STEP, CAP, PROMPT_TOKENS = 3, 2, 4


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("areal") / "run"
    switches = {"WORKER_ID": "trainer-0", "GPU_COUNT": "4", "RUN_DIR": str(run_dir)}
    switches = {f"RLSCOPE_{name}": value for name, value in switches.items()} | {"AREAL_SPMD_MODE": "1"}
    return processes.recorded(run_dir, "tests.pipelines.frameworks.areal_run", **switches)


def group_of(sample_id):
    return sample_id.rsplit("/", 1)[0]


def test_steps_samples_and_tokens_are_what_the_trainer_took(recorded):
    facts, steps = recorded.analysis.run, recorded.counted["steps"]
    assert facts.steps == len(steps)
    assert facts.samples_trained == sum(step["samples"] for step in steps)
    assert facts.tokens_trained == sum(sum(step["tokens_by_sample"]) for step in steps)
    assert [row["version_in"] for row in recorded.rows("train_steps")] == [step["version"] for step in steps]
    found = [(row["version_out"], row["samples"], row["tokens"]) for row in recorded.rows("train_steps")]
    assert found == [
        (step["version"] + 1, step["samples"], sum(step["tokens_by_sample"]) + PROMPT_TOKENS * step["samples"])
        for step in steps
    ]


def test_the_samples_of_each_step_have_the_tokens_and_rewards_that_it_saw(recorded):
    tokens = recorded.tokens_by_sample()
    for step in recorded.counted["steps"]:
        trained = recorded.rows("deliveries", outcome="trained", step=step["version"])
        assert sorted(tokens[row["sample_id"]] for row in trained) == sorted(step["tokens_by_sample"])
        # The reward of an episode is its length, so that each reward tells whose it is.
        assert all(row["reward"] == tokens[row["sample_id"]] for row in trained)
        assert all(row["queued_ns"] <= row["taken_ns"] for row in trained)


def test_token_staleness_is_what_the_tokens_themselves_say(recorded):
    counted = Counter(age for step in recorded.counted["steps"] for age in step["token_staleness"])
    tokens = recorded.analysis.staleness.tokens
    assert dict(tokens.histogram) == counted
    assert recorded.analysis.staleness.version_source_tokens == {"segment": counted.total()}


def test_the_runs_of_versions_are_the_servers_own_count(recorded):
    counted = {int(version): count for version, count in recorded.counted["tokens_by_version"].items()}
    assert recorded.tokens_by_version() == counted
    assert any(len(row["versions"]) > 1 for row in recorded.rows("samples"))


def test_each_request_of_an_episode_is_a_segment_in_the_group_of_its_task(recorded):
    rows = recorded.rows("samples")
    assert {(row["prompt_tokens"] == PROMPT_TOKENS, row["segment"]) for row in rows} == {(True, 0), (False, 1)}
    assert {row["finish_reason"] for row in rows} <= {"length", "abort"}
    assert all(row["group_id"] == group_of(row["sample_id"]) for row in rows)


def test_accepted_and_rejected_are_what_the_staleness_manager_counted(recorded):
    finished = {group_of(row["sample_id"]) for row in recorded.rows("samples")}
    out = {group_of(row["sample_id"]) for row in recorded.rows("deliveries", outcome="abandoned")}
    in_task: dict[str, set[str]] = {}
    for row in recorded.rows("deliveries"):
        in_task.setdefault(group_of(row["sample_id"]), set()).add(row["outcome"])
    out |= {group for group, outcomes in in_task.items() if outcomes == {"filtered"}} - waiting_groups(recorded)
    assert len(out) == recorded.counted["rejected_tasks"]
    assert len(finished - out) == recorded.counted["accepted_tasks"]


def waiting_groups(recorded):
    """Accepted groups that no step took: only what they left empty has an outcome yet."""
    delivered = {row["sample_id"] for row in recorded.rows("deliveries")}
    return {group_of(row["sample_id"]) for row in recorded.rows("samples") if row["sample_id"] not in delivered}


def test_what_is_left_undelivered_is_accepted_and_waits(recorded):
    taken = len(recorded.counted["steps"]) * GROUPS_A_STEP
    assert len(waiting_groups(recorded)) == recorded.counted["accepted_tasks"] - taken
    last = recorded.rows("queue_depths")[-1]["depth"]
    delivered = {row["sample_id"] for row in recorded.rows("deliveries")}
    assert last == len(recorded.tokens_by_sample().keys() - delivered)


def test_empty_and_failed_episodes_are_never_trained(recorded):
    ended = recorded.counted["episodes"]
    assert len(recorded.tokens_by_sample()) == sum(ended.values())
    assert len(recorded.rows("deliveries", outcome="trained")) <= ended["kept"]
    assert len(recorded.rows("deliveries", outcome="abandoned")) >= ended["failed"] + ended["cancelled"] > 0


def test_the_cap_is_the_run_s_and_what_exceeds_it_is_counted(recorded):
    assert recorded.config == {
        "framework": "areal",
        "staleness_policy": "admission",
        "max_staleness": CAP,
        "areal_consumer_batch_groups": GROUPS_A_STEP,
        "areal_max_concurrent_groups": 4,
    }
    ages = [age for step in recorded.counted["steps"] for age in step["token_staleness"]]
    assert recorded.analysis.staleness.over_cap_tokens == sum(age > CAP for age in ages)


def test_the_trainer_s_scopes_are_as_many_and_as_long_as_areal_s_own(recorded):
    timings, own = recorded.counted["timings"], {"worker_id": "trainer-0"}
    found = {
        "rollout": recorded.rows("activities", activity="wait", reason="samples", **own),
        "recompute_logp": recorded.rows("activities", activity="logprobs", **own),
        "save": recorded.rows("activities", activity="checkpoint", **own),
        "train_step": recorded.rows("train_steps"),
        "update_weights": recorded.updates("publish"),
    }
    for name, rows in found.items():
        assert len(rows) == timings[f"timeperf/{name}__count"]
        mean_s = sum(row["end_ns"] - row["start_ns"] for row in rows) / len(rows) / 1e9
        assert mean_s >= timings[f"timeperf/{name}"]
    assert [row["version"] for row in found["update_weights"]] == [1, 2, 3, 4, 5, 6]
    applied = [(row["version"], row["paused"]) for row in recorded.updates("apply")]
    assert applied == [(version, True) for version in range(1, 7)]
    for part in ("drain", "resume"):
        assert [row["version"] for row in recorded.updates(part)] == [1, 2, 3, 4, 5, 6]


def test_both_sides_are_in_the_ledger_and_nothing_is_missing(recorded):
    facts, samplers = recorded.analysis.run, recorded.states("sampler")
    assert (facts.trainer_gpus, facts.sampler_gpus) == (4, 2)
    assert samplers["generating"] > samplers["applying_weights"] > 0
    assert samplers["unattributed"] < 0.2 * sum(samplers.values())
    assert_accounted(recorded.analysis)
