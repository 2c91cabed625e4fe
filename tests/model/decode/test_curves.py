import math
from dataclasses import replace

import numpy as np
import pytest

from rlscope.model.decode.curves import ExpertHitCurve, PNormCurve, SigmoidCurve, SoftplusCurve
from rlscope.model.system import DecodeCurve

PNORM = PNormCurve(8e-3, 3e-5, 2.0)
SOFTPLUS = SoftplusCurve(8e-3, 266.0, 0.25, 1.0)
EXPERTS = ExpertHitCurve(2e-3, 30e-3, 0.0645, 5e-5)


@pytest.mark.parametrize("running", [1.0, 64.0, 266.7, 2000.0])
def test_the_p_norm_is_the_root_of_the_summed_powers(running: float) -> None:
    assert float(PNORM.pass_s(running)) == pytest.approx(math.hypot(8e-3, 3e-5 * running))


@pytest.mark.parametrize("sharpness", [1.0, 1.3, 2.0, 50.0])
def test_the_p_norm_stays_between_the_roofline_and_the_sum(sharpness: float) -> None:
    running = np.geomspace(1, 4096, 50)
    pass_s = PNormCurve(8e-3, 3e-5, sharpness).pass_s(running)
    assert np.all(pass_s >= np.maximum(8e-3, 3e-5 * running) * (1 - 1e-12))
    assert np.all(pass_s <= (8e-3 + 3e-5 * running) * (1 + 1e-12))


@pytest.mark.parametrize("curve", [PNORM, SOFTPLUS, EXPERTS])
def test_a_pass_grows_with_its_batch_and_so_does_the_rate(curve: DecodeCurve) -> None:
    running = np.linspace(1, 1024, 200)
    pass_s = curve.pass_s(running)
    assert np.all(np.diff(pass_s) > 0)
    assert np.all(np.diff(running / pass_s) > 0)


@pytest.mark.parametrize("curve", [PNORM, SOFTPLUS, EXPERTS, SigmoidCurve(8e-3, 266.0, 0.25, 1.0)])
def test_an_empty_pass_has_a_price_too_and_arrays_keep_their_shape(curve: DecodeCurve) -> None:
    nothing_s = float(curve.pass_s(0.0))
    assert nothing_s == pytest.approx(float(curve.pass_s(1e-6)), rel=1e-5)
    assert curve.pass_s(np.ones((2, 3))).shape == (2, 3)


@pytest.mark.parametrize("curve", [PNORM, SOFTPLUS, EXPERTS, SigmoidCurve(8e-3, 266.0, 0.25, 1.0)])
def test_the_overhead_is_added_at_every_batch_size(
    curve: PNormCurve | SoftplusCurve | SigmoidCurve | ExpertHitCurve,
) -> None:
    running = np.array([1.0, 64.0, 512.0])
    added_s = replace(curve, overhead_s=1e-3).pass_s(running) - curve.pass_s(running)
    assert added_s == pytest.approx(np.full(3, 1e-3))


def test_the_sigmoid_with_the_talks_parameters_dips_before_its_hinge() -> None:
    curve = SigmoidCurve(8.0, 8 / 0.03, 60 / (8 / 0.03), 1.0)
    assert [round(float(curve.pass_s(running)), 3) for running in (1, 64, 256)] == [7.906, 7.799, 7.854]


def test_the_sigmoids_branch_may_start_above_the_flat_one() -> None:
    assert float(SigmoidCurve(8.0, 300.0, 0.2, 1.0, step_ratio=0.5).pass_s(300.0)) == pytest.approx(8.0 * 1.25)


def test_the_softplus_is_flat_at_first_and_affine_at_last() -> None:
    curve = SoftplusCurve(8e-3, 200.0, 0.05, 1.2)
    assert float(curve.pass_s(1.0)) == pytest.approx(8e-3)
    assert float(curve.pass_s(2000.0)) == pytest.approx(8e-3 * (1 + 1.2 * 9))


def test_experts_are_read_as_they_are_hit() -> None:
    share = 8 / 128
    curve = ExpertHitCurve(2e-3, 30e-3, -math.log1p(-share), 0.0)
    for running in (1, 2, 16):
        assert float(curve.pass_s(float(running))) == pytest.approx(2e-3 + 30e-3 * (1 - (1 - share) ** running))
