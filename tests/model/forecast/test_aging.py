"""How old samples may get: the interval of a p95, and the limit that a growing queue gets with the layout."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from rlscope.model.calibration import Calibration
from rlscope.model.forecast.actions import Counterfactuals
from rlscope.model.forecast.aging import held, with_staleness_interval
from rlscope.model.forecast.change import with_trainer_speed
from rlscope.model.forecast.layouts import Forecasts, forecast_layouts
from rlscope.model.forecast.price import Price, StalenessForecast
from rlscope.model.forecast.ranking import layout_actions
from rlscope.model.forecast.recommend import Grounds, recommend
from rlscope.model.forecast.simulated import correct_by_simulation, held_run, priced, simulated_run
from rlscope.model.simulate import Settings
from rlscope.model.system import Admission, Granularity, Layout, possible_layouts
from tests.model.known_run import TODAY, calibration_of, observed

AHEAD, KEEPING_UP = Layout(3, 5, 64), Layout(4, 4, 64)
"""With 3 trainer GPUs the samplers make 9% more than is trained on; with 4 they make less."""


UNLIMITED = Admission()


@cache
def calibration(admission: Admission = UNLIMITED) -> Calibration:
    return calibration_of(observed(), admission)


@cache
def judged(admission: Admission = UNLIMITED) -> Forecasts:
    layouts = possible_layouts(8, Granularity(1), (64,))
    return correct_by_simulation(
        calibration(admission), forecast_layouts(calibration(admission), layouts), Settings(), None
    )


def test_a_layout_whose_queue_would_grow_gets_a_limit_that_keeps_its_rate_and_holds_its_staleness() -> None:
    forecast = next(each for each in judged().others if each.layout == AHEAD)
    free = simulated_run(calibration(), AHEAD, Settings())
    assert free is not None and free.staleness.samples.percentile(0.95) >= 10
    assert forecast.in_flight_limit == held(calibration(), AHEAD).system.admission.max_in_flight_samples
    assert forecast.tokens_per_s == pytest.approx(free.trained_tokens_per_s, rel=0.01)
    assert forecast.staleness is not None
    assert (forecast.staleness.sample_p95, forecast.staleness.horizon_steps) == (3, None)


@pytest.mark.parametrize(
    ("layout", "admission"),
    [(TODAY, UNLIMITED), (KEEPING_UP, UNLIMITED), (AHEAD, Admission(max_in_flight_samples=900))],
    ids=["the current layout, which has none", "samplers that keep up", "a limit that is set"],
)
def test_no_other_layout_gets_one(layout: Layout, admission: Admission) -> None:
    found = judged(admission)
    assert next(each for each in (found.today, *found.others) if each.layout == layout).in_flight_limit is None


def test_the_action_has_the_limit_and_staleness_that_is_steady_with_it() -> None:
    grounds = Grounds(current_p95_steps=2.0)
    advised = recommend(calibration(), judged(), grounds)
    first = next(layout_actions(calibration(), judged(), advised))
    assert (first.after, first.kind, first.is_staler) == (AHEAD, "change", False)
    assert first.in_flight_limit == advised.best.in_flight_limit is not None
    assert first.staleness is not None and first.staleness.horizon_steps is None
    assert first.staleness.p95_interval_steps is not None


def test_rarer_publications_that_let_the_queue_grow_get_the_limit_too_and_fixes_do_not() -> None:
    solver = Counterfactuals(calibration(), judged().today, Grounds(), Settings())
    assert {each.what: each.in_flight_limit is not None for each in solver.actions(observed(), {})} == {
        "trainer_speed": False,
        "weight_updates": False,
        "publish_every": True,
    }


def interval(found: Calibration, layout: Layout, staleness: StalenessForecast) -> tuple[float, float]:
    ends = with_staleness_interval(Price(staleness), found, layout).staleness
    assert ends is not None and ends.p95_interval_steps is not None
    return ends.p95_interval_steps


def test_the_interval_of_a_p95_is_wide_where_some_draws_let_the_queue_grow_and_narrow_where_a_limit_holds_it() -> None:
    limited, run = held_run(calibration(), AHEAD, Settings())
    assert run is not None
    staleness = priced(limited, AHEAD, run).staleness
    assert staleness is not None
    assert interval(limited, AHEAD, staleness) == (2.0, 4.0)
    low, high = interval(calibration(), AHEAD, replace(staleness, horizon_steps=60))
    # The ratio of both speeds errs by 7%: up to 12% more surplus, for 60 steps.
    assert low <= staleness.sample_p95 and high >= staleness.sample_p95 + 0.1 * 60


def test_the_interval_is_that_of_the_draws_moved_to_the_best_estimate() -> None:
    plain = calibration(Admission(max_in_flight_samples=900))
    slower = tuple(replace(each, trainer=with_trainer_speed(each.trainer, 0.5)) for each in plain.draws)
    staleness = StalenessForecast(1.0, 9, 9, steps_per_version=2.0)
    low, high = interval(plain, KEEPING_UP, staleness)
    assert low <= 2.0 * 9 <= high <= 2.0 * 12
    # With trainers half as fast, samples wait for them in the queue.
    assert interval(replace(plain, draws=slower), KEEPING_UP, staleness)[1] > high


def test_unknown_staleness_has_no_interval_and_no_end_is_below_zero() -> None:
    assert with_staleness_interval(Price(), calibration(), AHEAD) == Price()
    fresh = interval(calibration(Admission(max_in_flight_samples=900)), KEEPING_UP, StalenessForecast(0.0, 0, 0))
    assert fresh[0] == 0.0 and math.isfinite(fresh[1])
    assert np.all(np.array(fresh) >= 0.0)
