"""Quantiles of staleness; other files and orders of rows change no answer about a run."""

from pathlib import Path
from random import Random

import polars as pl
import pytest

from rlscope.analysis.result import TokenStaleness
from rlscope.analysis.staleness import token_staleness, weighted_quantile
from rlscope.pipeline import DRAWN, QUESTIONS
from rlscope.trace.query import ask, standard_arguments
from rlscope.trace.store import open_run
from tests.scattered_run import scattered_rows
from tests.trace_folder import write_rows, write_run


def test_a_quantile_is_the_smallest_value_that_enough_of_the_weight_does_not_exceed() -> None:
    histogram = ((0, 50), (1, 45), (4, 4), (7, 1))
    assert token_staleness(histogram) == TokenStaleness(0.68, 0, 1, 4, 7, histogram)
    assert [weighted_quantile(histogram, percent) for percent in (1, 50, 51, 95, 96, 99, 100)] == [0, 0, 1, 1, 4, 4, 7]
    with pytest.raises(ValueError, match="nothing"):
        weighted_quantile((), 50)


def answers_of(folder: Path) -> dict[str, pl.DataFrame]:
    with open_run(folder) as run:
        arguments = standard_arguments(run)
        return {name: ask(run, name, arguments) for name in (*QUESTIONS, *DRAWN)}


def test_neither_the_order_of_rows_nor_their_files_change_an_answer(tmp_path):
    workers, tables = scattered_rows(1, 60)
    as_written = answers_of(write_run(tmp_path / "as written", workers, **tables))
    split = write_run(tmp_path / "split", workers)
    for table, rows in tables.items():
        shuffled = Random(9).sample(rows, len(rows))
        for worker_id in sorted({row["worker_id"] for row in rows}):
            own = [row for row in shuffled if row["worker_id"] == worker_id]
            for sequence, start in enumerate(range(0, len(own), 40), start=1):
                write_rows(split, table, worker_id, own[start : start + 40], sequence)
    found = answers_of(split)
    assert found["ledger"].rows() == as_written["ledger"].rows()
    for name, frame in as_written.items():
        assert frame.columns == found[name].columns
        for one, other in zip(frame.rows(), found[name].rows(), strict=True):
            assert list(other) == [pytest.approx(cell) if isinstance(cell, float) else cell for cell in one], name
