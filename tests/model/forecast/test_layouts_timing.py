"""The timing of a layout, from each of the ways in which it is found."""

import pytest

from rlscope.model.analytic.synchronous import SynchronousStep
from rlscope.model.forecast.layouts import StepTiming, timing_of_simulated, timing_of_step
from rlscope.model.simulate import simulate
from tests.model.known_run import TODAY, TRUTH

STEP = SynchronousStep(
    step_s=10.0,
    generation_s=4.0,
    prefill_s=1.0,
    environment_s=0.0,
    train_s=4.0,
    update_s=1.0,
    trained_tokens_per_s=50.0,
    running=8.0,
)


def test_each_side_of_a_run_by_turns_waits_while_the_other_works():
    assert timing_of_step(STEP) == StepTiming(10.0, 500.0, 0.6, 0.5)


def test_a_simulated_run_paces_as_its_seconds_say():
    simulated = simulate(TRUTH, TODAY, steps=20, seed=1)
    timing = timing_of_simulated(simulated)
    trainers, engines = simulated.trainer_seconds, simulated.engine_totals
    worked_s = trainers.train_s + trainers.phases_s
    assert timing.trainer_idle_ratio == pytest.approx(1.0 - worked_s / simulated.seconds)
    assert timing.sampler_idle_ratio == pytest.approx(
        (engines.recompute_s + engines.pause_s + sum(simulated.idle_s.values())) / simulated.engine_s
    )
    assert timing.step_tokens / timing.step_s == pytest.approx(simulated.trained_tokens_per_s)
