"""What a run answers is the same in any files and orders of rows, and in shares to the last bit."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random

import polars as pl
import pyarrow as pa
import pytest

from rlscope.errors import UnreadableDataError
from rlscope.pipeline import DRAWN, QUESTIONS
from rlscope.trace.query import ask, standard_arguments
from rlscope.trace.questions import find_question, questions
from rlscope.trace.shares import merge_answers
from rlscope.trace.store import OpenRun, Partitioner, open_run
from tests.case_files import open_empty
from tests.in_shares import in_one_process
from tests.scattered_run import UNORDERED, scattered_rows, scattered_run
from tests.several_hosts import made_run, off
from tests.trace_folder import damaged, engine_row, sample_row, worker, write_rows, write_run

FEW = ("ledger", "delivered_samples", "queue_wait_counts")
"""A question of each partition."""


def answers_to(run: OpenRun, names: Iterable[str]) -> dict[str, pl.DataFrame]:
    arguments = standard_arguments(run)
    return {name: ask(run, name, arguments) for name in names}


def answers_of(folder: Path, divide: Partitioner | None, names: Iterable[str]) -> dict[str, pl.DataFrame]:
    with open_run(folder, divide=divide) as run:
        assert (run.split is None) == (divide is None)
        return answers_to(run, names)


def assert_equal_bits(one: Mapping[str, pl.DataFrame], other: Mapping[str, pl.DataFrame]) -> None:
    for name, frame in one.items():
        first, second = (each.sort(each.columns) if name in UNORDERED else each for each in (frame, other[name]))
        assert first.schema == second.schema, name
        assert first.equals(second), name


def test_every_question_has_the_same_answer_in_shares_as_in_one_piece(tmp_path: Path) -> None:
    folder = scattered_run(tmp_path / "run")
    whole = answers_of(folder, None, questions())
    assert {name for name, frame in whole.items() if frame.is_empty()} == set()
    assert_equal_bits(whole, answers_of(folder, in_one_process(3, 3), questions()))


def test_neither_the_order_of_rows_nor_their_files_change_an_answer(tmp_path: Path) -> None:
    workers, tables = scattered_rows(1, 60)
    as_written = answers_of(write_run(tmp_path / "as written", workers, **tables), None, (*QUESTIONS, *DRAWN))
    split = write_run(tmp_path / "split", workers)
    for table, rows in tables.items():
        shuffled = Random(9).sample(rows, len(rows))
        for worker_id in sorted({row["worker_id"] for row in rows}):
            own = [row for row in shuffled if row["worker_id"] == worker_id]
            for sequence, start in enumerate(range(0, len(own), 40), start=1):
                write_rows(split, table, worker_id, own[start : start + 40], sequence)
    found = answers_of(split, None, as_written)
    assert found["ledger"].rows() == as_written["ledger"].rows()
    for name, frame in as_written.items():
        assert frame.columns == found[name].columns
        for one, other in zip(frame.rows(), found[name].rows(), strict=True):
            assert list(other) == [pytest.approx(cell) if isinstance(cell, float) else cell for cell in one], name


def test_more_shares_than_workers_and_samples_change_no_answer(tmp_path: Path) -> None:
    folder = scattered_run(tmp_path / "run", samples=4)
    assert_equal_bits(answers_of(folder, None, FEW), answers_of(folder, in_one_process(8, 5), FEW))


def test_clocks_are_corrected_in_shares_as_in_one_piece(tmp_path: Path) -> None:
    folder = made_run(steps=12).write(tmp_path / "run", {"be1": off(5.0)})
    with open_run(folder) as run:
        assert run.clocks.corrected == {"be1"}
    assert_equal_bits(answers_of(folder, None, FEW), answers_of(folder, in_one_process(2, 2), FEW))


def test_a_row_that_names_a_worker_of_another_share_than_its_file_is_in_that_worker_s_share(tmp_path: Path) -> None:
    workers = [worker("e0", "sampler"), worker("e1", "sampler")]
    folder = write_run(tmp_path / "run", workers, engine_steps=[engine_row("e0", 0, 1), engine_row("e1", 1, 2)])
    (folder / "engine_steps" / "e1-000001.parquet").rename(folder / "engine_steps" / "e0-000002.parquet")
    of_engines = ("ledger", "engine_buckets", "engine_row_order")
    assert_equal_bits(answers_of(folder, None, of_engines), answers_of(folder, in_one_process(2, 1), of_engines))


def test_a_file_that_breaks_in_a_share_is_reported_as_it_is_in_one_piece(tmp_path: Path) -> None:
    folder = scattered_run(tmp_path / "run")
    damaged(folder / "activities" / "e0-000001.parquet")
    with (
        pytest.raises(UnreadableDataError, match="could not be read"),
        open_run(folder, divide=in_one_process(2, 2)) as run,
    ):
        answers_to(run, FEW)
    whole, divided = (open_run(folder, read_all=True, divide=each) for each in (None, in_one_process(2, 2)))
    with whole as one, divided as other:
        assert [file.path for file in other.skipped_files] == ["activities/e0-000001.parquet"]
        assert_equal_bits(answers_to(one, FEW), answers_to(other, FEW))


def test_a_sample_that_two_workers_stored_is_counted_once_so_the_run_is_not_divided(tmp_path: Path) -> None:
    row = sample_row("s0", "e0", [(0, 0, 9)])
    folder = write_run(tmp_path / "run", [worker("e0", "sampler", rows={"samples": 1})], samples=[row])
    # Nobody counts the rows of a worker without a worker file.
    write_rows(folder, "samples", "gone", [{**row, "worker_id": "gone"}])
    with open_run(folder, divide=in_one_process(2, 2)) as run:
        assert "samples: 1 rows are stored twice; they are counted once" in run.gaps
        assert run.split is None


def merged(name: str, *shares: list[dict[str, object]]) -> list[dict[str, object]]:
    question, connection = find_question(name), open_empty()
    merge_answers(connection, question, [pa.Table.from_pylist(rows) for rows in shares])
    return connection.table(name).pl().rows(named=True)


def test_sums_keep_what_no_share_recorded_and_add_what_some_did() -> None:
    counts = {"prefill_tokens": 1, "prompt_tokens": 2, "segments": 3}
    doubled = {"prefill_tokens": 2, "prompt_tokens": 4, "segments": 6}
    assert merged("preemptions", [{"preemptions": 4, **counts}], [{"preemptions": None, **counts}]) == [
        {"preemptions": 4, **doubled}
    ]
    assert merged("preemptions", [{"preemptions": None, **counts}], [{"preemptions": None, **counts}]) == [
        {"preemptions": None, **doubled}
    ]


@pytest.mark.parametrize(("one", "other", "both"), [(True, True, True), (True, False, False)])
def test_rows_are_disjoint_where_those_of_every_share_are(one: bool, other: bool, both: bool) -> None:
    rows = [[{"rows": 2, "rows_disjoint": each, "row_ns": 5.0}] for each in (one, other)]
    assert merged("engine_row_order", *rows) == [{"rows": 4, "rows_disjoint": both, "row_ns": 10.0}]
