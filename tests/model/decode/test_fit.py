import math

import numpy as np
import pytest

from rlscope.model.arrays import Reals
from rlscope.model.decode.curves import Form, RooflineCurve
from rlscope.model.decode.fit import CurveFit, fit_decode_curve
from rlscope.model.decode.measurements import DecodePoints
from rlscope.model.decode.prior import HardwarePrior, hardware_prior
from rlscope.model.estimate import Estimate
from rlscope.model.hardware.devices import find_device
from tests.model.decode.test_prior import EXPERTS as EXPERTS_SHAPE
from tests.model.hardware.test_devices import LLAMA_8B

PRIOR = hardware_prior(LLAMA_8B, find_device("NVIDIA H100 80GB HBM3"), 1)
TRUTH = RooflineCurve(6.2e-3, 2e-5, 1.6, 1e-3, 4.4e-8)
RUNNING = np.repeat([1.0, 2, 4, 8, 16, 32, 64, 128, 256, 512], 3)
KV_TOKENS = RUNNING * np.tile([250.0, 1000, 4000], 10)


def true_s(running: Reals, kv_tokens: Reals, curve: RooflineCurve = TRUTH) -> Reals:
    return curve.pass_s(running) + curve.kv_s_per_token * kv_tokens


def seen_to(most: float, curve: RooflineCurve = TRUTH) -> DecodePoints:
    """Passes of batches up to so many requests, exactly as the curve says."""
    seen = most >= RUNNING
    return DecodePoints.of(RUNNING[seen], true_s(RUNNING, KV_TOKENS, curve)[seen], rows=100, kv_tokens=KV_TOKENS[seen])


def fitted(points: DecodePoints, prior: HardwarePrior | None, form: Form | None = None) -> CurveFit:
    return fit_decode_curve(points, prior, np.random.default_rng(7), form=form)


def worst_ratio(fit: CurveFit, running: Reals, kv_tokens: Reals) -> float:
    predicted_s = fit.curve.pass_s(running) + fit.curve.kv_s_per_token * kv_tokens
    return float(np.abs(predicted_s / true_s(running, kv_tokens) - 1).max())


def width(interval: Estimate) -> float:
    return interval.high - interval.low


def test_passes_alone_give_the_curve_back_where_the_run_went() -> None:
    fit = fitted(seen_to(512), None)
    assert fit.form == "pnorm"
    assert worst_ratio(fit, RUNNING, KV_TOKENS) < 0.02
    assert fit.curve.kv_s_per_token == pytest.approx(4.4e-8, rel=0.03)
    assert fit.warnings == ("no_hardware_prior",)
    assert fit.mape_ratio < 0.01


def test_hardware_carries_a_narrow_run_beyond_what_it_saw() -> None:
    points, beyond = seen_to(64), RUNNING > 64
    with_hardware, alone = fitted(points, PRIOR), fitted(points, None)
    assert worst_ratio(with_hardware, RUNNING[beyond], KV_TOKENS[beyond]) < 0.1
    _, low_s, high_s = with_hardware.pass_interval(512, 512_000)
    assert low_s < true_s(np.array(512.0), np.array(512_000.0)) < high_s
    assert high_s - low_s < width(alone.pass_interval(512, 512_000))
    assert "slope_not_seen" in alone.warnings


def test_the_shape_follows_typical_passes_and_the_height_the_mean_ones() -> None:
    typical_s = true_s(RUNNING, KV_TOKENS)
    stalled = np.where(RUNNING <= 16, 4.0, 1.0)
    points = DecodePoints.of(RUNNING, typical_s * stalled, typical_s=typical_s, rows=100, kv_tokens=KV_TOKENS)
    fit = fitted(points, None)
    higher = float((typical_s * stalled).sum() / typical_s.sum())
    assert fit.cells.stall_ratio == pytest.approx(higher)
    assert fit.mape_ratio < 0.02
    ratio = (fit.curve.pass_s(RUNNING) + fit.curve.kv_s_per_token * KV_TOKENS) / typical_s
    assert ratio == pytest.approx(np.full(len(RUNNING), higher), rel=0.03)
    assert fit.pass_interval(64, 64_000).value == pytest.approx(
        higher * float(true_s(np.array(64.0), np.array(64_000.0))), rel=0.03
    )


def test_one_batch_size_is_known_there_and_may_be_anything_from_flat_to_proportional_elsewhere() -> None:
    fit = fitted(DecodePoints.of(np.full(20, 32.0), np.full(20, 1e-2), rows=100), None)
    assert fit.warnings == ("no_hardware_prior", "one_batch_size", "kv_not_recorded")
    assert [*fit.pass_interval(32, 0)] == pytest.approx([1e-2] * 3, rel=0.01)
    # A size that was not measured may be off the curve by 3%, of which 90% are within 5%.
    _, low, high = fit.pass_interval(320, 0)
    assert 1e-2 / 1.06 <= low < 2e-2
    assert 8e-2 < high <= 0.1 * 1.06
    # Each curve stays between flat and proportional.
    ratios = [float(curve.pass_s(320.0) / curve.pass_s(32.0)) for curve in fit.draws]
    assert min(ratios) >= 1.0
    assert max(ratios) <= 10.0 * (1 + 1e-9)


