import math
from dataclasses import replace

import pytest

from rlscope.model.decode.prior import HardwarePrior, expected_prefill_tokens_per_s, hardware_prior
from rlscope.model.hardware.devices import Device, ModelShape, find_device
from tests.model.hardware.test_devices import LLAMA_8B

H100 = find_device("NVIDIA H100 80GB HBM3")
EXPERTS = ModelShape(
    parameters=30_000_000_000, active_parameters=3_000_000_000, experts=128, experts_per_token=8, bytes_per_weight=2
)


def known_prior(shape: ModelShape, gpus: int) -> HardwarePrior:
    return hardware_prior(shape, H100, gpus)


def test_a_dense_model_streams_computes_and_reads_its_cache_at_shares_of_the_peaks() -> None:
    prior = known_prior(LLAMA_8B, 1)
    assert prior.flat_s.median == pytest.approx(8_030_261_248 * 2 / (3.35e12 * 0.75))
    assert prior.per_request_s.median == pytest.approx(2 * 8_030_261_248 / (989e12 * 0.8))
    assert prior.kv_s_per_token.median == pytest.approx(131_072 / (3.35e12 * 0.85))
    assert prior.experts is None


@pytest.mark.parametrize(
    ("shape", "gpus", "expected"),
    [
        (LLAMA_8B, 1, (32 * 33e-6, 0.3)),
        (LLAMA_8B, 2, (32 * 47e-6, 0.3)),
        (LLAMA_8B, 8, (32 * 75e-6, 0.3)),
        (replace(EXPERTS, layers=48), 1, (48 * 77e-6, 0.3)),
        # The number of layers is unknown.
        (EXPERTS, 1, (1.5e-3, 1.2)),
    ],
)
def test_a_layer_takes_its_launch_and_more_on_more_gpus_and_with_experts(
    shape: ModelShape, gpus: int, expected: tuple[float, float]
) -> None:
    overhead_s = known_prior(shape, gpus).overhead_s
    assert (overhead_s.median, overhead_s.log_sd) == pytest.approx(expected)


def test_a_request_keeps_the_links_of_a_shared_engine_busy() -> None:
    alone_s, shared_s = (known_prior(LLAMA_8B, gpus).per_request_s.median for gpus in (1, 4))
    # Two sums a layer; a ring of four GPUs moves 2 * 3/4 of each; the width is the root of N / 12 l; two bytes.
    width = math.sqrt(8_030_261_248 / (12 * 32))
    assert shared_s - alone_s / 4 == pytest.approx(32 * 2 * 1.5 * width * 2 / 60e9)


def test_gpus_that_share_a_pass_divide_it_and_are_known_less_well() -> None:
    one, four = known_prior(LLAMA_8B, 1), known_prior(LLAMA_8B, 4)
    assert four.flat_s.median == pytest.approx(one.flat_s.median / 4)
    assert four.flat_s.log_sd > one.flat_s.log_sd


def test_weights_of_one_byte_are_multiplied_at_twice_the_rate() -> None:
    prior = known_prior(ModelShape(parameters=8_030_261_248, bytes_per_weight=1), 1)
    assert prior.per_request_s.median == pytest.approx(known_prior(LLAMA_8B, 1).per_request_s.median / 2)
    assert prior.kv_s_per_token is None


def test_experts_and_the_rest_follow_from_total_and_active_parameters() -> None:
    prior = known_prior(EXPERTS, 1)
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


def test_prompts_are_computed_at_half_of_the_peak() -> None:
    shape = ModelShape(parameters=8_000_000_000)
    rate = expected_prefill_tokens_per_s(shape, find_device("NVIDIA H100 80GB HBM3"), 2)
    assert rate == pytest.approx(2 * 989e12 * 0.5 / 16e9)


def test_an_unknown_device_or_model_has_no_rate() -> None:
    assert expected_prefill_tokens_per_s(ModelShape(parameters=8_000_000_000), None, 2) is None
    assert expected_prefill_tokens_per_s(ModelShape(), find_device("NVIDIA H200"), 1) is None
