import math

import pytest

from rlscope.model.decode.prior import hardware_prior
from rlscope.model.hardware.devices import Device, ModelShape, find_device

H100 = find_device("NVIDIA H100 80GB HBM3")
LLAMA_8B = ModelShape(parameters=8_030_261_248, layers=32, kv_heads=8, head_dim=128, bytes_per_weight=2, bytes_per_kv=2)
EXPERTS = ModelShape(
    parameters=30_000_000_000, active_parameters=3_000_000_000, experts=128, experts_per_token=8, bytes_per_weight=2
)


def test_a_dense_model_streams_computes_and_reads_its_cache_at_shares_of_the_peaks() -> None:
    prior = hardware_prior(LLAMA_8B, H100, 1)
    assert prior is not None and prior.kv_s_per_token is not None
    assert prior.flat_s.median == pytest.approx(8_030_261_248 * 2 / (3.35e12 * 0.75))
    assert prior.per_request_s.median == pytest.approx(2 * 8_030_261_248 / (989e12 * 0.8))
    assert prior.kv_s_per_token.median == pytest.approx(131_072 / (3.35e12 * 0.85))
    assert prior.experts is None


def test_gpus_that_share_a_pass_divide_it_and_are_known_less_well() -> None:
    one, four = hardware_prior(LLAMA_8B, H100, 1), hardware_prior(LLAMA_8B, H100, 4)
    assert one is not None and four is not None
    assert four.flat_s.median == pytest.approx(one.flat_s.median / 4)
    assert four.flat_s.log_sd > one.flat_s.log_sd


def test_weights_of_one_byte_are_multiplied_at_twice_the_rate() -> None:
    eight_bit = ModelShape(parameters=8_030_261_248, bytes_per_weight=1)
    prior, wide = hardware_prior(eight_bit, H100, 1), hardware_prior(LLAMA_8B, H100, 1)
    assert prior is not None and wide is not None
    assert prior.per_request_s.median == pytest.approx(wide.per_request_s.median / 2)
    assert prior.kv_s_per_token is None


def test_experts_and_the_rest_follow_from_total_and_active_parameters() -> None:
    prior = hardware_prior(EXPERTS, H100, 1)
    assert prior is not None and prior.experts is not None
    routed = 27e9 / (1 - 8 / 128)
    streams_per_s = 3.35e12 * 0.75 / 2
    assert prior.experts.experts_s.median == pytest.approx(routed / streams_per_s)
    assert prior.flat_s.median == pytest.approx((30e9 - routed) / streams_per_s)
    assert prior.experts.hit_rate.median == pytest.approx(-math.log(1 - 8 / 128))
    assert prior.per_request_s.median == pytest.approx(2 * 3e9 / (989e12 * 0.8))


@pytest.mark.parametrize(
    ("shape", "device"),
    [
        (LLAMA_8B, None),
        (ModelShape(parameters=8_030_261_248), H100),
        (ModelShape(bytes_per_weight=2), H100),
        (ModelShape(parameters=30_000_000_000, active_parameters=3_000_000_000, bytes_per_weight=2), H100),
    ],
)
def test_what_is_not_described_enough_has_no_prior(shape: ModelShape, device: Device | None) -> None:
    assert hardware_prior(shape, device, 1) is None
