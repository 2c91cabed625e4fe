"""The price of an action: drops and trained lengths, and when they are too high to pay without a test."""

from dataclasses import astuple, replace

import numpy as np
import pytest

from rlscope.model.analytic.steady_state import steady_states
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.change import with_trainer_speed
from rlscope.model.forecast.price import Anchor, Price, price_simulated, staleness_simulated
from rlscope.model.observed import Delivered
from rlscope.model.simulate import simulate
from rlscope.model.simulate.results import longest_trained_ratio
from rlscope.model.system import Admission
from rlscope.reports.text.price import costly_words, dropped_words, longest_words
from tests.model.known_run import observed
from tests.model.simulated_systems import BUSY, LAYOUT, STARVED, constant, with_admission, with_engine, with_workload

exactly = Estimate.exactly


def price(dropped: float, longest: float = 1.0, tokens: float = 100.0) -> Price:
    return Price(None, exactly(dropped), exactly(tokens), exactly(longest))


@pytest.mark.parametrize(
    ("before", "after", "is_high"),
    [
        (price(0.0), price(0.10), False),
        (price(0.0), price(0.1001), True),
        # A run that drops as much today pays no more for it.
        (price(0.30), price(0.3099), False),
        (price(0.29), price(0.30), True),
        (price(0.40), price(0.30), False),
        # Half of the long responses are lost.
        (price(0.05, 1.0), price(0.05, 0.5001), False),
        (price(0.05, 1.0), price(0.05, 0.5), True),
        (price(0.05, 0.6), price(0.05, 0.3), True),
        (price(0.05, 0.6), price(0.05, 0.31), False),
        (price(0.05, 0.0), price(0.05, 0.0), False),
    ],
)
def test_a_price_is_high_above_a_tenth_of_the_tokens_and_a_point_more_or_half_of_the_long_ones(before, after, is_high):
    assert after.is_high(before) is is_high


def test_what_the_model_cannot_tell_is_no_price():
    assert not Price().is_high(price(0.0))
    assert (costly_words(Price(), price(0.0)), dropped_words(Price(), price(0.0))) == ("", "")


def test_a_price_is_named_by_what_it_costs_and_shown_from_a_point_on():
    high = Price(None, Estimate(0.38, 0.3, 0.44), exactly(80.0), exactly(0.05))
    assert costly_words(high, price(0.02)) == (
        "raises drops from 2.0% to 38% of generated tokens and trains only 5.0% of the longest tenth of responses"
    )
    assert dropped_words(high, price(0.02)) == "2.0% → 38% (30% to 44%)"
    assert longest_words(high, price(0.02)) == "100% → 5.0%"
    assert costly_words(price(0.05, 0.0), price(0.05)) == "trains none of the longest tenth of responses"
    assert dropped_words(price(0.0099), price(0.0)) == ""
    assert dropped_words(price(0.01), price(0.0)) == "0% → 1.0%"


def test_a_run_is_compared_with_the_rate_and_the_price_that_the_model_gives_for_it():
    run = replace(observed(), delivered=Delivered(trained_tokens=700, dropped_tokens=280, filtered_tokens=20))
    mean_tokens = run.steps.response_tokens.sum() / run.steps.samples.sum()
    anchor = Anchor.of(run, 2.0 * run.trained_tokens_per_s, price(0.2, tokens=mean_tokens / 1.1))
    assert astuple(anchor) == pytest.approx((0.5, 0.2, 0.08, 1.1))
    assert Anchor.of(run, None, Price()) == Anchor()


def test_prices_are_moved_as_the_current_one_has_to_be_to_equal_its_measurement():
    # The model drops 20% where 28% were dropped, and trained samples were a tenth longer.
    anchor = Anchor(1.0, 0.2, 0.08, 1.1)
    today = anchor.moved(price(0.2, 0.5, 90.0))
    assert today.dropped_ratio == exactly(pytest.approx(0.28))
    assert today.mean_trained_tokens == exactly(pytest.approx(99.0))
    # Half of the longest were lost: now 1.4 times as many.
    assert today.longest_trained_ratio == exactly(pytest.approx(0.3))
    # Where nothing or everything is dropped, nothing moves; halfway there, 0.1 * 0.9 / (0.2 * 0.8) of the difference.
    for modeled, moved in ((0.0, 0.0), (1.0, 1.0), (0.1, 0.1 + 0.5625 * 0.08), (0.5, 0.58)):
        assert anchor.moved(price(modeled)).dropped_ratio == exactly(pytest.approx(moved))
    # Drops that the model knows nothing of come on top.
    assert Anchor(1.0, 0.0, 0.02).moved(price(0.0)).dropped_ratio == exactly(0.02)


