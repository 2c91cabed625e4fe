"""What engines that straggle cost the others' capacity."""

from dataclasses import replace

import numpy as np
import pytest

from rlscope.model.calibration import calibrate
from rlscope.model.decode.curves import RooflineCurve
from rlscope.model.forecast.gap import (
    STRAGGLES_RATIO,
    engine_slowness,
    explain_gap,
    slow_engine_names,
    speed_without_stragglers,
)
from rlscope.model.forecast.layouts import forecast_layouts
from rlscope.model.observed import PassCosts
from rlscope.model.system import Admission, Granularity, possible_layouts
from tests.model.known_run import observed, slowed, steady

CURVE = RooflineCurve(flat_s=0.01, per_request_s=1e-4, sharpness=2.0, kv_s_per_token=1e-6)


def passes(*slowness: float, running: int = 8, prefills: bool = False) -> PassCosts:
    """Ten passes of every engine, each so many times as long as the curve says; 1,000 tokens are resident."""
    engines = len(slowness)
    pass_s = np.array(slowness) * (CURVE.pass_s(float(running)) + 1_000 * 1e-6)
    return PassCosts(
        engine=np.arange(engines),
        running=np.full(engines, running),
        kv_tokens=np.full(engines, 1_000.0),
        prefills=np.full(engines, prefills),
        rows=np.full(engines, 1),
        passes=np.full(engines, 10),
        busy_s=10 * pass_s,
        between_s=np.zeros(engines),
        pass_p50_s=pass_s,
        decode_tokens=np.full(engines, 10 * running),
        prefill_tokens=np.zeros(engines, dtype=np.int64),
    )


@pytest.mark.parametrize(
    ("slowness", "speed"),
    [
        ((1.0, 1.0, 1.0), 1.0),
        ((1.0, 1.0, 1.24), 1.0),
        ((1.0, 1.0, 1.25), 3.0 / (2.0 + 1.0 / 1.25)),
        ((1.0, 1.0, 1.0, 4.0), 4.0 / 3.25),
        ((1.0, 4.0), 1.0),
    ],
    ids=["all alike", "below the threshold", "on the threshold", "one at a quarter", "two cannot tell who is slow"],
)
def test_the_speed_without_stragglers_is_that_of_median_engines(slowness, speed):
    assert speed_without_stragglers(passes(*slowness), CURVE) == pytest.approx(speed)


def test_an_engine_with_a_small_batch_is_not_slow_for_it():
    small, full = passes(1.0, running=1), passes(1.0, 1.0, running=64)
    both = replace(
        small,
        **{
            name: np.concatenate([getattr(small, name), getattr(full, name)])
            for name in PassCosts.__dataclass_fields__
            if name != "engine"
        },
        engine=np.arange(3),
    )
    assert engine_slowness(both, CURVE) == pytest.approx([1.0, 1.0, 1.0])


def test_the_engines_that_are_slow_have_names_where_the_run_has_them():
    unnamed = passes(1.0, 1.0, 2.0)
    assert slow_engine_names(unnamed, CURVE) == ()
    named = replace(unnamed, engine_names=("sampler-0", "sampler-1", "sampler-2"))
    assert slow_engine_names(named, CURVE) == ("sampler-2",)
    at_the_threshold = replace(passes(1.0, 1.0, STRAGGLES_RATIO), engine_names=named.engine_names)
    assert slow_engine_names(at_the_threshold, CURVE) == ("sampler-2",)
    two = replace(passes(1.0, 2.0), engine_names=("sampler-0", "sampler-1"))
    assert slow_engine_names(two, CURVE) == ()


def test_passes_that_prefill_tell_nothing():
    assert engine_slowness(passes(1.0, 2.0, 3.0, prefills=True), CURVE).size == 0
    assert speed_without_stragglers(passes(1.0, 2.0, 3.0, prefills=True), CURVE) == 1.0


def test_the_gap_charges_a_slow_engine_where_the_samplers_set_the_pace():
    run = observed()
    straggling = slowed(run, 3.0)
    lost = {}
    for each in (run, straggling):
        calibration = calibrate(each, Admission(), None, np.random.default_rng(1))
        # Enough trainers that samplers are the slower side.
        calibration = replace(calibration, layout=replace(calibration.layout, trainer_gpus=16))
        forecasts = forecast_layouts(calibration, possible_layouts(22, Granularity(1), (64,)))
        gap = explain_gap(calibration, each, forecasts, steady().trained_tokens_per_s)
        lost[each is straggling] = {step.cause: step.lost_tokens_per_s for step in gap.steps}["stragglers"]
    assert lost[False] == 0.0
    assert lost[True] > 0.0
