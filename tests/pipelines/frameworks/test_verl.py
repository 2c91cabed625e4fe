"""What rlscope finds in a run of verl's own rollouter, queue and trainer is what each of them counted itself."""

from collections import Counter, defaultdict

import pytest

from tests.pipelines import processes
from tests.pipelines.processes import assert_accounted

pytestmark = pytest.mark.frameworks

GROUP = 2


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("verl") / "run"
    hook = {"VERL_USE_EXTERNAL_MODULES": "rlscope_otel.integrations.verl", "RLSCOPE_RUN_DIR": str(run_dir)}
    return processes.recorded(run_dir, "tests.pipelines.frameworks.verl_run", **hook)


def steps_of(recorded):
    return recorded.counted["trainer"]["steps"]


def test_steps_samples_and_tokens_are_the_trainer_s_own_count(recorded):
    facts, steps = recorded.analysis.run, steps_of(recorded)
    assert facts.steps == len(steps) > 0
    assert facts.samples_trained == sum(len(step["uids"]) for step in steps)
    assert facts.tokens_trained == sum(sum(step["tokens"]) for step in steps)
    found = [(row["loss"], row["grad_norm"], row["reward_mean"]) for row in recorded.rows("train_steps")]
    # The reward of a sample is its length.
    assert found == [(0.5, 2.0, sum(step["tokens"]) / len(step["tokens"])) for step in steps]


def test_each_sample_has_the_tokens_reward_and_step_that_the_trainer_saw(recorded):
    tokens, delivered = recorded.tokens_by_sample(), recorded.rows("deliveries", outcome="trained")
    found = [(row["step"], row["consumer_version"], row["sample_id"], tokens[row["sample_id"]]) for row in delivered]
    seen = [
        (step["step"], step["version"], f"{uid}/{row % GROUP}", count)
        for step in steps_of(recorded)
        for row, (uid, count) in enumerate(zip(step["uids"], step["tokens"], strict=True))
    ]
    assert sorted(found) == sorted(seen)
    assert all(row["reward"] == tokens[row["sample_id"]] for row in delivered)


def test_the_trainer_waits_until_it_takes_the_last_sample_of_a_step_and_then_puts_the_batch_together(recorded):
    taken_ns = {row["step"]: row["taken_ns"] for row in recorded.rows("deliveries", outcome="trained")}
    waits, others = (recorded.rows("activities", activity=activity) for activity in ("wait", "other"))
    assert set(taken_ns.values()) <= {row["end_ns"] for row in waits}
    assert set(taken_ns.values()) <= {row["start_ns"] for row in others}


def test_token_staleness_is_what_the_tokens_themselves_say(recorded):
    tokens = recorded.analysis.staleness.tokens
    counted = Counter(age for step in steps_of(recorded) for age in step["token_staleness"])
    assert dict(tokens.histogram) == counted
    assert recorded.analysis.staleness.version_source_tokens == {"segment": counted.total()}
    # An aborted sample goes on as another row: its versions are those of all of its rows.
    versions: dict[str, set[int]] = defaultdict(set)
    for row in recorded.rows("samples"):
        versions[row["sample_id"]] |= {run["version"] for run in row["versions"]}
    assert any(len(each) > 1 for each in versions.values()), "no sample holds two policy versions"


def test_generated_tokens_and_their_versions_are_the_server_s_own_count(recorded):
    replies: Counter[int] = Counter()
    for version, tokens in recorded.counted["server"]:
        replies[version] += tokens
    assert recorded.tokens_by_version() == +replies
    assert len(recorded.rows("samples")) == len(recorded.counted["server"])
    assert recorded.analysis.answers["token_balance"]["generated_tokens"][0] == replies.total()


def test_the_queue_s_depth_and_drops_are_the_queue_s_own_statistics(recorded):
    statistics, depths = recorded.counted["queue"], recorded.rows("queue_depths")
    dropped = recorded.rows("deliveries", outcome="dropped_stale")
    assert len(dropped) == statistics["dropped_samples"] * GROUP > 0
    assert len(depths) == statistics["total_produced"] + statistics["total_consumed"]
    assert max(row["depth"] for row in depths) == statistics["max_queue_size"]
    assert {row["capacity"] for row in depths} == {statistics["max_queue_size"]}
    assert all(row["queued_ns"] < row["taken_ns"] for row in dropped)


def test_only_an_unfinished_last_batch_is_neither_trained_nor_dropped(recorded):
    # verl ends the queue with a mark of its own, and throws away what it had collected for one more step.
    ended = recorded.counted["queue"]["total_consumed"] - 1
    unfinished = ended * GROUP - sum(len(step["uids"]) for step in steps_of(recorded))
    delivered = {row["sample_id"] for row in recorded.rows("deliveries")}
    assert delivered <= recorded.samples.keys()
    assert len(recorded.samples.keys() - delivered) == unfinished


def test_every_publication_is_recorded_under_verl_s_own_version(recorded):
    assert [row["version"] for row in recorded.updates("publish")] == recorded.counted["trainer"]["published"]
    steps = recorded.analysis.answers["training_steps"]
    assert steps["version_in"].to_list() == [step["version"] for step in steps_of(recorded)]
    followers = [step["version"] for step in steps_of(recorded)][1:]
    assert steps["version_out"].to_list()[:-1] == followers


def test_the_gpus_of_both_sides_are_in_the_ledger(recorded):
    facts, trainer = recorded.analysis.run, recorded.states("trainer")
    assert (facts.trainer_gpus, facts.sampler_gpus) == (4, 2)
    assert trainer["unattributed"] < 0.1 * sum(trainer.values())
    assert {"train", "waiting_for_samples", "publishing_weights", "startup"} <= trainer.keys()
    assert {"generating", "startup"} <= recorded.states("sampler").keys()


def test_the_settings_are_verl_s(recorded):
    config = recorded.config
    assert (config["framework"], config["group_size"], config["samples_per_step"]) == ("verl", GROUP, 4)
    assert config["staleness_policy"] == "admission"
    assert "max_staleness" not in config


def test_nothing_is_missing_but_the_ends_of_the_actors_that_verl_kills(recorded):
    without_end = recorded.analysis.data_quality.workers_without_end
    assert {name.split("-")[0] for name in without_end} <= {"controller", "sampler"}
    assert_accounted(recorded.analysis, without_end=without_end)
