"""What the arithmetic of training says of its rate."""

import pytest

from rlscope.model.training.step_time import (
    TrainedModel,
    training_flops_per_token,
)


@pytest.mark.parametrize(("recomputes", "extra", "forwards"), [(False, 0, 3), (True, 0, 4), (False, 2, 5)])
def test_recomputing_and_further_passes_cost_a_forward_pass_each(recomputes: bool, extra: int, forwards: int) -> None:
    model = TrainedModel(7e9, 28, 3584, recomputes, extra)
    assert training_flops_per_token(model, 1000.0) == pytest.approx(forwards * (2 * 7e9 + 2 * 28 * 3584 * 1000.0))
