"""Which passes over prompts a decode curve is held below, and by how much it exceeds them."""

import numpy as np
import pytest

from rlscope.model.decode_ceiling import prefill_ceiling
from rlscope.model.decode_points import DecodePoints

CELLS = DecodePoints.of([8.0, 16.0], [1e-2, 2e-2], kv_tokens=0.0)


def test_prompts_of_like_size_are_one_ceiling_weighted_by_rows() -> None:
    prompts = DecodePoints.of([64.0, 70.0, 200.0], [2e-2, 4e-2, 5e-2], rows=[3.0, 1.0, 1.0], kv_tokens=[0.0, 8.0, 0.0])
    ceiling = prefill_ceiling(prompts, CELLS)
    assert ceiling is not None
    assert ceiling.tokens.tolist() == [65.5, 200.0]
    assert ceiling.pass_s.tolist() == [pytest.approx(2.5e-2), 5e-2]
    assert ceiling.kv_tokens.tolist() == [2.0, 0.0]


@pytest.mark.parametrize(("pass_s", "counts"), [(1.2e-2, True), (1.19e-2, False)])
def test_a_prompt_cheaper_than_decoding_fewer_tokens_says_nothing(pass_s: float, counts: bool) -> None:
    # The longest pass over no more requests than the prompt has tokens takes 2e-2; the ceiling is from 0.6 of it on.
    ceiling = prefill_ceiling(DecodePoints.of([64.0], [pass_s], kv_tokens=0.0), CELLS)
    assert (ceiling is not None) == counts


def test_only_decoding_fewer_tokens_is_compared_with() -> None:
    assert prefill_ceiling(DecodePoints.of([12.0], [0.7e-2], kv_tokens=0.0), CELLS) is not None


def test_without_a_time_or_without_decoding_there_is_no_ceiling() -> None:
    assert prefill_ceiling(DecodePoints.of([64.0], [0.0], kv_tokens=0.0), CELLS) is None
    assert prefill_ceiling(DecodePoints.of([64.0], [1.0]), CELLS.where(np.zeros(2, dtype=np.bool_))) is None


def test_a_curve_exceeds_a_ceiling_by_where_it_does_so_most_and_by_nothing_below_it() -> None:
    ceiling = prefill_ceiling(DecodePoints.of([64.0, 200.0], [2e-2, 4e-2], kv_tokens=0.0), CELLS)
    assert ceiling is not None
    curves_s = np.array([[2e-2, 8e-2], [4e-2, 4e-2], [1e-2, 4e-2]])
    assert ceiling.log_excess(curves_s) == pytest.approx([np.log(2), np.log(2), 0.0])
