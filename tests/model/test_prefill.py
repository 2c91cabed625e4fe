import numpy as np
import pytest

from rlscope.model.decode_curve import PNormCurve
from rlscope.model.decode_points import DecodePoints
from rlscope.model.hardware import ModelShape, find_device
from rlscope.model.prefill import expected_prefill_tokens_per_s, measured_prefill_tokens_per_s

CURVE = PNormCurve(8e-3, 3e-5, 2.0, 0.0, 4e-8)
RUNNING = np.array([16.0, 32, 64, 64])
PROMPT = np.array([200.0, 400, 800, 0])
DECODE_S = CURVE.pass_s(RUNNING) + 4e-8 * 1000 * RUNNING


def points(pass_s: np.ndarray) -> DecodePoints:
    return DecodePoints.of(RUNNING, pass_s, rows=10, kv_tokens=1000 * RUNNING, prefill_tokens=PROMPT)


def test_the_rate_is_what_passes_took_beyond_decoding() -> None:
    assert measured_prefill_tokens_per_s(points(DECODE_S + PROMPT / 30_000), CURVE) == pytest.approx(30_000)


def test_one_stalled_pass_does_not_move_it() -> None:
    stalled = DECODE_S + PROMPT / 30_000 + np.array([1.0, 0, 0, 0])
    assert measured_prefill_tokens_per_s(points(stalled), CURVE) == pytest.approx(30_000)


def test_prefill_that_hides_behind_decoding_has_no_rate() -> None:
    assert measured_prefill_tokens_per_s(points(DECODE_S), CURVE) is None


@pytest.mark.parametrize(("prompt_tokens", "seen"), [(999.0, False), (1000.0, True)])
def test_a_thousand_prompt_tokens_are_enough(prompt_tokens: float, seen: bool) -> None:
    one = DecodePoints.of([16.0], [1.0], kv_tokens=16_000.0, prefill_tokens=prompt_tokens)
    assert (measured_prefill_tokens_per_s(one, CURVE) is not None) is seen


def test_hardware_says_half_of_its_peak() -> None:
    shape = ModelShape(parameters=8_000_000_000)
    rate = expected_prefill_tokens_per_s(shape, find_device("NVIDIA H100 80GB HBM3"), 2)
    assert rate == pytest.approx(2 * 989e12 * 0.5 / 16e9)
    assert expected_prefill_tokens_per_s(shape, None, 2) is None
