"""What the arithmetic of training says of its rate."""

import pytest

from rlscope.model.training.step_time import (
    TrainedModel,
    prior_tokens_per_gpu_s,
    token_weighted_tokens,
    training_flops_per_token,
)
from tests.model.golden_system import LENGTHS

MODEL = TrainedModel(active_parameters=7e9, layers=28, attention_width=3584)


def test_a_token_costs_six_operations_a_parameter_and_half_of_full_attention() -> None:
    assert training_flops_per_token(MODEL, 0.0) == 6 * 7e9
    assert training_flops_per_token(MODEL, 4096.0) == 6 * 7e9 + 12 * 28 * 3584 * 4096 / 2


@pytest.mark.parametrize(("recomputes", "extra", "forwards"), [(False, 0, 3), (True, 0, 4), (False, 2, 5)])
def test_recomputing_and_further_passes_cost_a_forward_pass_each(recomputes: bool, extra: int, forwards: int) -> None:
    model = TrainedModel(7e9, 28, 3584, recomputes, extra)
    assert training_flops_per_token(model, 1000.0) == pytest.approx(forwards * (2 * 7e9 + 2 * 28 * 3584 * 1000.0))


def test_a_random_token_is_in_a_longer_sequence_than_the_mean_one() -> None:
    expected = 200 + LENGTHS.second_moment / LENGTHS.mean_tokens
    assert token_weighted_tokens(LENGTHS, 200) == pytest.approx(expected)


def test_a_rate_takes_its_share_of_the_peak() -> None:
    rate = prior_tokens_per_gpu_s(MODEL, 2000.0, peak_flops_per_s=989e12, mfu_ratio=0.3)
    assert rate * training_flops_per_token(MODEL, 2000.0) == pytest.approx(0.3 * 989e12)
    assert 5000 < rate < 8000
