"""Quantiles of staleness; other files, orders or clocks change no answer about a run."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import polars as pl
import pytest

from rlscope.analysis.result import TokenStaleness
from rlscope.analysis.staleness import token_staleness, weighted_quantile
from rlscope.pipeline import DRAWN, QUESTIONS
from rlscope.trace.query import ask, standard_arguments
from rlscope.trace.store import open_run
from tests.nightly import nightly
from tests.scattered_run import scattered_rows
from tests.several_hosts import TIMES, WORKER_TIMES
from tests.trace_folder import Row, write_rows, write_run

SECOND = 10**9


def test_a_quantile_is_the_smallest_value_that_enough_of_the_weight_does_not_exceed():
    histogram = ((0, 50), (1, 45), (4, 4), (7, 1))
    assert token_staleness(histogram) == TokenStaleness(0.68, 0, 1, 4, 7, histogram)
    assert [weighted_quantile(histogram, percent) for percent in (1, 50, 51, 95, 96, 99, 100)] == [0, 0, 1, 1, 4, 4, 7]
    with pytest.raises(ValueError, match="nothing"):
        weighted_quantile((), 50)


def answers_of(folder: Path) -> dict[str, pl.DataFrame]:
    with open_run(folder) as run:
        arguments = standard_arguments(run)
        return {name: ask(run, name, arguments) for name in (*QUESTIONS, *DRAWN)}


@cache
def answers_as_written(seed: int) -> dict[str, pl.DataFrame]:
    """The answers to a random run whose rows are in one file of each table and worker, in their order."""
    workers, tables = scattered_rows(seed, 60)
    with TemporaryDirectory() as folder:
        return answers_of(write_run(Path(folder), workers, **tables))


def assert_same(left: Mapping[str, pl.DataFrame], right: Mapping[str, pl.DataFrame]) -> None:
    for name, frame in left.items():
        assert frame.columns == right[name].columns
        for one, other in zip(frame.rows(), right[name].rows(), strict=True):
            near = [pytest.approx(cell) if isinstance(cell, float) else cell for cell in one]
            assert list(other) == near, name


@pytest.mark.parametrize("seed", [1, nightly(0)])
def test_the_same_rows_in_more_files_give_the_same_answers(seed, tmp_path):
    workers, tables = scattered_rows(seed, 60)
    split = write_run(tmp_path / "split", workers)
    for table, rows in tables.items():
        for worker_id in sorted({row["worker_id"] for row in rows}):
            own = [row for row in rows if row["worker_id"] == worker_id]
            for sequence, start in enumerate(range(0, len(own), 40), start=1):
                write_rows(split, table, worker_id, own[start : start + 40], sequence)
    assert_same(answers_as_written(seed), answers_of(split))


def test_the_order_of_rows_in_a_file_changes_no_answer_but_the_one_about_it(tmp_path):
    workers, tables = scattered_rows(1, 60)
    shuffled = {table: Random(9).sample(rows, len(rows)) for table, rows in tables.items()}
    sorted_rows = dict(answers_as_written(1))
    any_order = answers_of(write_run(tmp_path / "shuffled", workers, **shuffled))
    assert sorted_rows.pop("ledger").rows() == any_order.pop("ledger").rows()
    assert_same(sorted_rows, any_order)


@pytest.mark.parametrize("by_ns", [nightly(7), 1_700_000_000 * SECOND])
def test_moving_every_clock_moves_times_and_changes_nothing_else(by_ns, tmp_path):
    (workers, tables), here = scattered_rows(1, 60), answers_as_written(1)

    def moved(row: Row) -> Row:
        times = {*TIMES, "queued_ns", *WORKER_TIMES}
        return row | {name: row[name] + by_ns for name in times if row.get(name) is not None}

    later = {table: [moved(row) for row in rows] for table, rows in tables.items()}
    there = answers_of(write_run(tmp_path, [moved(each) for each in workers], **later))
    instants = pl.selectors.by_name(
        "start_ns", "end_ns", "bucket_start_ns", "bucket_end_ns", "publish_start_ns", "applied_ns", "first_start_ns",
        "tail_start_ns", "last_finish_ns", "wait_from_ns", "wait_to_ns", "time_ns", "started_ns", "finished_ns",
        "queued_ns", "taken_ns", "trained_ns", "heard_ns", "last_row_ns", require_all=False,
    )  # fmt: skip
    assert_same({name: frame.with_columns(instants + by_ns) for name, frame in here.items()}, there)
