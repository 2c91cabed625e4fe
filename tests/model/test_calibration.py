"""What makes a version: the steps between two publications and the batches that they take; what engines do besides.

And of samples that wait for their environment: whether their KV stays, and whether updates void it.
"""

from dataclasses import replace

import numpy as np
import pytest

from rlscope.model.engine_cost import engine_of
from rlscope.model.observed import Observed, PreemptionCounts, SeenLoad
from rlscope.model.system import Admission
from tests.model.known_run import LENGTHS, TODAY, TRUTH, calibration_of, observed

EVERY_FOURTH = np.array([0, 0, 0, 1] * 9 + [0, 0, 0, 0])


@pytest.mark.parametrize(
    ("batches_per_step", "batches"),
    [(1.0, 4), (0.25, 1), (0.5, 2), (2.0, 8), (1_000.0, 4 * 64)],  # 256 samples of a step are 64 groups
)
def test_steps_of_a_version_take_their_own_batches_or_share_them(batches_per_step: float, batches: int):
    run = observed()
    run = replace(run, steps=replace(run.steps, published=EVERY_FOURTH), batches_per_step=batches_per_step)
    calibration = calibration_of(run, draw_count=20)
    workload = calibration.system.workload
    assert calibration.steps_per_version == 4.0  # not 40 steps over 9 publications
    assert (workload.samples_per_step, workload.batches_per_version) == (4 * 256, batches)


@pytest.mark.parametrize(
    ("published", "per_version"),
    [([1, 1, 1], 1.0), ([0, 0, 1, 0], 4.0), ([1, 0, 0, 1, 1], 2.0), ([0, 0, 0], None)],
)
def test_a_version_lasts_from_one_publication_to_the_next(published: list[int], per_version: float | None):
    assert replace(observed().steps, published=np.array(published)).per_version == per_version


@pytest.mark.parametrize(
    ("state", "is_between"),
    [
        *((state, True) for state in ("eval", "checkpoint", "reward", "logprobs", "train", "other")),
        *((state, False) for state in ("startup", "no_requests", "waiting", "applying_weights")),
    ],
)
def test_what_engines_do_besides_generating_is_time_between_passes_for_each_token(state: str, is_between: bool):
    run, curve = observed(), TRUTH.engine.curve
    spent = replace(run, engine_state_s={**run.engine_state_s, (state, "requests"): 20.3})
    batches = np.array([8.0, 16.0])
    more_s = engine_of(spent, curve).curve.pass_s(batches) - engine_of(run, curve).curve.pass_s(batches)
    assert more_s == pytest.approx(batches * (20.3 if is_between else 0.0) / run.passes.decode_tokens.sum(), abs=1e-12)


AWAY = 12.0
"""Samples of an engine."""


def holding(of_away: float) -> Observed:
    """A run whose caches hold what runs and a part of what is outside."""
    run = observed(batches=(48, 48))
    running_tokens = 50.0 + LENGTHS.second_moment / LENGTHS.mean_tokens / 2.0
    away_tokens = 50.0 + LENGTHS.mean_tokens / 2.0
    resident = run.passes.running * running_tokens + of_away * AWAY * away_tokens
    return replace(run, passes=replace(run.passes, kv_tokens=resident), environment_samples=AWAY * TODAY.sampler_gpus)


@pytest.mark.parametrize(("of_away", "is_held"), [(1.0, True), (0.501, True), (0.499, False), (0.0, False)])
def test_kv_is_held_where_the_caches_hold_at_least_half_of_it(of_away: float, is_held: bool):
    workload = calibration_of(holding(of_away)).system.workload
    assert workload.environment_kv_held is is_held


def recomputing(of_away: float, **changed: object) -> Observed:
    """A run whose updates void the cache, and have what runs computed again, and a part of what is outside."""
    run = replace(holding(1.0), kv_kept=False, preemption_counts=PreemptionCounts(0, 0))
    running_tokens = float(run.passes.running[0]) * (50.0 + LENGTHS.second_moment / LENGTHS.mean_tokens / 2.0)
    again = running_tokens + of_away * AWAY * (50.0 + LENGTHS.mean_tokens / 2.0)
    updates = int(run.steps.published.sum()) * run.engines
    tokens = np.zeros_like(run.passes.prefill_tokens)
    tokens[0] = round(updates * again + run.prompt_tokens * run.began_samples)
    passes = replace(run.passes, prefill_tokens=tokens, prefills=tokens > 0)
    return replace(run, passes=passes, **changed)


@pytest.mark.parametrize(
    ("run", "is_voided"),
    [
        (recomputing(1.0), True),
        (recomputing(0.501), True),
        (recomputing(0.499), False),
        (recomputing(1.0, kv_kept=True), False),
        (recomputing(1.0, preemption_counts=PreemptionCounts(1, 0)), False),
        (recomputing(1.0, preemption_counts=None), True),
    ],
)
def test_kv_outside_is_voided_where_updates_have_at_least_half_of_it_computed_again(run: Observed, is_voided: bool):
    workload = calibration_of(run).system.workload
    assert workload.environment_kv_voided is is_voided


@pytest.mark.parametrize(
    ("between_turns", "in_flight", "running", "is_held"),
    [
        (0.51, 600, None, False),  # a limit on samples in flight may keep the engines from running more
        (0.49, 600, None, True),  # most samples wait within a request
        (0.51, None, 6 * 37.0, False),  # with 12 outside, an engine has 49 samples for 48 places
        (0.51, None, 6 * 36.0, True),
    ],
)
def test_samples_outside_hold_no_place_where_each_turn_is_a_request_and_the_limit_on_samples_is_known(
    between_turns: float, in_flight: int | None, running: float | None, is_held: bool
):
    run = replace(holding(0.0), max_running=48, load=SeenLoad(running))
    run = replace(run, between_turns_samples=between_turns * run.environment_samples)
    found = calibration_of(run, Admission(max_in_flight_samples=in_flight))
    assert found.system.workload.environment_place_held is is_held


def test_without_a_recorded_cache_or_a_wait_nothing_is_held():
    run = holding(1.0)
    unknown = replace(run, passes=replace(run.passes, kv_tokens=np.full(run.passes.running.size, np.nan)))
    for each in (unknown, replace(run, environment_samples=0.0)):
        workload = calibration_of(each).system.workload
        assert not workload.environment_kv_held
