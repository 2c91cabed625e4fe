"""The simulator that predictions are held to: runs made by hand, conservation, closed forms, what its traces say."""

import ast
import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.token_simulator import (
    Evaluations,
    Layout,
    Limits,
    Passes,
    Responses,
    Rollouts,
    Training,
    Updates,
    World,
    simulate_world,
)
from benchmarks.token_simulator.cases import PLAIN
from rlscope.pipeline import analyze
from rlscope.trace.store import open_run

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("no_model")]
UNHURRIED = math.inf
"""Tokens per second at which a thing takes no time."""
CLOCKWORK = World(
    name="clockwork",
    gpus=2,
    passes=Passes(weights_s=1.0, request_s=0.0, prefill_tokens_per_s=UNHURRIED, mixes_prefill=True),
    responses=Responses(median_tokens=3, sigma=0.0, max_output_tokens=10),
    rollouts=Rollouts(samples_per_step=2, group_size=1),
    training=Training(tokens_per_gpu_s=UNHURRIED, reference_gpus=1, overhead_s=4.5),
    startup_s=0.0,
)
"""A pass takes a second and a step 4.5 s; responses have 3 tokens."""
SMALL = replace(
    PLAIN,
    name="small",
    responses=Responses(median_tokens=40, sigma=0.7, max_output_tokens=150, group_share_ratio=0.3, prompt_tokens=20),
    rollouts=Rollouts(samples_per_step=32, group_size=4),
    training=Training(tokens_per_gpu_s=6000, reference_gpus=4, overhead_s=0.02, noise_sd=0.05),
    updates=Updates(publish_s=0.02, transfer_s=0.03, apply_s=0.02),
    limits=Limits(),
    kv_capacity_tokens=None,
)
BALANCED = Layout(3, 5, 8)
CAPPED = Limits(queue_capacity_samples=64, max_staleness=2)


def variant(layout: Layout = BALANCED, **changes: object) -> tuple[World, Layout]:
    return replace(SMALL, **changes), layout


VARIANTS = {
    "no limits": variant(),
    "stale groups are dropped, micro-batches have a row each": variant(
        Layout(2, 6, 16),
        limits=replace(CAPPED, staleness_policy="drop"),
        training=replace(SMALL.training, micro_batch_samples=8, records_micro_batches=True),
    ),
    "publications wait": variant(Layout(4, 4, 8), limits=replace(CAPPED, staleness_policy="publication_waits")),
    "admission, three steps of a version share a batch, engines evaluate": variant(
        limits=Limits(queue_capacity_samples=96, max_staleness=2, staleness_policy="admission"),
        training=replace(SMALL.training, steps_per_version=3, shares_batch=True),
        evaluations=Evaluations(1, 0.5),
    ),
    "a full queue loses its oldest, updates lose the cache, prompts ride on decode passes": variant(
        Layout(2, 6, 16),
        limits=Limits(queue_capacity_samples=32, full_queue="drop_oldest"),
        passes=replace(SMALL.passes, mixes_prefill=True),
        updates=Updates(0.05, 0.0, 0.05, False),
    ),
    "few in flight until trained, some filtered": variant(
        Layout(4, 4, 16),
        limits=Limits(max_in_flight_samples=64, in_flight_until_trained=True),
        rollouts=Rollouts(32, 4, filtered_ratio=0.3),
    ),
    "samples by themselves, newest first": variant(
        Layout(4, 4, 8), limits=Limits(queue_order="lifo"), rollouts=Rollouts(32, 4, delivery="sample")
    ),
    "environments, the cache overflows": variant(
        Layout(5, 3, 16), rollouts=Rollouts(32, 4, environment_ratio=0.5, environment_s=0.4), kv_capacity_tokens=400
    ),
    "replicas, rows of several passes, log-probabilities, checkpoints": variant(
        Layout(4, 4, 4),
        gpus_per_engine=2,
        gpus_per_trainer_replica=2,
        engine_speed_sd=0.1,
        most_passes_per_row=16,
        training=replace(SMALL.training, logprobs_ratio=0.4, checkpoint_steps=5, checkpoint_s=0.2),
    ),
}


def test_a_run_small_enough_to_follow_by_hand_goes_as_it_must() -> None:
    # Two slots: samples of [0, 3), [3, 6), [6, 9) ... s. Steps start at 3, 7.5, 12 s. Version 1 is out at 7.5 s, in the
    # middle of a pass; the third pair has two tokens of version 0 and one of version 1, and is trained after version 2.
    outcome = simulate_world(CLOCKWORK, Layout(1, 1, 2), steps=3, seed=0)
    assert outcome.step_ends_s == (7.5, 12.0, 16.5)
    assert outcome.step_response_tokens == (6, 6, 6)
    assert outcome.staleness_tokens == {0: 6, 1: 6 + 2, 2: 4}
    assert outcome.step_staleness_samples == ({0: 2}, {1: 2}, {2: 2})
    assert (outcome.staleness_p95(first_step=1), outcome.staleness_p95(first_step=3)) == (2, 2)
    assert outcome.trainer_waits_s == {"samples": 3.0}
    assert outcome.running_mean == 2.0
    assert outcome.generated_tokens == 2 * 17  # the pass under way at 16.5 s is finished