@pytest.mark.parametrize(
    ("prompts_s", "least_s", "most_s"), [((1e-2, 1.05e-2), 1e-2, 1.3e-2), ((0.4e-2, 2.8e-2), 2e-2, 3.3e-2)]
)
def test_prompts_show_the_slope_that_one_batch_size_does_not(
    prompts_s: tuple[float, float], least_s: float, most_s: float
) -> None:
    points = DecodePoints.of(np.full(20, 16.0), np.full(20, 1e-2), rows=100, kv_tokens=0.0)
    prompts = DecodePoints.of([6.0, 48.0], prompts_s, kv_tokens=0.0)
    free = fitted(points, None).pass_interval(48, 0)
    held = fit_decode_curve(points, None, np.random.default_rng(7), prefills=prompts)
    told = held.pass_interval(48, 0)
    assert least_s < told.value < most_s
    assert width(told) < 0.75 * (width(free))


def test_hardware_alone_is_assumed_and_nothing_at_all_is_no_fit() -> None:
    nothing = DecodePoints.of([], [])
    fit = fitted(nothing, PRIOR)
    assert fit.warnings == ("no_passes",)
    assert fit.grade(64) == "assumed"
    assert fit.mape_ratio is None and fit.visited is None
    _, low_s, high_s = fit.pass_interval(1, 1000)
    assert low_s < 7.2e-3 < high_s
    assert fit_decode_curve(nothing, None, np.random.default_rng(7)) is None


def test_a_resident_context_that_never_changed_is_said_to_be_part_of_the_slope() -> None:
    kv_tokens = 1000 * RUNNING
    fit = fitted(DecodePoints.of(RUNNING, true_s(RUNNING, kv_tokens), rows=100, kv_tokens=kv_tokens), None)
    assert "batch_and_kv_move_together" in fit.warnings
    assert worst_ratio(fit, RUNNING, kv_tokens) < 0.02


EXPERTS = RooflineCurve(2e-3, 2e-5, 1.0, 1e-3, 2e-8, experts_s=30e-3, hit_rate=-math.log1p(-8 / 128))


def test_passes_of_a_mixture_of_experts_choose_its_form() -> None:
    points = seen_to(256, EXPERTS)
    fit = fitted(points, None)
    assert fit.form == "expert_hit"
    assert fit.mape_ratio < 0.02
    forced = fitted(points, None, form="pnorm")
    assert forced.mape_ratio > 0.08


def test_a_model_of_experts_is_fitted_as_one_from_few_passes() -> None:
    fit = fitted(seen_to(32, EXPERTS), hardware_prior(EXPERTS_SHAPE, find_device("NVIDIA H200"), 1))
    assert fit.form == "expert_hit"
    truth_s = float(true_s(np.array(256.0), np.array(256_000.0), EXPERTS))
    _, low_s, high_s = fit.pass_interval(256, 256_000)
    assert low_s < truth_s < high_s < 1.6 * low_s


@pytest.mark.parametrize("most_s", [1.0, 1.1])
def test_passes_that_take_as_long_at_every_batch_size_may_go_on_to_and_most_likely_do(most_s: float) -> None:
    # 1.1: the largest batch is a tenth slower, as one kernel may be.
    running = np.array([1.0, 2, 4, 8, 16])
    seconds = 1e-2 * np.array([1.0, 1, 1, 1, most_s])
    fit = fitted(DecodePoints.of(running, seconds, rows=1000, kv_tokens=0.0), None)
    gains = [4 * float(curve.pass_s(16.0) / curve.pass_s(64.0)) - 1 for curve in fit.draws]
    low, median, high = np.quantile(gains, [0.05, 0.5, 0.95])
    assert high > 2.9
    assert low < 2.2
    assert most_s > 1.0 or median > 2.4


def test_a_draw_departs_from_its_form_only_beyond_the_batches_seen() -> None:
    points = seen_to(64)
    known, unknown = fitted(points, PRIOR), fitted(points, None)
    for fit, elasticity_sd in ((known, 0.06), (unknown, 0.2)):
        assert {curve.measured_running for curve in (fit.curve, *fit.draws)} == {64.0}
        assert np.std([curve.tilt for curve in fit.draws]) == pytest.approx(elasticity_sd, rel=0.2)
        assert fit.curve.tilt == 0.0
