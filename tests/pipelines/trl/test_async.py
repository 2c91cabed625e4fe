"""TRL's AsyncGRPOTrainer, for real, with transformers' continuous batching: the record agrees with TRL's own log."""

from types import SimpleNamespace

import pytest
from rlscope_otel.integrations.trl_rollouts import limits_of

from tests.pipelines.processes import assert_accounted
from tests.pipelines.trl.async_record import TrlRecorded, assert_agrees, record

pytestmark = pytest.mark.pipelines

REGIMES = {
    "syncs every third step": ("--steps", "30", "--sync-every", "3"),
    "drops what is stale": ("--steps", "30", "--max-staleness", "1", "--in-flight", "48"),
}


@pytest.fixture(
    scope="module",
    # Both are steady until a version is due or a sample is too old.
    params=REGIMES,
    ids=lambda regime: regime.replace(" ", "-"),
)
def recorded(request, tmp_path_factory) -> TrlRecorded:
    return record(tmp_path_factory.mktemp("async"), *REGIMES[request.param])


def test_steps_samples_and_tokens_are_those_of_trl_s_log(recorded):
    steps = sorted(recorded.rows("train_steps"), key=lambda row: row["step"])
    assert [row["step"] for row in steps] == list(range(1, recorded.counted["steps"] + 1))
    assert [row["samples"] for row in steps] == pytest.approx(recorded.logged("batch/samples_per_step"))
    for name in ("loss", "grad_norm"):
        assert [row[name] for row in steps] == recorded.logged(name)
    trained = [sum(moment["tokens"] for moment in row["importance"]) for row in steps]
    assert trained == recorded.logged("batch/trained_tokens_per_step")
    assert recorded.analysis.run.samples_trained == recorded.counted["samples_trained"]
    assert recorded.analysis.run.tokens_trained == recorded.counted["response_tokens_trained"]


def test_forwarded_tokens_count_a_shared_prompt_once(recorded):
    steps = sorted(recorded.rows("train_steps"), key=lambda row: row["step"])
    assert [row["tokens"] for row in steps] == recorded.logged("batch/forwarded_tokens_per_step")


def test_rewards_are_those_of_trl_s_log(recorded):
    means = [sum(row["reward"] for row in taken) / len(taken) for taken in recorded.kept_by_log()]
    assert means == pytest.approx(recorded.logged("reward"))
    trained = recorded.rows("deliveries", outcome="trained")
    for step in recorded.rows("train_steps"):
        own = [row["reward"] for row in trained if row["step"] == step["step"]]
        assert step["reward_mean"] == pytest.approx(sum(own) / len(own))


def test_every_weight_sync_is_published_transferred_and_applied_once(recorded):
    versions = list(range(1, recorded.counted["weight_syncs"] + 1))
    for phase in ("publish", "transfer", "apply"):
        assert [row["version"] for row in recorded.updates(phase)] == versions
    assert all(row["paused"] for row in recorded.updates("apply"))
    steps = recorded.rows("train_steps")
    assert [row["version_out"] for row in steps] == [row["version_in"] for row in steps[1:]] + versions[-1:]
    for part in ("drain", "resume"):
        found = {worker: [] for worker in ("trainer", "sampler")}
        for row in recorded.updates(part):
            found[row["worker_id"]].append(row["version"])
        assert found == {"trainer": versions, "sampler": versions}


def test_samples_are_the_responses_that_were_scored(recorded):
    found = {row["sample_id"]: row["output_tokens"] for row in recorded.rows("samples")}
    scored = recorded.counted["scored"]
    assert {sample: found[sample] for sample in scored} == {sample: of["tokens"] for sample, of in scored.items()}
    assert {row["sample_id"] for row in recorded.rows("deliveries")} <= set(scored)
    assert len(recorded.rows("samples")) == len(found)


def test_trl_s_staleness_is_ours_less_what_was_published_since_the_sample_was_taken(recorded):
    admitted = {sample: of["admitted_version"] for sample, of in recorded.counted["scored"].items()}
    for taken, mean, most in zip(
        recorded.kept_by_log(),
        recorded.logged("sample/staleness_mean"),
        recorded.logged("sample/staleness_max"),
        strict=True,
    ):
        ages = [row["taken_version"] - admitted[row["sample_id"]] for row in taken]
        assert (sum(ages) / len(ages), max(ages)) == (pytest.approx(mean), most)


def test_a_sample_is_trained_on_at_most_one_sync_after_it_was_taken(recorded):
    since = {row["consumer_version"] - row["taken_version"] for row in recorded.kept() if row["outcome"] == "trained"}
    assert since == {0, 1}  # The first batch at once, later ones a step after they were taken.


def test_what_trl_dropped_is_what_it_counted(recorded):
    assert len(recorded.rows("deliveries", outcome="dropped_stale")) == recorded.counted["samples_dropped_stale"]


def test_importance_is_kept_by_the_age_that_the_engine_s_versions_give(recorded):
    ages = recorded.analysis.answers["token_staleness"].iter_rows(named=True)
    expected = {(row["step"], row["staleness"]): row["tokens"] for row in ages}
    found = {
        (row["step"], moment["staleness"]): moment["tokens"]
        for row in recorded.rows("train_steps")
        for moment in row["importance"]
    }
    assert found == expected


def test_the_ratio_of_fresh_tokens_is_1(recorded):
    fresh = [row for row in recorded.rows("train_steps") if row["fresh_tokens"]]
    assert 1 in {row["step"] for row in fresh}
    for row in fresh:
        assert row["fresh_sum_w"] == pytest.approx(row["fresh_tokens"], rel=1e-4)


def test_the_ledger_closes_and_nothing_is_missing(recorded):
    assert_accounted(recorded.analysis)
    assert {"train", "publishing_weights"} <= recorded.states("trainer").keys()
    assert "decoding" in recorded.states("sampler")


@pytest.mark.parametrize("name", ["trainer_state.json", "events.out.tfevents.*"])
def test_what_trl_logs_itself_says_the_same_of_the_trainer(recorded, name):
    (log,) = recorded.logs.glob(name)
    assert_agrees(recorded.analysis, log)


@pytest.mark.parametrize("recorded", ["drops what is stale"], indirect=True)
def test_a_tight_cap_drops_samples(recorded):
    assert recorded.counted["samples_dropped_stale"] > 0


def test_trl_s_own_rollout_worker_says_what_it_bounds(monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    from trl.experimental.async_grpo.async_rollout_worker import AsyncRolloutWorker

    worker = SimpleNamespace(_loop_cls=AsyncRolloutWorker._loop_cls, _loop_kwargs={"max_inflight_tasks": 8})
    # 16 groups wait for their scores, and one is being scored.
    assert limits_of(worker, 96, 4) == {"max_running_samples": 8, "queue_capacity_samples": 96 + 17 * 4}
