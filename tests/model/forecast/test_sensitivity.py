"""What one per cent buys, against what it must by arithmetic: shares of a step, and all of them together."""

from dataclasses import replace

import pytest

from rlscope.model.analytic.synchronous import split_step
from rlscope.model.calibration import Calibration
from rlscope.model.forecast.sensitivity import Sensitivity, SensitivityQuantity, sensitivities
from rlscope.model.system import Admission, Engine, Granularity, Layout, System, WeightUpdateCost
from rlscope.model.warnings import ModelWarning
from tests.model.known_run import TODAY, TRUTH, calibrated, steady

ONE = Granularity(1)


def run_of(system: System, layout: Layout = TODAY, *, synchronous: bool = False) -> Calibration:
    """A run that is known for certain: every draw is the truth."""
    return replace(calibrated(), system=system, draws=(system,) * 20, layout=layout, synchronous=synchronous)


def levers(run: Calibration, granularity: Granularity = ONE) -> dict[SensitivityQuantity, Sensitivity]:
    return {lever.quantity: lever for lever in sensitivities(run, granularity)}


def gain(found: dict[SensitivityQuantity, Sensitivity], quantity: SensitivityQuantity) -> float:
    spread = found[quantity].gain_ratio
    assert spread is not None
    assert spread.low == pytest.approx(spread.high)
    return spread.value


SAMPLER_BOUND = Layout(trainer_gpus=6, sampler_gpus=2, max_running=32)


def test_where_the_trainers_set_the_pace_a_speed_buys_its_share_of_their_step():
    found = levers(run_of(TRUTH))
    state = steady()
    train_share = 1.0 - TRUTH.update.trainer_blocked_s / state.step_s
    # Two per cent faster, given for one: the curvature of 1 / (1 - share + share / 1.02) is left in.
    expected = (1.0 / (1.0 - train_share + train_share / 1.02) - 1.0) / 2.0
    assert gain(found, "trainer_speed") == pytest.approx(expected, rel=1e-9)
    blocked_share = 1.0 - train_share
    assert gain(found, "weight_update") == pytest.approx((1.0 / (1.0 - 0.02 * blocked_share) - 1.0) / 2.0, rel=1e-9)
    assert not found["trainer_speed"].is_rough  # samplers are held back, which the rate does not depend on
    silent = ("engine_speed", "sampler_gpus", "running_limit")
    assert {(gain(found, each), found[each].no_effect_reason) for each in silent} == {(0.0, "not_limiting")}


def test_where_the_samplers_set_the_pace_an_engine_more_is_given_per_cent_of_the_engines():
    found = levers(run_of(TRUTH, SAMPLER_BOUND))
    more = replace(SAMPLER_BOUND, sampler_gpus=3)
    gained = steady(TRUTH, more).trained_tokens_per_s / steady(TRUTH, SAMPLER_BOUND).trained_tokens_per_s - 1.0
    assert gain(found, "sampler_gpus") == pytest.approx(gained / 50.0)
    assert gain(found, "engine_speed") > 0.009
    assert found["trainer_speed"].no_effect_reason == found["trainer_gpus"].no_effect_reason == "not_limiting"


def test_gpus_are_added_by_whole_engines_and_replicas():
    system = replace(TRUTH, engine=replace(TRUTH.engine, gpus=2))
    layout = Layout(trainer_gpus=2, sampler_gpus=8, max_running=4)
    found = levers(run_of(system, layout), Granularity(gpus_per_engine=2, gpus_per_trainer_replica=2))
    more = steady(system, replace(layout, sampler_gpus=10)).trained_tokens_per_s
    assert gain(found, "sampler_gpus") == pytest.approx((more / steady(system, layout).trained_tokens_per_s - 1.0) / 25)


def test_a_replica_may_be_larger_than_an_engine():
    found = levers(run_of(TRUTH), Granularity(gpus_per_engine=1, gpus_per_trainer_replica=2))
    gained = steady(TRUTH, replace(TODAY, trainer_gpus=4)).trained_tokens_per_s / steady().trained_tokens_per_s - 1.0
    assert gain(found, "trainer_gpus") == pytest.approx(gained / 100.0)


