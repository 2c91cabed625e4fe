import math
from dataclasses import replace

import numpy as np
import pytest

from rlscope.model.decode.curves import RooflineCurve

EXPERTS = RooflineCurve(2e-3, 5e-5, 1.0, experts_s=30e-3, hit_rate=0.0645)


@pytest.mark.parametrize(("elasticity", "at_128_s"), [(0.0, 1e-2), (0.5, 1.414e-2), (2.0, 2e-2), (-1.0, 1e-2)])
def test_beyond_the_measured_batches_a_tilted_curve_stays_between_flat_and_proportional(
    elasticity: float, at_128_s: float
) -> None:
    curve = RooflineCurve(1e-2, 1e-12, 2.0, measured_running=64.0, tilt=elasticity)
    assert float(curve.pass_s(64.0)) == pytest.approx(1e-2)
    assert float(curve.pass_s(128.0)) == pytest.approx(at_128_s, rel=1e-3)


def test_experts_are_read_as_they_are_hit() -> None:
    share = 8 / 128
    curve = RooflineCurve(2e-3, 1e-12, 1.0, experts_s=30e-3, hit_rate=-math.log1p(-share))
    for running in (1, 2, 16):
        assert float(curve.pass_s(float(running))) == pytest.approx(2e-3 + 30e-3 * (1 - (1 - share) ** running))


def test_a_faster_curve_takes_less_time_for_everything() -> None:
    running = np.array([1.0, 64.0, 512.0])
    curve = replace(EXPERTS, overhead_s=1e-3, kv_s_per_token=4e-8, other_s_per_request=1e-5, measured_running=64.0)
    assert curve.sped_up(2.0).pass_s(running) == pytest.approx(curve.pass_s(running) / 2.0)
    assert curve.sped_up(2.0).kv_s_per_token == 2e-8
    assert curve.pass_s(running) - replace(curve, other_s_per_request=0.0).pass_s(running) == pytest.approx(
        1e-5 * running
    )
