import pytest

from rlscope.model.decode.prior import expected_prefill_tokens_per_s
from rlscope.model.hardware.devices import ModelShape, find_device


def test_prompts_are_computed_at_half_of_the_peak() -> None:
    shape = ModelShape(parameters=8_000_000_000)
    rate = expected_prefill_tokens_per_s(shape, find_device("NVIDIA H100 80GB HBM3"), 2)
    assert rate == pytest.approx(2 * 989e12 * 0.5 / 16e9)


def test_an_unknown_device_or_model_has_no_rate() -> None:
    assert expected_prefill_tokens_per_s(ModelShape(parameters=8_000_000_000), None, 2) is None
    assert expected_prefill_tokens_per_s(ModelShape(), find_device("NVIDIA H200"), 1) is None