@pytest.mark.parametrize(
    ("shares", "parts", "ends_s"),
    [
        # Passes end at 3, 6, 9 s with two samples each, and a step takes 4.5 s.
        (False, 0, (7.5, 12.0)),
        (True, 0, (10.5, 15.0)),  # four samples are there at 6 s
        (False, 1, (7.5, 12.0)),
    ],
)
def test_steps_of_a_version_take_their_own_batch_or_share_one(shares: bool, parts: int, ends_s: tuple[float, ...]):
    training = replace(CLOCKWORK.training, steps_per_version=2, shares_batch=shares, micro_batch_samples=parts)
    outcome = simulate_world(replace(CLOCKWORK, training=training), Layout(1, 1, 2), 2, 0)
    assert outcome.step_ends_s == ends_s
    assert outcome.step_publishes == (False, True)


@pytest.mark.parametrize(("world", "layout"), VARIANTS.values(), ids=VARIANTS)
def test_trace_and_analysis_say_what_the_simulator_counted(world: World, layout: Layout, tmp_path: Path) -> None:
    outcome = simulate_world(world, layout, 10, 0, tmp_path)
    analysis = analyze(tmp_path)  # raises when the ledger does not close
    assert analysis.data_quality.gaps == ()
    assert {state.state for state in analysis.ledger.states} & {"unattributed", "waiting"} == set()
    assert analysis.run.total_gpus == layout.trainer_gpus + layout.sampler_gpus
    assert dict(analysis.staleness.tokens.histogram) == outcome.staleness_tokens
    balance = analysis.answers["token_balance"].row(0, named=True)
    fates = ("trained", "dropped_stale", "filtered")
    assert [balance[f"{fate}_tokens"] for fate in fates] == [sum(outcome.lengths_tokens(fate)) for fate in fates]
    steps = analysis.answers["training_steps"]
    assert steps["response_tokens"].to_list() == list(outcome.step_response_tokens)
    ends_s = ((steps["end_ns"] - analysis.run.started_ns) / 1e9).to_list()
    assert ends_s == pytest.approx(list(outcome.step_ends_s), abs=2e-9)
    made = "(SELECT sum(output_tokens) FROM samples), sum(decode_tokens), sum(prefill_tokens) FROM engine_steps"
    with open_run(tmp_path) as run:
        (tokens,) = run.connection.sql(f"SELECT {made}").fetchall()
    assert tokens == (outcome.generated_tokens, outcome.generated_tokens, outcome.prefilled_tokens)


@pytest.mark.parametrize("name", ["stale groups are dropped, micro-batches have a row each", "publications wait"])
def test_no_token_over_the_cap_is_trained_on(name: str) -> None:
    world, layout = VARIANTS[name]
    staleness = [max(simulate_world(world, layout, 20, seed).staleness_tokens) for seed in range(3)]
    assert max(staleness) == world.limits.max_staleness


@pytest.mark.parametrize(
    ("world", "layout", "words"),
    [
        (SMALL, Layout(0, 8, 8), "leaves one side"),
        (replace(SMALL, gpus_per_engine=2), Layout(3, 5, 8), "does not divide"),
        (replace(SMALL, rollouts=Rollouts(30, 4)), BALANCED, "whole number of groups"),
        (replace(SMALL, limits=Limits(queue_capacity_samples=31)), BALANCED, "never holds"),
        (replace(SMALL, limits=Limits(max_in_flight_samples=31)), BALANCED, "never holds"),
        (replace(SMALL, kv_capacity_tokens=181), BALANCED, "longest sample, 182 tokens"),
    ],
)
def test_what_cannot_run_is_refused_by_name(world: World, layout: Layout, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        simulate_world(world, layout, 1, 0)
    just_enough = Limits(queue_capacity_samples=32, max_in_flight_samples=32)
    assert simulate_world(replace(SMALL, limits=just_enough, kv_capacity_tokens=182), BALANCED, 1, 0).step_ends_s


def test_the_simulator_imports_nothing_of_what_it_judges() -> None:
    modules = sorted((Path(__file__).parents[2] / "benchmarks" / "token_simulator").glob("*.py"))
    assert len(modules) > 8
    for path in modules:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level}
        assert not {name for name in names if name.split(".")[0] == "rlscope"}, path
