"""Decoding, divided into what efficient batches would have taken and what fuller ones would have saved."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from rlscope.analysis.ledger import split_decoding
from rlscope.analysis.result import Ledger, LedgerState
from rlscope.model.forecast.gap import BatchEfficiency

EFFICIENCY = BatchEfficiency(
    efficient_running=4, efficient_time_ratio=0.5, used_ratios=np.array([0.25, 0.5, 0.75, 1.0])
)
"""A pass over one request makes a quarter of the tokens that it could."""
DECODING = LedgerState("sampler", "decoding", None, 1_000_000_001, 0.5, None)
OTHERS = (
    LedgerState("sampler", "no_requests", "backpressure", 7, 0.1, None),
    LedgerState("trainer", "train", None, 9, 1, None),
)
LEDGER = Ledger(1_000_000_017, (DECODING, *OTHERS))


def passes(*rows: tuple[str, int, int, float]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=["worker_id", "running", "passes", "pass_mean_s"], orient="row")


def extents(*rows: tuple[str, str, int]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=["worker_id", "role", "gpu_count"], orient="row")


@pytest.mark.parametrize(
    ("running", "underfilled_gpu_ns"),
    [(1, 750_000_001), (3, 250_000_000), (4, 0), (5, 0)],
    ids=["one of four", "three of four", "the efficient batch", "beyond it"],
)
def test_a_batch_below_the_efficient_one_wastes_what_it_does_not_use(running, underfilled_gpu_ns):
    split = split_decoding(LEDGER, passes(("a", running, 10, 0.1)), extents(("a", "sampler", 1)), EFFICIENCY)
    assert split == replace(LEDGER, states=(replace(DECODING, underfilled_gpu_ns=underfilled_gpu_ns), *OTHERS))


def test_passes_count_by_the_time_and_the_gpus_that_they_take():
    # 1 s on one GPU at a quarter, 1 s on three GPUs at full use: (0.25 + 3) / 4 is used.
    rows = passes(("a", 1, 10, 0.1), ("b", 4, 20, 0.05))
    split = split_decoding(LEDGER, rows, extents(("a", "sampler", 1), ("b", "sampler", 3)), EFFICIENCY)
    assert split.states[0].underfilled_gpu_ns == 1_000_000_001 - round(3.25 / 4 * 1_000_000_001)


def test_a_role_is_judged_by_its_own_passes():
    split = split_decoding(LEDGER, passes(("a", 1, 10, 0.1)), extents(("a", "colocated", 1)), EFFICIENCY)
    assert split == LEDGER


def test_without_a_word_of_the_model_nothing_is_divided():
    assert split_decoding(LEDGER, passes(), extents(), None) is LEDGER
