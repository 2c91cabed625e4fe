"""Which passes over prompts a decode curve is compared with, and what they say of one."""

import numpy as np
import pytest

from rlscope.model.decode.measurements import DecodePoints
from rlscope.model.decode.posterior import CELL_LOG_SD, DRIFT_LOG_SD, FACTOR_LOG_SD, prompt_passes

CELLS = DecodePoints.of([8.0, 16.0], [1e-2, 2e-2], kv_tokens=0.0)


def test_prompts_of_like_size_are_one_cell_weighted_by_rows() -> None:
    prompts = DecodePoints.of([64.0, 70.0, 200.0], [2e-2, 4e-2, 5e-2], rows=[3.0, 1.0, 1.0], kv_tokens=[0.0, 8.0, 0.0])
    found = prompt_passes(prompts, CELLS)
    assert found is not None
    assert found.tokens.tolist() == [65.5, 200.0]
    assert found.pass_s.tolist() == [pytest.approx(2.5e-2), 5e-2]
    assert found.kv_tokens.tolist() == [2.0, 0.0]


@pytest.mark.parametrize(("pass_s", "counts"), [(1.2e-2, True), (1.19e-2, False)])
def test_a_prompt_much_cheaper_than_decoding_fewer_tokens_says_nothing(pass_s: float, counts: bool) -> None:
    # The longest pass over no more requests than the prompt has tokens takes 2e-2; prompts count from 0.6 of it on.
    found = prompt_passes(DecodePoints.of([64.0], [pass_s], kv_tokens=0.0), CELLS)
    assert (found is not None) == counts


def test_only_decoding_fewer_tokens_is_compared_with() -> None:
    assert prompt_passes(DecodePoints.of([12.0], [0.7e-2], kv_tokens=0.0), CELLS) is not None


def test_without_a_time_or_without_decoding_nothing_is_said() -> None:
    assert prompt_passes(DecodePoints.of([64.0], [0.0], kv_tokens=0.0), CELLS) is None
    assert prompt_passes(DecodePoints.of([64.0], [1.0]), CELLS.where(np.zeros(2, dtype=np.bool_))) is None


def test_the_factor_is_shared_and_drifts_from_the_median_batch_to_either_side() -> None:
    # The median batch is 12: 3 and 6 are two and one doublings below it, 24 is one above.
    prompts = DecodePoints.of([3.0, 6.0, 24.0], [1e-2, 1e-2, 3e-2], kv_tokens=0.0)
    found = prompt_passes(prompts, CELLS)
    assert found is not None
    factor, drift, own = FACTOR_LOG_SD**2, DRIFT_LOG_SD**2, CELL_LOG_SD**2
    expected = [
        [factor + 2 * drift + own, factor + drift, factor],
        [factor + drift, factor + drift + own, factor],
        [factor, factor, factor + drift + own],
    ]
    assert found.covariance == pytest.approx(np.array(expected))


def test_a_curve_that_is_a_multiple_of_the_prompts_is_likelier_than_one_of_another_slope() -> None:
    prompts = DecodePoints.of([4.0, 8.0, 32.0], [1e-2, 1.2e-2, 2e-2], kv_tokens=0.0)
    found = prompt_passes(prompts, CELLS.where(np.array([True, False])))
    assert found is not None
    the_same, a_multiple, steeper = [1, 1, 1], [1.3] * 3, [0.8, 1, 2]
    by_curve = found.log_density(np.log([the_same, a_multiple, steeper]))
    assert by_curve[0] > by_curve[1] > by_curve[2]
    assert by_curve[0] == 0.0


def test_prompts_of_another_kind_are_outvoted_not_heard_the_louder_the_farther_they_are() -> None:
    found = prompt_passes(DecodePoints.of([64.0], [2e-2], kv_tokens=0.0), CELLS)
    assert found is not None
    ten, hundred, thousand = found.log_density(np.log([[10.0], [100.0], [1000.0]]))
    assert hundred - thousand < ten - hundred
