"""The one way to a rate: what is simulated, what is pruned, and the limit and the age of a queue that would grow."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from rlscope.model.calibration import Calibration
from rlscope.model.forecast.actions import Counterfactuals
from rlscope.model.forecast.change import with_trainer_speed
from rlscope.model.forecast.layouts import Forecast, Forecasts, StepTiming
from rlscope.model.forecast.predict import (
    closed_forecasts,
    closed_rates,
    held,
    held_by_auxiliary,
    predict,
    predict_layouts,
    simulated_run,
)
from rlscope.model.forecast.price import StalenessForecast, price_simulated
from rlscope.model.forecast.recommend import Grounds
from rlscope.model.system import Admission, Granularity, Layout, possible_layouts
from tests.model.known_run import TODAY, calibration_of, observed

AHEAD, KEEPING_UP = Layout(3, 5, 64), Layout(4, 4, 64)
"""With 3 trainer GPUs the samplers make 9% more than is trained on; with 4 they make less."""
UNLIMITED, CAPPED = Admission(), Admission(max_in_flight_samples=300)


@cache
def calibration(admission: Admission = UNLIMITED) -> Calibration:
    return calibration_of(observed(), admission)


@cache
def forecasts(admission: Admission = UNLIMITED) -> Forecasts:
    return predict_layouts(calibration(admission), possible_layouts(8, Granularity(1), (64,)))


def test_a_prediction_is_the_simulators_and_its_draws_are_those_of_the_closed_form_moved_to_it() -> None:
    asked = calibration(CAPPED)
    found, run = predict(asked, KEEPING_UP, form_error=False, is_reference=True), simulated_run(asked, KEEPING_UP)
    assert found.tokens_per_s == run.trained_tokens_per_s
    closed = closed_rates(asked, (asked.system, *asked.draws), (KEEPING_UP,))[:, 0]
    assert closed[0] != pytest.approx(run.trained_tokens_per_s, rel=0.005)
    assert found.drawn_tokens_per_s == pytest.approx(closed[1:] * run.trained_tokens_per_s / closed[0])


@pytest.mark.parametrize(("room", "held"), [(math.inf, 1.0), (1.0, 1.0), (0.99, 0.99), (0.5, 0.5)])
def test_no_rate_is_beyond_what_judges_can_score_and_the_trainers_wait_for_the_rest(room: float, held: float) -> None:
    asked, how = calibration(CAPPED), {"form_error": False, "is_reference": True}
    plain, run = predict(asked, KEEPING_UP, **how), simulated_run(asked, KEEPING_UP)
    made_per_s = sum(run.step_left_tokens) / run.seconds / asked.system.workload.lengths.mean_tokens
    found = predict(replace(asked, most_samples_per_s=room * made_per_s), KEEPING_UP, **how)
    assert found.tokens_per_s == pytest.approx(held * plain.tokens_per_s)
    assert found.drawn_tokens_per_s == pytest.approx(np.minimum(plain.drawn_tokens_per_s, room * plain.tokens_per_s))
    assert found.timing.step_s == pytest.approx(plain.timing.step_s / held)
    for before, after in zip(idle_ratios(plain.timing), idle_ratios(found.timing), strict=True):
        assert 1.0 - after == pytest.approx(held * (1.0 - before))


def idle_ratios(timing: StepTiming) -> tuple[float, float]:
    return timing.trainer_idle_ratio, timing.sampler_idle_ratio


def test_judges_that_are_busy_half_of_the_time_score_twice_as_many_samples_at_most() -> None:
    asked, run = calibration(CAPPED), simulated_run(calibration(CAPPED), TODAY)
    assert run.dropped_ratio == 0.0
    made_per_s = asked.system.workload.samples_per_step / run.step_s
    assert held_by_auxiliary(asked, 0.5).most_samples_per_s == pytest.approx(2.0 * made_per_s, rel=0.01)
    for free in (held_by_auxiliary(asked, 0.0), held_by_auxiliary(replace(asked, synchronous=True), 0.5)):
        assert free.most_samples_per_s == math.inf


def test_the_form_error_is_partly_shared_and_the_sampling_error_belongs_to_what_is_compared() -> None:
    def noise(layout: Layout, **how: bool) -> np.ndarray[Any, Any]:
        plain = predict(calibration(CAPPED), layout, form_error=False, is_reference=True).drawn_tokens_per_s
        found = predict(calibration(CAPPED), layout, **how).drawn_tokens_per_s
        return np.log(found / plain)

    both = noise(KEEPING_UP, is_reference=True), noise(AHEAD, is_reference=True)
    assert [each.std() for each in both] == pytest.approx([0.045, 0.045], rel=0.05)
    assert np.corrcoef(*both)[0, 1] == pytest.approx(0.5, abs=0.2)
    assert 0.001 < noise(KEEPING_UP, form_error=False).std() < 0.02


def test_a_model_that_failed_a_check_errs_by_more() -> None:
    asked = replace(calibration(CAPPED), error_ratio=2.0)
    plain, found = (predict(asked, AHEAD, form_error=each).drawn_tokens_per_s for each in (False, True))
    assert np.log(found / plain).std() == pytest.approx(0.09, rel=0.05)


def test_the_fastest_are_predicted_and_the_slower_ones_have_no_figures() -> None:
    layouts = possible_layouts(8, Granularity(1), (32, 64))
    found = predict_layouts(calibration(CAPPED), layouts)
    rates = [each.tokens_per_s for each in found.rivals]
    assert rates == sorted(rates, key=lambda rate: -(rate or 0.0))
    assert 4 <= len(rates) <= 10
    left = [each for each in found.others if each not in found.rivals]
    assert left and all((each.tokens_per_s, each.excluded) == (None, None) for each in left)
    assert found.shown == (found.today, *found.rivals)
    assert {each.layout for each in (found.today, *found.others)} == {*layouts, found.today.layout}


def test_a_layout_that_is_too_stale_is_excluded_and_makes_room_for_the_next() -> None:
    free = forecasts(CAPPED)
    least = min(each.staleness.sample_p95 for each in free.rivals if each.staleness)
    capped = predict_layouts(calibration(CAPPED), possible_layouts(8, Granularity(1), (64,)), least)
    assert capped.today.excluded is None
    assert all(each.staleness and each.staleness.sample_p95 <= least for each in capped.rivals)
    stale = [each for each in capped.others if each.excluded == "too_stale"]
    assert stale and all(each.staleness and each.drawn_tokens_per_s is None for each in stale)


def test_layouts_that_are_too_stale_beyond_doubt_take_no_prediction_from_slower_ones_that_keep_the_cap() -> None:
    asked, layouts = calibration(UNLIMITED), possible_layouts(8, Granularity(1), (8, 16, 32, 64, 128))
    found = predict_layouts(asked, layouts, 1)
    assert Layout(5, 3, 32) in {each.layout for each in found.rivals}
    closed = {each.layout: each.staleness for each in closed_forecasts(asked.system, layouts)}
    _, _, *stale = [closed[each.layout] for each in found.others if each.excluded == "too_stale"]
    assert stale and all(each is None or each.sample_p95 <= 1.25 for each in stale)


def test_the_fastest_of_those_that_may_be_recommended_are_predicted_beside_the_two_fastest_of_all() -> None:
    layouts = possible_layouts(8, Granularity(1), (64,))
    found = predict_layouts(calibration(CAPPED), layouts, affords=lambda each, *_: each.layout.trainer_gpus <= 2)
    assert {each.layout.trainer_gpus for each in found.rivals} > {1}
    others = [each.layout for each in found.rivals if each.layout.trainer_gpus > 2]
    assert len(others) == 2 and others == [each.layout for each in forecasts(CAPPED).rivals[:2]]


def test_layouts_that_are_too_stale_only_by_the_closed_forms_are_predicted_beside_those_that_are_fresh() -> None:
    """Layouts with 1 trainer GPU are fresh, and those with 5 or more are if their staleness is a quarter too high."""
    layouts = possible_layouts(8, Granularity(1), (64,))

    def predicted(affords: Callable[[Forecast, Forecast, float], bool]) -> set[int]:
        found = predict_layouts(calibration(CAPPED), layouts, affords=affords)
        return {each.layout.trainer_gpus for each in found.rivals}

    strict = predicted(lambda each, *_: each.layout.trainer_gpus == 1)
    lenient = predicted(
        lambda each, _, leeway: each.layout.trainer_gpus == 1 or (leeway, each.layout.trainer_gpus) >= (1.25, 5)
    )
    assert lenient - strict == {5, 6}


def test_higher_limits_that_are_no_faster_take_no_prediction_from_other_splits() -> None:
    few, many = (
        predict_layouts(calibration(CAPPED), possible_layouts(8, Granularity(1), limits))
        for limits in ((48,), (48, 64, 80, 96, 112, 128))
    )
    assert {each.layout.trainer_gpus for each in many.rivals} >= {each.layout.trainer_gpus for each in few.rivals}


@pytest.mark.parametrize("layout", [Layout(5, 3, 64), Layout(3, 5, 64), Layout(2, 6, 64), Layout(1, 7, 128)])
def test_what_publications_that_wait_make_of_an_age_is_known_before_a_layout_is_simulated(layout: Layout) -> None:
    waiting = calibration(Admission(1_200, max_staleness=2, staleness_policy="publication_waits"))
    roughly = closed_forecasts(waiting.system, (layout,))[0].staleness
    found = predict(waiting, layout).staleness
    assert roughly is not None and found is not None and found.sample_p95 == 2
    assert roughly.p95_steps == pytest.approx(found.p95_steps, rel=0.2)


def test_slow_engines_slow_a_layout_by_their_share_of_its_engines() -> None:
    slow = replace(calibration(), engine_slowness=(2.0, *[0.9] * 5))
    rates = [predict(each, Layout(6, 2, 64)).tokens_per_s or 0.0 for each in (calibration(), slow)]
    # Of the two engines left one is slow: half of 1 / 2 + 1 / 0.9 as fast.
    assert rates[1] / rates[0] == pytest.approx((1 / 2.0 + 1 / 0.9) / 2.0, rel=0.05)


def test_a_layout_whose_queue_would_grow_gets_a_limit_that_keeps_its_rate_and_holds_its_staleness() -> None:
    forecast = next(each for each in forecasts().others if each.layout == AHEAD)
    free = simulated_run(calibration(), AHEAD)
    assert free.staleness.samples.percentile(0.95) >= 10
    assert forecast.in_flight_limit == held(calibration(), AHEAD).system.admission.max_in_flight_samples
    assert forecast.tokens_per_s == pytest.approx(free.trained_tokens_per_s, rel=0.01)
    assert (forecast.staleness.sample_p95, forecast.staleness.horizon_steps) == (3, None)


@pytest.mark.parametrize(
    ("layout", "admission"),
    [(TODAY, UNLIMITED), (KEEPING_UP, UNLIMITED), (AHEAD, Admission(max_in_flight_samples=900))],
    ids=["the current layout, which has none", "samplers that keep up", "a limit that is set"],
)
def test_no_other_layout_gets_one(layout: Layout, admission: Admission) -> None:
    found = forecasts(admission)
    assert next(each for each in (found.today, *found.others) if each.layout == layout).in_flight_limit is None


def test_rarer_publications_that_let_the_queue_grow_get_the_limit_too_and_fixes_do_not() -> None:
    solver = Counterfactuals(calibration(), observed(), forecasts().today, Grounds())
    assert {each.what: each.in_flight_limit is not None for each in solver.actions({})} == {
        "trainer_speed": False,
        "weight_updates": False,
        "publish_every": True,
    }


def interval(found: Calibration, layout: Layout, staleness: StalenessForecast) -> tuple[float, float]:
    ends = price_simulated(simulated_run(found, layout), staleness, found.system, found.draws, layout).staleness
    return ends.p95_interval_steps


def test_the_interval_of_a_p95_is_wide_where_some_draws_let_the_queue_grow_and_narrow_where_a_limit_holds_it() -> None:
    staleness = predict(calibration(), AHEAD, holds=True).staleness
    assert staleness.p95_interval_steps == (2.0, 4.0)
    low, high = interval(calibration(), AHEAD, replace(staleness, horizon_steps=60))
    # The ratio of both speeds errs by 7%: up to 12% more surplus, for 60 steps.
    assert low <= staleness.sample_p95 and high >= staleness.sample_p95 + 0.1 * 60


def test_the_interval_of_a_p95_is_that_of_the_draws_moved_to_the_best_estimate() -> None:
    plain = calibration(Admission(max_in_flight_samples=900))
    slower = tuple(with_trainer_speed(each, 0.5) for each in plain.draws)
    staleness = StalenessForecast(1.0, 9, 9, steps_per_version=2.0)
    low, high = interval(plain, KEEPING_UP, staleness)
    assert low <= 2.0 * 9 <= high <= 2.0 * 12
    # With trainers half as fast, samples wait for them in the queue.
    assert interval(replace(plain, draws=slower), KEEPING_UP, staleness)[1] > high
    assert interval(plain, KEEPING_UP, StalenessForecast(0.0, 0, 0))[0] == 0.0