@pytest.mark.parametrize(
    ("trained", "dropped", "ratio"),
    [
        (range(1, 10), [10], 0.0),
        (range(2, 11), [1], 1.0),
        # Two of twenty are the longest tenth; three are as long.
        ([*range(1, 18), 20], [20, 20], 1 / 3),
        ([7], [], 1.0),
    ],
)
def test_the_longest_tenth_are_all_samples_as_long_as_its_shortest(trained, dropped, ratio):
    assert longest_trained_ratio(np.array(trained), np.array(dropped, dtype=np.int64)) == pytest.approx(ratio)


def test_a_full_queue_that_drops_its_oldest_drops_the_surplus_whatever_its_length():
    alike = with_workload(BUSY, lengths=constant(30))
    system = with_admission(alike, queue_capacity_samples=48, queue_policy="drop_oldest")
    run = simulate(system, LAYOUT, steps=60, seed=1)
    assert run.dropped_ratio == pytest.approx(1.0 - sum(run.step_trained_tokens) / run.engine_totals.tokens, abs=0.01)
    assert sum(run.step_left_tokens) - sum(run.step_dropped_tokens) == sum(run.step_trained_tokens)
    assert run.longest_trained_ratio == pytest.approx(1.0 - run.dropped_ratio)
    found = price_simulated(run, staleness_simulated(run, system.admission), system, [system] * 20, LAYOUT)
    assert found.dropped_ratio is not None and found.mean_trained_tokens == exactly(pytest.approx(30.0))
    assert found.dropped_ratio.low < run.dropped_ratio < found.dropped_ratio.high


@pytest.mark.parametrize(("speed", "has_width"), [(1.1, True), (1.2, False)])
def test_a_share_that_no_draw_drops_reaches_up_to_what_trainers_slower_by_the_usual_error_would_drop(
    speed: float, has_width: bool
):
    system = with_admission(BUSY, queue_capacity_samples=48, queue_policy="drop_oldest")
    balance = 1.0 / (1.0 - steady_states(system, (LAYOUT,))[0].dropped_ratio)
    faster = with_trainer_speed(system, balance * speed)
    run = replace(simulate(faster, LAYOUT, steps=20, seed=1), step_dropped_tokens=(0,) * 20)
    staleness = staleness_simulated(run, faster.admission)
    found = price_simulated(run, staleness, faster, [faster] * 3, LAYOUT).dropped_ratio
    assert (found.value, found.low) == (0.0, 0.0)
    assert (found.high > 0.0) is has_width


@pytest.mark.parametrize(
    ("system", "admission", "horizon_steps"),
    [
        (BUSY, Admission(), 60),
        (BUSY, Admission(max_in_flight_samples=200), None),
        (BUSY, Admission(queue_capacity_samples=96), None),
        (STARVED, Admission(), None),
    ],
    ids=["samplers stay ahead", "samples in flight are limited", "the queue is limited", "trainers keep up"],
)
def test_staleness_grows_where_samplers_stay_ahead_and_nothing_limits_them(system, admission, horizon_steps):
    run = simulate(replace(system, admission=admission), LAYOUT, steps=60, seed=1)
    found = staleness_simulated(run, admission)
    assert (found.horizon_steps, found.grows) == (horizon_steps, horizon_steps is not None)
    assert found.sample_p95 > 10 or horizon_steps is None


@pytest.mark.parametrize(("growth", "horizon_steps"), [(0.99, None), (1.0, 60)])
def test_staleness_that_rises_by_a_version_from_half_to_half_grows(growth, horizon_steps):
    run = simulate(STARVED, LAYOUT, steps=60, seed=1)
    risen = replace(run, staleness=replace(run.staleness, growth=growth))
    assert staleness_simulated(risen, Admission()).horizon_steps == horizon_steps


def test_samples_that_age_out_are_the_longest_and_another_run_drops_a_share_within_the_interval():
    aged = with_admission(STARVED, queue_capacity_samples=96, max_staleness=3, staleness_policy="drop")
    system, layout = with_engine(aged, max_running=64), replace(LAYOUT, max_running=16)
    few = simulate(system, replace(LAYOUT, max_running=4), steps=60, seed=1)
    many, again = (simulate(system, layout, steps=60, seed=seed) for seed in (1, 7))
    assert (few.dropped_ratio, few.longest_trained_ratio) == (0.0, 1.0)
    assert many.dropped_ratio > 0.3 and many.longest_trained_ratio < 0.3
    assert many.mean_trained_tokens < 0.9 * few.mean_trained_tokens
    staleness = staleness_simulated(many, system.admission)
    found = price_simulated(many, staleness, system, [system] * 20, layout).dropped_ratio
    assert found.low <= again.dropped_ratio <= found.high
