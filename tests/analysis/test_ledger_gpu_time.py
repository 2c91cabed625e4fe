"""What a ledger lacks: the time of the run in which a worker was not recorded. And how its decoding is divided."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from rlscope.analysis.ledger import close_ledger, split_decoding
from rlscope.analysis.result import Ledger, LedgerState, UnrecordedTime
from rlscope.model.forecast.gap import BatchEfficiency
from rlscope.reports.text.states import unrecorded_sentence

SECOND = 10**9
NO_READINGS = pl.DataFrame(
    schema={"worker_id": pl.String, "state": pl.String, "busy_ratio": pl.Float64, "read_s": pl.Float64}
)


def unrecorded(*workers: tuple[str, float, float, int]) -> tuple[UnrecordedTime, ...]:
    """Of workers (id, start in s, end in s, GPUs) that did one thing all the time."""
    extents = pl.DataFrame(
        [(name, "sampler", round(start * SECOND), round(end * SECOND), gpus) for name, start, end, gpus in workers],
        schema=["worker_id", "role", "start_ns", "end_ns", "gpu_count"],
        orient="row",
    )
    rows = extents.select(
        "worker_id", "role", "gpu_count", state=pl.lit("decoding"), reason=pl.lit(None, pl.String),
        state_ns=pl.col("end_ns") - pl.col("start_ns"),
    )  # fmt: skip
    return close_ledger(rows, extents, NO_READINGS).unrecorded


def test_seconds_before_a_start_and_after_an_end_count_for_every_gpu() -> None:
    found = unrecorded(("a", 0, 100, 1), ("late", 20, 100, 2), ("brief", 10, 60, 1))
    assert found == (UnrecordedTime("brief", 10.0, 40.0, 50.0), UnrecordedTime("late", 20.0, 0.0, 40.0))


@pytest.mark.parametrize(("start_s", "count"), [(4.9, 0), (5.0, 1)])
def test_a_twentieth_of_the_run_is_worth_naming(start_s: float, count: int) -> None:
    assert len(unrecorded(("a", 0, 100, 1), ("b", start_s, 100, 1))) == count


def test_a_worker_without_gpus_neither_lacks_anything_nor_begins_the_run() -> None:
    assert unrecorded(("controller", 0, 500, 0), ("a", 100, 200, 1)) == ()


def test_the_sentence_names_three_workers_and_counts_the_rest() -> None:
    times = [UnrecordedTime(f"s{n}", 23.1, 0.0, 23.1) for n in range(4)] + [UnrecordedTime("s4", 1.0, 9.0, 10.0)]
    assert unrecorded_sentence(Ledger(1, (), (times[0], times[4]))) == (
        "The total leaves out 33.1 GPU-s that were not recorded: "
        "the first 23.1 s of worker 's0'; the first 1 s and the last 9 s of worker 's4'."
    )
    assert "the first 23.1 s of worker 's2'; 2 other workers." in unrecorded_sentence(Ledger(1, (), tuple(times)))
    assert unrecorded_sentence(Ledger(1, ())) == ""


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
