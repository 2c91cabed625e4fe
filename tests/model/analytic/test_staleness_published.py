"""Drains that verl's documentation of its fully asynchronous recipe times (H20, Qwen2.5-Math-7B)."""

import pytest

from rlscope.model.analytic.synchronous import SynchronousBatch, decode_batch_s
from rlscope.model.lengths import LengthLaw
from tests.model.golden_system import Affine


@pytest.mark.parametrize(
    ("cap", "pass_s", "work_s", "on_16_s", "on_4_s", "slower"),
    [(20_480, 8.6e-3, 70.0, 247, 458, 1.85), (8_192, 6.0e-3, 113.0, 162, 501, 3.09)],
    ids=["FSDP2, long tail", "Megatron, short cap"],
)
def test_a_quarter_of_the_generators_slows_a_drain_by_less_where_its_tail_is_long(
    cap: int, pass_s: float, work_s: float, on_16_s: float, on_4_s: float, slower: float
) -> None:
    # A tail of cap passes, and work that is shared: the two terms that the documentation's numbers give.
    lengths = LengthLaw.lognormal(900, 0.8, cap)
    curve = Affine(pass_s, work_s / (512 * lengths.mean_tokens))
    seconds = [
        decode_batch_s(
            curve, lengths, SynchronousBatch(512 * 16 / gpus, 10**6, 512 * 16, 0), horizon="longest_possible"
        )
        for gpus in (16, 4)
    ]
    assert seconds == pytest.approx([on_16_s, on_4_s], rel=0.005)
    assert seconds[1] / seconds[0] == pytest.approx(slower, abs=0.02)
