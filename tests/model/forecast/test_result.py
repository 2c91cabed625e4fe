"""From what a run shows to what the model says of it, on runs whose truth is known."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from rlscope.model.calibration import UncalibratableError
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.gap import batch_efficiency, explain_gap
from rlscope.model.forecast.holdout import compare
from rlscope.model.forecast.layouts import (
    Forecasts,
    cap_at_trainer_rate,
    measured_staleness,
    scale_to_measured,
    trainer_rate_bound,
)
from rlscope.model.forecast.predict import predict_layouts
from rlscope.model.forecast.price import Anchor
from rlscope.model.forecast.result import ModelResult, TimeAndCost, model_run
from rlscope.model.observed import Observed
from rlscope.model.system import CHECKPOINTS_PHASE, Admission, Granularity, possible_layouts, running_limits
from tests.model.few_draws import few_draws
from tests.model.known_run import (
    QUESTION,
    TODAY,
    TRUTH,
    calibrated,
    calibration_of,
    candidates_of,
    longer,
    observed,
    steady,
)

PRICED = replace(QUESTION, remaining_steps=100, gpu_hour_price=2.0, auxiliary_gpus=3)


@cache
def forecasts() -> Forecasts:
    return predict_layouts(calibrated(), possible_layouts(8, Granularity(1), (TODAY.max_running,)))


@cache
def model() -> ModelResult:
    run = observed()
    return model_run(run, (observed(steps=20, seed=5), observed(steps=20, seed=6).steps), PRICED)


def test_a_calibration_finds_the_trainer_the_passes_and_the_cost_of_updates():
    found = calibrated()
    trainer, curve = found.system.trainer, found.system.engine.curve
    assert trainer.tokens_per_gpu_s == pytest.approx(8_000.0, rel=0.02)
    at = np.array([8.0, 32.0, 64.0])
    assert curve.pass_s(at) + curve.kv_s_per_token * at * 200.0 == pytest.approx(
        TRUTH.engine.curve.pass_s(at) + 1e-7 * at * 200.0, rel=0.06
    )
    assert found.system.update.engine_pause_s == pytest.approx(0.05)
    assert found.system.update.trainer_blocked_s == pytest.approx(0.1)
    assert found.system.workload.samples_per_step == 256
    assert found.system.workload.trained_prompt_tokens == pytest.approx(50.0)
    assert found.layout == TODAY
    assert not found.synchronous


@pytest.mark.parametrize(
    ("other_s", "every_steps", "engines_s"),
    [
        ([1.0] * 40, 1, {}),
        ([0.0] * 40, 1, {}),
        ([0.0, 0.0, 0.0, 30.0] * 10, 4, {}),
        ([0.0, 0.0, 0.0, 30.0] * 10, 4, {("reward", None): 300.0}),
        ([0.0, 0.0, 0.0, 30.0] * 10, 1, {("eval", None): 300.0}),
        ([1.0, 1.0, 1.0, 27.0] * 10, 3, {}),  # The mean of the squares is 183, that of the seconds 7.5: 3.25.
        ([1.0, 3.0] * 20, 1, {}),  # 5 and 2: 1.25.
        ([0.0] * 39 + [30.0], 40, {}),
    ],
)
def test_checkpoints_vary_from_step_to_step_as_in_the_run_unless_they_stop_the_engines_too(
    other_s: list[float], every_steps: int, engines_s: dict[tuple[str, None], float]
):
    run = observed()
    steps = replace(run.steps, other_s=np.array(other_s))
    found = calibration_of(replace(run, steps=steps, engine_state_s={**run.engine_state_s, **engines_s}))
    phases = [each for each in found.system.trainer.phases if each.name == CHECKPOINTS_PHASE]
    expected = [(pytest.approx(sum(other_s) / 40), every_steps)] if any(other_s) else []
    assert [(each.step_s, each.every_steps) for each in phases] == expected


def test_time_between_passes_is_part_of_a_pass():
    run = observed()
    slow = replace(run, passes=replace(run.passes, between_s=0.002 * run.passes.passes))
    curve = calibration_of(slow).system.engine.curve
    plain = calibrated().system.engine.curve
    assert curve.pass_s(64.0) - plain.pass_s(64.0) == pytest.approx(0.002, rel=0.05)


def test_the_most_that_ran_is_today_s_limit_where_the_setting_is_never_reached():
    found = calibration_of(replace(observed(), max_running=512))
    assert found.layout.max_running == 64
    assert "limit_below_setting" in found.warnings


@pytest.mark.parametrize(("column", "said"), [("published", "no policy version was"), ("tokens", "how many tokens")])
def test_a_run_that_publishes_nothing_or_has_no_tokens_cannot_be_calibrated(column, said):
    run = observed()
    silent = replace(run, steps=replace(run.steps, **{column: np.zeros(40, dtype=np.int64)}))
    with pytest.raises(UncalibratableError, match=said):
        calibration_of(silent)


@pytest.mark.parametrize(("slower", "residual_ratio"), [(1.0, 0.0), (2.0, -0.5)])
def test_a_prediction_meets_an_equal_stretch_and_not_one_at_half_the_speed(slower: float, residual_ratio: float):
    run = observed(seed=9)
    more_s = (slower - 1.0) * run.steps.period_s
    steps = replace(run.steps, period_s=run.steps.period_s + more_s, wait_s=run.steps.wait_s + more_s)
    found = compare(calibrated(), steps, np.random.default_rng(1))
    assert found.residual_ratio == pytest.approx(residual_ratio, abs=0.02)
    assert found.agrees is (slower == 1.0)
    assert found.agrees is bool(abs(found.residual_ratio) <= found.margin_ratio)
    assert (found.calibrated_steps, found.held_out_steps) == (40, 40)


def test_what_the_prediction_misses_of_the_achieved_rate_is_left_unexplained():
    found, rate = calibrated(), steady().trained_tokens_per_s
    short = explain_gap(found, observed(), forecasts(), predicted_tokens_per_s=rate * 0.5)
    plain = explain_gap(found, observed(), forecasts(), predicted_tokens_per_s=rate)
    assert short.achieved_tokens_per_s == plain.achieved_tokens_per_s
    assert short.steps[-1].cause == plain.steps[-1].cause == "unexplained"
    assert short.steps[-1].lost_tokens_per_s == pytest.approx(rate * 0.5 - short.achieved_tokens_per_s)
    assert abs(plain.steps[-1].lost_tokens_per_s) < 0.05 * rate


def test_the_recommended_layout_is_near_the_true_best_of_all():
    advice = model().recommendation
    layouts = possible_layouts(8, Granularity(1), (64,))
    truth = {layout: steady(layout=layout).trained_tokens_per_s for layout in layouts}
    best = max(truth.values())
    assert advice.changes
    assert advice.best.layout.trainer_gpus > TODAY.trainer_gpus
    achieved = steady(layout=advice.best.layout).trained_tokens_per_s
    assert achieved >= 0.9 * best
    assert advice.gain_ratio.low <= achieved / truth[TODAY] - 1.0 <= advice.gain_ratio.high
    spreads = [doubt.spread_ratio for doubt in advice.uncertainties]
    assert {doubt.source for doubt in advice.uncertainties} == {"decode_curve", "trainer_rate", "trainer_scaling"}
    assert spreads == sorted(spreads, reverse=True)


CAPPED = {"candidates": candidates_of(Admission(256, "wait", max_staleness=1))}


def holding(batches: float | None) -> Observed:
    return replace(observed(steps=12), prefetched_batches=batches)


@pytest.mark.parametrize(
    ("run", "asked", "warning", "is_said"),
    [
        (observed(steps=12), {}, "short_stretch", True),
        (observed(), {}, "lengths_drift", False),
        (longer(observed(), 0.3), {}, "lengths_drift", True),
        # How a cap is kept is assumed where the run does not say so and layouts were simulated.
        (observed(), {**CAPPED, "scheduling_stated": True}, "manner_assumed", False),
        (observed(), {**CAPPED, "scheduling_stated": False}, "manner_assumed", True),
        # Trainers are taken to hold a batch ahead; half a batch more or less is no contradiction.
        (holding(None), {"prefetched_batches": 1.0}, "ahead_contradicted", False),
        (holding(0.5), {"prefetched_batches": 1.0}, "ahead_contradicted", False),
        (holding(0.49), {"prefetched_batches": 1.0}, "ahead_contradicted", True),
        (holding(1.51), {"prefetched_batches": 1.0}, "ahead_contradicted", True),
    ],
)
def test_what_a_run_and_its_config_leave_in_doubt_is_said(run: Observed, asked: Any, warning: str, is_said: bool):
    with few_draws():
        found = model_run(run, None, replace(QUESTION, **asked))
    assert (warning in found.warnings) is is_said


@pytest.mark.parametrize(
    ("later_ratio", "staleness", "warning", "error_ratio"),
    [
        # The model replays a mean of 5.5 versions, and a p95 of 8.
        (1.0, ((5, 4_000), (8, 1_000)), None, 1.0),
        (0.5, ((5, 4_000), (8, 1_000)), "prediction_missed", 2.0),
        (1.0, ((0, 4_000), (1, 1_000)), "partly_explained", 2.0),
    ],
)
def test_a_model_that_fails_a_check_on_its_run_errs_twice_as_much_as_usual(
    later_ratio: float, staleness: tuple[tuple[int, int], ...], warning: str | None, error_ratio: float
):
    run, half = replace(observed(), staleness=staleness), observed(steps=20, seed=6)
    later = replace(half.steps, period_s=half.steps.period_s / later_ratio)
    with few_draws():
        found = model_run(run, (observed(steps=20, seed=5), later), QUESTION)
    assert {"prediction_missed", "partly_explained"} & set(found.warnings) == ({warning} if warning else set())
    assert found.calibration.error_ratio == error_ratio


def test_a_run_of_one_batch_size_without_known_hardware_grades_a_larger_one_as_assumed():
    run, larger = observed(batches=(64,), noise=0.0), replace(TODAY, max_running=256)
    found = calibration_of(run)
    best = predict_layouts(found, (replace(larger, trainer_gpus=4, sampler_gpus=4),)).others[0]
    assert best.grade == "assumed"


def test_trainers_that_never_wait_make_the_period_over_the_work_of_todays_rate():
    run = observed()
    works_s = {"train_s": 3.0, "logprobs_s": 1.0, "publish_s": 2.0, "other_s": 0.5, "wait_s": 3.5, "period_s": 10.0}
    even = replace(run, steps=replace(run.steps, **{name: 0.0 * run.steps.period_s + s for name, s in works_s.items()}))
    assert trainer_rate_bound(even, 3) == pytest.approx(np.full(3, 10.0 / 6.5))
    assert trainer_rate_bound(even, 3, publishing=False) == pytest.approx(np.full(3, 10.0 / 4.5))
    # Steps that do not say how long they trained.
    assert trainer_rate_bound(replace(run, steps=replace(run.steps, train_s=0.0 * run.steps.train_s)), 10) is None


def test_layouts_with_todays_trainers_are_held_to_the_ceiling_and_others_are_not():
    plain = forecasts()
    today = plain.today
    twin = replace(plain.rivals[0], layout=replace(today.layout, max_running=7))
    ceiling = np.full(today.drawn_tokens_per_s.size, 1.0)
    fast = replace(
        twin,
        tokens_per_s=2.0 * today.tokens_per_s,
        drawn_tokens_per_s=2.0 * today.drawn_tokens_per_s,
        timing=replace(today.timing, trainer_idle_ratio=2.0 * today.timing.trainer_idle_ratio - 1.0),
    )
    held = cap_at_trainer_rate(Forecasts(today, (fast, *plain.others)), ceiling)
    (found,) = (each for each in held.others if each.layout == fast.layout)
    assert found.gains_over(today) == pytest.approx(0.0 * ceiling)
    assert found.tokens_per_s == pytest.approx(today.tokens_per_s)
    assert found.timing.step_s == pytest.approx(2.0 * fast.timing.step_s)
    others = {each.layout: each for each in held.others if each.layout.trainer_gpus != today.layout.trainer_gpus}
    assert others == {each.layout: each for each in plain.others if each.layout in others}


def test_measured_staleness_knows_how_many_steps_a_version_lasted():
    run = replace(observed(), staleness=((1, 10), (2, 10)), oldest_staleness=((2, 20),))
    published = np.zeros_like(run.steps.published)
    published[::4] = 1
    rarely = replace(run, steps=replace(run.steps, published=published))
    every, fourth = measured_staleness(run), measured_staleness(rarely)
    assert (every.steps_per_version, every.p95_steps) == (1.0, every.sample_p95)
    assert fourth.steps_per_version == pytest.approx(published.size / published.sum())
    assert fourth.p95_steps == pytest.approx(4.0 * every.sample_p95, rel=0.05)
    # Where every fourth step is meant to publish, none was skipped.
    assert measured_staleness(rarely, published.size / published.sum()).steps_per_version == pytest.approx(1.0)


def test_an_anchor_moves_every_rate_and_period_and_no_gain():
    plain = forecasts()
    moved = scale_to_measured(plain, Anchor(0.8))
    for before, after in zip((plain.today, *plain.rivals), (moved.today, *moved.rivals), strict=True):
        assert after.layout == before.layout
        assert after.tokens_per_s == pytest.approx(0.8 * before.tokens_per_s)
        assert after.timing.step_s == pytest.approx(before.timing.step_s / 0.8)
        assert after.gains_over(moved.today) == pytest.approx(before.gains_over(plain.today))


def test_time_to_finish_shrinks_with_the_gain_and_every_gpu_costs_whether_idle_or_not_and_those_of_a_judge_too():
    finish, gain = model().finish, model().recommendation.gain_ratio.value
    assert finish.current.hours.value == pytest.approx(100 * observed().steps.period_s.mean() / 3600, rel=0.02)
    assert finish.best.hours.value == pytest.approx(finish.current.hours.value / (1.0 + gain), rel=1e-9)
    assert finish.gpus == TODAY.trainer_gpus + TODAY.sampler_gpus + 3
    assert finish.current.price == pytest.approx(finish.current.hours.value * finish.gpus * 2.0)
    assert TimeAndCost.of(Estimate(2.0, 1.0, 3.0), 8, 2.0) == TimeAndCost(Estimate(2.0, 1.0, 3.0), 16.0, 32.0)


def test_a_full_batch_is_efficient_and_a_single_request_is_not():
    full = model().efficiency
    assert full.efficient_time_ratio > 0.95
    run = observed()
    few = np.where(run.passes.running == 1, 20_000, 20)
    shares = few / run.passes.passes
    sparse = replace(run.passes, passes=few, rows=few, busy_s=run.passes.busy_s * shares)
    found: Observed = replace(run, passes=sparse)
    alone = batch_efficiency(calibrated(), found)
    assert alone.efficient_time_ratio < 0.2
    one_size = observed(batches=(64,))
    assert batch_efficiency(calibration_of(one_size), one_size) is None


@pytest.mark.parametrize(
    ("gpus", "granularity", "splits"),
    [
        (8, Granularity(2, 2), [(2, 6), (4, 4), (6, 2)]),
        (8, Granularity(4, 1), [(1, 4), (2, 4), (3, 4), (4, 4)]),
        (16, Granularity(1, 1, 8), [(8, 8)]),
        (2, Granularity(1), [(1, 1)]),
        (4, Granularity(4), []),
    ],
)
def test_layouts_respect_engines_replicas_and_nodes(gpus: int, granularity: Granularity, splits: list[tuple[int, int]]):
    found = possible_layouts(gpus, granularity, (32,))
    assert [(each.trainer_gpus, each.sampler_gpus) for each in found] == splits


def test_limits_to_try_include_today_s_and_stay_within_the_kv_cache():
    assert running_limits(64, None) == (16, 24, 32, 48, 64, 96, 128, 192, 256)
    assert running_limits(64, 96.0) == (16, 24, 32, 48, 64, 96)
    assert running_limits(100, None) == (24, 32, 48, 64, 100, 128, 192, 256, 384)
    assert running_limits(64, 40.0) == (16, 24, 32, 64)
    assert running_limits(1, None) == (1, 2, 3, 4)


def test_a_run_whose_limits_the_model_cannot_keep_is_said_to_be_beyond_it():
    question = replace(QUESTION, candidates=candidates_of(Admission(None, "wait", 0, staleness_policy="drop")))
    with few_draws(), pytest.raises(UncalibratableError, match="own layout cannot run"):
        model_run(observed(), None, question)
