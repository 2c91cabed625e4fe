"""What a ledger lacks: the time of the run in which a worker was not recorded."""

import polars as pl
import pytest

from rlscope.analysis.ledger import close_ledger
from rlscope.analysis.result import Ledger, UnrecordedTime
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
