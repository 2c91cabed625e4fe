"""Data-parallel trainers of the example: together they do what one does, and the trace says which did what."""

import pytest

from rlscope.pipeline import analyze
from tests.journals import recorded_rows
from tests.pipelines.pipeline_process import run

pytestmark = [pytest.mark.pipelines, pytest.mark.usefixtures("no_model")]

STEPS, TRAINERS = 12, 3


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    ended = run(
        tmp_path_factory.mktemp("ranks") / "run",
        *("--steps", str(STEPS), "--trainers", str(TRAINERS), "--samplers", "2", "--slow", "4", "--no-pin"),
        *("--publish-every", "2", "--eval-every", "4"),
    )
    assert ended.exit_status == 0, ended.stderr
    return ended


def test_the_ranks_shares_add_up_to_every_step_and_each_rank_takes_part(recorded):
    analysis, counted = analyze(recorded.run_dir, also_ask=()), recorded.counted
    assert analysis.run.total_gpus == TRAINERS + 2
    steps = analysis.answers["training_steps"]
    assert steps["step"].to_list() == list(range(1, STEPS + 1))
    assert steps["samples"].to_list() == [16] * STEPS
    assert steps["tokens"].sum() == counted["tokens_processed"]
    assert analysis.run.samples_trained == counted["samples_trained"] == 16 * STEPS
    peers = counted["peers"]
    assert [(peer["worker_id"], peer["steps"]) for peer in peers] == [("trainer-1", STEPS), ("trainer-2", STEPS)]
    assert 0 < sum(peer["tokens_processed"] for peer in peers) < counted["tokens_processed"]


def test_every_rank_says_the_same_versions_and_gradient_norm(recorded):
    rows = recorded_rows(recorded.run_dir, "train_steps")
    for step in range(1, STEPS + 1):
        of_step = [row for row in rows if row["step"] == step]
        assert {row["worker_id"] for row in of_step} == {f"trainer-{rank}" for rank in range(TRAINERS)}
        assert len({(row["version_in"], row["version_out"], row["grad_norm"]) for row in of_step}) == 1
    assert max(row["version_out"] for row in rows) == STEPS // 2


def test_peers_wait_for_samples_with_the_lead_and_at_a_barrier_while_it_evaluates(recorded):
    states = {(state.role, state.state, state.reason) for state in analyze(recorded.run_dir, also_ask=()).ledger.states}
    assert ("trainer", "waiting", "barrier") in states
    assert ("trainer", "waiting_for_samples", None) in states or ("trainer", "waiting_for_samples", "samples") in states