@pytest.mark.parametrize("synchronous", [False, True])
@pytest.mark.parametrize("layout", [TODAY, SAMPLER_BOUND])
def test_all_that_takes_time_buys_one_per_cent_together(layout: Layout, synchronous: bool):
    slow = replace(
        TRUTH,
        engine=replace(TRUTH.engine, prefill_tokens_per_s=20_000.0),
        update=WeightUpdateCost(0.05, 0.1, 0.02),
        workload=replace(TRUTH.workload, environment_s=1.0),
    )
    found = levers(run_of(slow, layout, synchronous=synchronous))
    everything = ("trainer_speed", "engine_speed", "weight_update", "environment")
    assert sum(gain(found, each) for each in everything) == pytest.approx(0.01, rel=0.03)


def test_a_run_by_turns_waits_for_both_sides():
    found = levers(run_of(TRUTH, synchronous=True))
    step = split_step(TRUTH, TODAY)
    assert step is not None
    share = step.train_s / step.step_s
    assert gain(found, "trainer_speed") == pytest.approx((1.0 / (1.0 - share + share / 1.02) - 1.0) / 2.0, rel=1e-9)
    assert gain(found, "engine_speed") > 0.0


def test_a_limit_that_binds_buys_something_and_one_that_is_not_there_says_so():
    cramped = replace(
        TRUTH, engine=Engine(1, TRUTH.engine.curve, 1_000_000, kv_capacity_tokens=3_000.0), admission=Admission(64)
    )
    found = levers(run_of(cramped, SAMPLER_BOUND))
    assert gain(found, "kv_capacity") > 0.0 and found["kv_capacity"].is_rough
    assert found["running_limit"].no_effect_reason == "not_limiting"
    assert found["in_flight_cap"].no_effect_reason == found["staleness_cap"].no_effect_reason == "not_there"
    assert found["environment"].no_effect_reason == "not_there"
    assert found["prefill_speed"] == Sensitivity("prefill_speed", None, "not_recorded", found["prefill_speed"].is_rough)


def test_a_cap_in_flight_buys_per_cent_of_itself():
    capped = replace(TRUTH, admission=Admission(max_in_flight_samples=64))
    found = levers(run_of(capped, SAMPLER_BOUND))
    wider = replace(TRUTH, admission=Admission(max_in_flight_samples=65))  # two per cent of 64 are one sample
    ratio = steady(wider, SAMPLER_BOUND).trained_tokens_per_s / steady(capped, SAMPLER_BOUND).trained_tokens_per_s
    assert gain(found, "in_flight_cap") == pytest.approx((ratio - 1.0) * 64 / 100)
    assert found["in_flight_cap"].is_rough


def test_a_cap_on_what_runs_buys_per_cent_of_itself():
    capped = replace(TRUTH, admission=Admission(max_running_samples=48))
    found = levers(run_of(capped, SAMPLER_BOUND))
    wider = replace(TRUTH, admission=Admission(max_running_samples=49))
    ratio = steady(wider, SAMPLER_BOUND).trained_tokens_per_s / steady(capped, SAMPLER_BOUND).trained_tokens_per_s
    assert ratio > 1.0
    assert gain(found, "in_flight_cap") == pytest.approx((ratio - 1.0) * 48 / 100)
    assert not found["in_flight_cap"].is_rough


def test_where_the_limit_is_the_most_that_ran_it_rises_with_the_cap_that_held_it_there():
    capped, wider = (replace(TRUTH, admission=Admission(max_running_samples=most)) for most in (64, 65))
    run = run_of(capped, SAMPLER_BOUND)
    assert levers(run)["in_flight_cap"].no_effect_reason == "not_limiting"  # 32 on an engine are its setting
    more = steady(wider, replace(SAMPLER_BOUND, max_running=33)).trained_tokens_per_s
    ratio = more / steady(capped, SAMPLER_BOUND).trained_tokens_per_s
    found = levers(replace(run, warnings=(ModelWarning.LIMIT_BELOW_SETTING,)))
    assert gain(found, "in_flight_cap") == pytest.approx((ratio - 1.0) * 64 / 100) and ratio > 1.0
    assert found["running_limit"].no_effect_reason == "not_limiting"


def test_what_buys_most_comes_first_and_what_buys_nothing_last():
    found = sensitivities(calibrated(), ONE)
    sizes = [abs(lever.gain_ratio.value) if lever.gain_ratio else 0.0 for lever in found]
    assert sizes == sorted(sizes, reverse=True)
    assert found[0].quantity == "trainer_speed" and found[0].gain_ratio is not None
    assert found[0].gain_ratio.low < found[0].gain_ratio.value < found[0].gain_ratio.high
    assert len({lever.quantity for lever in found}) == 12
