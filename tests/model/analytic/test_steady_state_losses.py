"""The one word for a layout, and what each side's losses are charged to."""

import numpy as np
import pytest

from rlscope.model.analytic.limits import Levels
from rlscope.model.analytic.steady_state import SideLosses, regime_of, sampler_losses, trainer_losses
from rlscope.model.system import Layout

EVEN = Layout(8, 8, 64)
NONE = SideLosses()


def levels(*periods_s: float) -> Levels:
    """Periods under more and more limits: hardware, weight updates, admission, environment, staleness."""
    arrays = [np.array([period_s]) for period_s in periods_s]
    return Levels(*arrays, hardware_running=np.ones(1), running=np.ones(1), aged_ratio=np.zeros(1))


@pytest.mark.parametrize("cause", ["samplers", "weight_updates", "environment", "admission", "staleness_cap"])
def test_a_side_may_lose_a_tenth_and_be_balanced(cause: str) -> None:
    assert regime_of(EVEN, SideLosses(**{cause: 0.10}), NONE) == "balanced"
    assert regime_of(EVEN, SideLosses(**{cause: 0.1001}), NONE) == cause


def test_a_surplus_of_the_samplers_is_named_for_the_trainers() -> None:
    assert regime_of(EVEN, NONE, SideLosses(trainers=0.10)) == "balanced"
    assert regime_of(EVEN, NONE, SideLosses(trainers=0.1001)) == "trainers"


def test_the_cause_that_costs_the_most_gpu_time_over_both_sides_is_named() -> None:
    trainers, samplers = SideLosses(samplers=0.3, weight_updates=0.2), SideLosses(weight_updates=0.2)
    assert regime_of(EVEN, trainers, samplers) == "weight_updates"
    assert regime_of(Layout(32, 8, 64), trainers, samplers) == "samplers"


def test_what_each_limit_adds_beyond_the_trainers_pace_is_charged_to_it() -> None:
    steps_s, train_s = np.array([20.0]), np.array([8.0])
    (lost,) = trainer_losses(levels(10, 12, 13, 16, 20), train_s, 1.0, steps_s)
    assert lost == SideLosses(
        samplers=2 / 20,
        weight_updates=pytest.approx(3 / 20),
        admission=1 / 20,
        environment=3 / 20,
        staleness_cap=4 / 20,
    )
    (lost,) = sampler_losses(levels(10, 12, 13, 16, 20), train_s, steps_s)
    assert lost == SideLosses(
        trainers=0.0, weight_updates=2 / 20, admission=1 / 20, environment=3 / 20, staleness_cap=4 / 20
    )


def test_limits_below_the_trainers_pace_cost_nothing_and_the_surplus_is_the_trainers() -> None:
    (lost,) = sampler_losses(levels(10, 12, 13, 16, 18), np.array([20.0]), np.array([20.0]))
    assert lost == SideLosses(trainers=8 / 20, weight_updates=2 / 20)
    (lost,) = trainer_losses(levels(10, 12, 13, 16, 18), np.array([20.0]), 0.0, np.array([20.0]))
    assert lost == NONE
