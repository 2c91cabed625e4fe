"""Engines that are not equally fast: which are slow, what that costs, and which a layout keeps."""

from dataclasses import replace

import numpy as np
import pytest

from rlscope.model.decode.curves import RooflineCurve
from rlscope.model.engine_speeds import (
    engine_slowness,
    slow_engine_names,
    slowness_at,
    speed_without_stragglers,
    unequal_engines,
)
from rlscope.model.forecast.gap import explain_gap
from rlscope.model.forecast.predict import predict_layouts
from rlscope.model.observed import PassCosts
from rlscope.model.system import Granularity, possible_layouts
from rlscope.model.warnings import ModelWarning
from tests.model.few_draws import few_draws
from tests.model.known_run import calibration_of, observed, pass_costs, slowed, steady

CURVE = RooflineCurve(flat_s=0.01, per_request_s=1e-4, sharpness=2.0, kv_s_per_token=1e-6)


def passes(*slowness: float, running: int | tuple[int, ...] = 8, prefills: bool = False) -> PassCosts:
    """Ten passes of every engine, each so many times as long as the curve says; 1,000 tokens are resident."""
    engines = np.arange(len(slowness))
    batches = np.broadcast_to(running, engines.size)
    pass_s = np.array(slowness) * (CURVE.pass_s(batches.astype(np.float64)) + 1_000 * 1e-6)
    of_each = batches, np.full(engines.size, 1_000.0), np.full(engines.size, 10)
    return pass_costs(*of_each, pass_s, engine=engines, prefills=np.full(engines.size, prefills))


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
    assert engine_slowness(passes(1.0, 1.0, 1.0, running=(1, 64, 64)), CURVE) == pytest.approx([1.0, 1.0, 1.0])


def test_the_engines_that_are_slow_have_names_where_the_run_has_them():
    unnamed = passes(1.0, 1.0, 2.0)
    assert slow_engine_names(unnamed, CURVE) == ()
    named = replace(unnamed, engine_names=("sampler-0", "sampler-1", "sampler-2"))
    assert slow_engine_names(named, CURVE) == ("sampler-2",)


def test_passes_that_prefill_tell_nothing():
    assert np.isnan(engine_slowness(passes(1.0, 2.0, 3.0, prefills=True), CURVE)).all()
    assert unequal_engines(passes(1.0, 2.0, 3.0, prefills=True), CURVE) is None
    assert speed_without_stragglers(passes(1.0, 2.0, 3.0, prefills=True), CURVE) == 1.0


@pytest.mark.parametrize(("factor", "differ"), [(1.24, False), (1.26, True)])
def test_engines_differ_if_the_slowest_takes_a_quarter_longer_than_the_fastest(factor: float, differ: bool) -> None:
    assert (unequal_engines(passes(1.0, factor), CURVE) is not None) == differ


def test_unequal_engines_have_the_speed_of_the_curve_together() -> None:
    # Speeds of 1/2, 2/3 and twice 1 have a mean of 19/24: that is the speed 1 of the curve.
    found = unequal_engines(passes(2.0, 1.0, 1.5, 1.0), CURVE)
    assert found == pytest.approx([2.0 * 19 / 24, 19 / 24, 1.5 * 19 / 24, 19 / 24])


def test_an_engine_that_never_only_decoded_has_the_usual_speed() -> None:
    run = passes(2.0, 1.0, 1.0, 1.0, 1.0)
    run = replace(run, prefills=np.array([False, False, True, False, False]))
    # The usual of 2, 1, 1 and 1 is 1; the five have a mean speed of 4.5 / 5.
    assert unequal_engines(run, CURVE) == pytest.approx([1.8, 0.9, 0.9, 0.9, 0.9])


@pytest.mark.parametrize(
    ("slowness", "engines", "kept"),
    [
        ((2.0, 1.0, 1.0, 1.0), 4, (2.0, 1.0, 1.0, 1.0)),
        ((2.0, 1.0, 1.0, 1.0), 1, (2.0,)),
        ((1.0, 1.0, 1.0, 2.0), 3, (1.0, 1.0, 1.0)),
        ((2.0, 1.0, 1.0, 1.0), 6, (2.0, 1.0, 1.0, 1.0, 1.0, 1.0)),
        ((2.0, 2.0, 1.0, 1.0), 5, (2.0, 2.0, 1.0, 1.0, 4 / 3)),
        (None, 6, None),
    ],
    ids=["as recorded", "the first stays", "the last goes", "beside a straggler", "beside an old half", "all alike"],
)
def test_a_layout_keeps_the_first_engines_and_adds_usual_ones(slowness, engines, kept):
    assert slowness_at(slowness, engines) == pytest.approx(kept)


def test_the_curve_of_unequal_engines_is_that_of_equal_ones_at_their_mean_speed():
    every_batch_on_every_engine = tuple(batch for batch in (4, 8, 16, 32, 64) for _ in range(6))
    equal = observed(batches=every_batch_on_every_engine, noise=0.0)
    halves = slowed(equal, *[2.0] * (equal.engines // 2))
    fits = [calibration_of(run) for run in (equal, halves)]
    assert fits[0].engine_slowness is None and ModelWarning.UNEQUAL_ENGINES not in fits[0].warnings
    assert fits[1].engine_slowness == pytest.approx([1.5] * 3 + [0.75] * 3, rel=0.02)
    assert ModelWarning.UNEQUAL_ENGINES in fits[1].warnings
    batch = np.array([4.0, 16.0, 64.0])
    # Half of them at half speed: three quarters of the speed.
    curves = [fit.system.engine.curve.pass_s(batch) for fit in fits]
    assert curves[1] == pytest.approx(curves[0] / 0.75, rel=0.01)


def test_the_gap_charges_a_slow_engine_where_the_samplers_set_the_pace():
    run = observed()
    straggling = slowed(run, 3.0)
    lost = {}
    for each in (run, straggling):
        calibration = calibration_of(each, draw_count=3)
        # Enough trainers that samplers are the slower side.
        calibration = replace(calibration, layout=replace(calibration.layout, trainer_gpus=16))
        with few_draws():
            forecasts = predict_layouts(calibration, possible_layouts(22, Granularity(1), (64,)))
        gap = explain_gap(calibration, each, forecasts, steady().trained_tokens_per_s)
        lost[each is straggling] = {step.cause: step.lost_tokens_per_s for step in gap.steps}["slow_engines"]
    assert lost[False] == 0.0
    assert lost[True] > 0.0
