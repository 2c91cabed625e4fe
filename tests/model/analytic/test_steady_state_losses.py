"""The one word for a layout, and what each side's losses are charged to."""

import numpy as np
import pytest

from rlscope.model.analytic.limits import Levels
from rlscope.model.analytic.steady_state import LimitCause, Losses, regimes_of, sampler_losses, trainer_losses
from rlscope.model.system import Layout

EVEN = Layout(8, 8, 64)


def levels(*periods_s: float) -> Levels:
    """Periods under more and more limits: hardware, weight updates, admission, environment, staleness."""
    arrays = [np.array([period_s]) for period_s in periods_s]
    return Levels(*arrays, hardware_running=np.ones(1), running=np.ones(1), aged_ratio=np.zeros(1))


def lost(**ratios: float) -> Losses:
    causes = ("samplers", "trainers", "weight_updates", "environment", "in_flight_limit", "staleness_cap")
    return {cause: np.array([ratios.get(cause, 0.0)]) for cause in causes}


def ratios(losses: Losses) -> dict[LimitCause, float]:
    """Losses of one layout, without the causes that cost nothing."""
    return {cause: float(ratio[0]) for cause, ratio in losses.items() if ratio[0]}


@pytest.mark.parametrize("cause", ["samplers", "weight_updates", "environment", "in_flight_limit", "staleness_cap"])
def test_a_side_may_lose_a_tenth_and_be_balanced(cause: str) -> None:
    assert regimes_of([EVEN], lost(**{cause: 0.10}), lost()) == ["balanced"]
    assert regimes_of([EVEN], lost(**{cause: 0.1001}), lost()) == [cause]


def test_a_surplus_of_the_samplers_is_named_for_the_trainers() -> None:
    assert regimes_of([EVEN], lost(), lost(trainers=0.10)) == ["balanced"]
    assert regimes_of([EVEN], lost(), lost(trainers=0.1001)) == ["trainers"]


def test_the_cause_that_costs_the_most_gpu_time_over_both_sides_is_named() -> None:
    trainers, samplers = lost(samplers=0.3, weight_updates=0.2), lost(weight_updates=0.2)
    assert regimes_of([EVEN], trainers, samplers) == ["weight_updates"]
    assert regimes_of([Layout(32, 8, 64)], trainers, samplers) == ["samplers"]


def test_what_each_limit_adds_beyond_the_trainers_pace_is_charged_to_it() -> None:
    steps_s, train_s = np.array([20.0]), np.array([8.0])
    charged = {"weight_updates": 2 / 20, "in_flight_limit": 1 / 20, "environment": 3 / 20, "staleness_cap": 4 / 20}
    found = ratios(trainer_losses(levels(10, 12, 13, 16, 20), train_s, 1.0, steps_s))
    assert found == pytest.approx({"samplers": 2 / 20, **charged, "weight_updates": 3 / 20})
    assert ratios(sampler_losses(levels(10, 12, 13, 16, 20), train_s, steps_s)) == charged


def test_limits_below_the_trainers_pace_cost_nothing_and_the_surplus_is_the_trainers() -> None:
    found = sampler_losses(levels(10, 12, 13, 16, 18), np.array([20.0]), np.array([20.0]))
    assert ratios(found) == {"trainers": 8 / 20, "weight_updates": 2 / 20}
    assert not ratios(trainer_losses(levels(10, 12, 13, 16, 18), np.array([20.0]), 0.0, np.array([20.0])))
