import math

import pytest

from rlscope.model.hardware.devices import ModelShape
from rlscope.model.hardware.kv_cache import SAFE_Z, capacity_from_device, safe_batch, steady_kv_load
from tests.model.golden_system import LENGTHS
from tests.model.hardware.test_devices import LLAMA_8B

# Lengths lognormal with median 1500 and sigma 0.6, capped at 8192, with prompts of 200 tokens.
LOAD = steady_kv_load(200, LENGTHS)
CAPACITY_TOKENS = 50e9 // 131_072


def test_resident_tokens_of_a_running_request_follow_from_the_moments_of_the_lengths() -> None:
    assert LOAD.mean_tokens == pytest.approx(1467.01, abs=0.01)
    assert LOAD.sd_tokens == pytest.approx(1150.97, abs=0.02)


@pytest.mark.parametrize(("group_size", "group_correlation", "alike"), [(1, 0.0, 1.0), (8, 0.3, 1 + 7 * 0.3)])
def test_the_safe_batch_leaves_its_standard_deviations_free(
    group_size: int, group_correlation: float, alike: float
) -> None:
    running = safe_batch(LOAD, CAPACITY_TOKENS, group_size=group_size, group_correlation=group_correlation)
    spread_tokens = math.sqrt(running * alike) * LOAD.sd_tokens
    assert running * LOAD.mean_tokens + SAFE_Z * spread_tokens == pytest.approx(CAPACITY_TOKENS)


@pytest.mark.parametrize("gpus", [1, 2])
def test_capacity_is_what_weights_once_and_the_reserve_of_every_gpu_leave_in_whole_blocks(gpus: int) -> None:
    tokens = capacity_from_device(LLAMA_8B, 85e9, gpus, memory_ratio=0.9)
    assert tokens == int((gpus * (0.9 * 85e9 - 4e9) - 16_060_522_496) // (131_072 * 16)) * 16


def test_a_model_that_does_not_fit_or_is_not_known_has_no_capacity() -> None:
    assert capacity_from_device(LLAMA_8B, 16e9, 1, memory_ratio=0.9) is None
    assert capacity_from_device(ModelShape(), 85e9, 1, memory_ratio=0.9) is None
