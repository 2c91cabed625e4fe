"""The whole pipeline around vLLM: what rlscope finds is what vLLM and the trainer counted themselves."""

import pytest

from rlscope.pipeline import analyze
from tests.journals import recorded_rows
from tests.pipelines.vllm.programs import run_pipeline

pytestmark = pytest.mark.vllm

# A first step of more than a thousand tokens, which tells the noise of version 0, and versions after it.
FRESH = (
    "--synchronous",
    "--batch",
    "128",
    "--slots",
    "128",
    "--queue-capacity-samples",
    "128",
    "--learning-rate",
    "0.002",
)


class Recorded:
    def __init__(self, run_dir, *flags):
        counted = run_pipeline(run_dir, *flags)
        self.engine, self.trainer, self.failed = counted["sampler"], counted["trainer"], counted["failed"]
        self.analysis = analyze(run_dir)
        self.run_dir = run_dir

    def rows(self, table):
        return recorded_rows(self.run_dir, table)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    # Few slots and a queue that never fills: every publication meets samples that are half generated.
    flags = (
        "--steps",
        "12",
        "--batch",
        "32",
        "--queue-capacity-samples",
        "1024",
        "--slots",
        "8",
        "--max-staleness",
        "2",
    )
    return Recorded(tmp_path_factory.mktemp("runs") / "asynchronous", *flags)


def test_the_versions_of_every_sample_are_vllm_s_own(recorded):
    assert recorded.failed == []
    rows = {row["sample_id"]: row for row in recorded.rows("samples")}
    said = recorded.engine["weight_versions"]
    assert {
        name: [[str(run["version"] or "default"), run["start"], run["end"]] for run in rows[name]["versions"]]
        for name in said
    } == said
    assert {rows[name]["version_source"] for name in said} == {"engine"}
    assert any(len(spans) > 1 for spans in said.values())


def test_samples_carry_the_names_and_groups_that_the_trainer_knows(recorded):
    groups = {row["sample_id"]: row["group_id"] for row in recorded.rows("samples")}
    assert all(name.rpartition("/")[0] == group for name, group in groups.items())
    assert {row["sample_id"] for row in recorded.rows("deliveries")} <= set(groups)


def test_totals_are_the_trainer_s_own_count(recorded):
    facts, counted = recorded.analysis.run, recorded.trainer
    assert (facts.steps, facts.samples_trained, facts.tokens_trained) == (
        counted["steps"],
        counted["samples_trained"],
        counted["response_tokens_trained"],
    )
    assert sum(row["tokens"] for row in recorded.rows("train_steps")) == counted["tokens_processed"]


def test_token_staleness_is_the_trainer_s_own_count(recorded):
    tokens, counted = recorded.analysis.staleness.tokens, recorded.trainer
    assert tokens is not None
    assert [list(pair) for pair in tokens.histogram] == counted["token_staleness_histogram"]


def test_what_was_dropped_for_its_age_is_the_trainer_s_own_count(recorded):
    outcomes = recorded.analysis.answers["delivery_outcomes"]
    dropped = dict(outcomes.select("outcome", "samples").iter_rows()).get("dropped_stale", 0)
    assert dropped == recorded.trainer["samples_dropped_stale"]


def test_samples_and_updates_are_as_many_as_the_engine_s_process_counted(recorded):
    rows = recorded.rows("samples")
    ended = [row for row in rows if row["finish_reason"] != "unfinished"]
    assert len(ended) == recorded.engine["samples_finished"]
    assert len(rows) - len(ended) == recorded.engine["samples_unfinished"]
    assert sum(row["output_tokens"] for row in ended) == recorded.engine["tokens_generated"]
    applied = [row for row in recorded.rows("weight_updates") if row["phase"] == "apply"]
    assert len(applied) == recorded.engine["weight_updates"]
    assert all(row["paused"] and row["kv"] == "kept" for row in applied)


def test_every_version_reaches_the_engine_after_it_was_published(recorded):
    latency = recorded.analysis.answers["weight_update_latency"]
    assert len(latency) == recorded.engine["weight_updates"]
    assert latency["publish_to_applied_s"].min() > 0


def test_nothing_is_lost_and_nearly_all_time_is_explained(recorded):
    quality, ledger = recorded.analysis.data_quality, recorded.analysis.ledger
    assert quality.workers_without_end == () and quality.skipped_files == ()
    assert sum(quality.dropped_rows.values()) == 0
    assert recorded.analysis.answers["row_faults"].is_empty()
    assert sum(state.gpu_ns for state in ledger.states) == ledger.total_gpu_ns
    assert sum(state.gpu_ns for state in ledger.states if state.state == "unattributed") < 0.1 * ledger.total_gpu_ns


def test_an_engine_that_gets_all_weights_agrees_with_the_trainer(tmp_path):
    recorded = Recorded(tmp_path, *FRESH, "--steps", "8")
    assert [age for age, _ in recorded.trainer["token_staleness_histogram"]] == [0]
    assert "weights_not_applied" not in {finding.rule for finding in recorded.analysis.findings}
    assert max(recorded.analysis.answers["fresh_gap"]["gap"]) < 1e-6


def test_an_engine_that_keeps_its_head_where_embeddings_are_tied_is_found(tmp_path):
    recorded = Recorded(tmp_path, *FRESH, "--steps", "8", "--tied")
    found = {finding.rule: finding for finding in recorded.analysis.findings}
    assert found["weights_not_applied"].evidence["noise_gap"] < 1e-6
    assert found["weights_not_applied"].evidence["early_gap"] < found["weights_not_applied"].evidence["late_gap"]
