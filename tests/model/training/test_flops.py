"""What the arithmetic of training says of its rate."""

import pytest

from rlscope.model.training.step_time import (
    TrainedModel,
    training_flops_per_token,
)

MODEL = TrainedModel(active_parameters=7e9, layers=28, attention_width=3584)


def test_a_token_costs_six_operations_a_parameter_and_half_of_full_attention():
    assert training_flops_per_token(MODEL, 0.0) == 6 * 7e9
    assert training_flops_per_token(MODEL, 4096.0) == 6 * 7e9 + 12 * 28 * 3584 * 4096 / 2


@pytest.mark.parametrize(("recomputes", "extra", "forwards"), [(False, 0, 3), (True, 0, 4), (False, 2, 5)])
def test_recomputing_and_further_passes_cost_a_forward_pass_each(recomputes, extra, forwards):
    model = TrainedModel(7e9, 28, 3584, recomputes, extra)
    assert training_flops_per_token(model, 1000.0) == pytest.approx(forwards * (2 * 7e9 + 2 * 28 * 3584 * 1000.0))
