"""Staleness equals a count over single tokens in plain Python; other files, orders or clocks change no answer."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import polars as pl
import pytest

from rlscope.analysis.staleness import weighted_quantile
from rlscope.pipeline import DRAWN, QUESTIONS, analyze
from rlscope.trace.query import ask, standard_arguments
from rlscope.trace.store import open_run
from tests.nightly import nightly
from tests.scattered_run import scattered_rows
from tests.several_hosts import TIMES, WORKER_TIMES
from tests.trace_folder import Row, write_rows, write_run

SECOND = 10**9


@dataclass(frozen=True)
class Token:
    """One use of one token."""

    age: int
    in_flight: int
    in_queue: int
    source: str


def single_tokens(tables: Mapping[str, Sequence[Row]]) -> list[Token]:
    """Every use of every token, one by one."""
    tokens_of: dict[str, list[tuple[int, str]]] = {}
    for row in tables["samples"]:
        own = tokens_of.setdefault(row["sample_id"], [])
        for run in row["versions"]:
            own += [(run["version"], row["version_source"])] * (run["end"] - run["start"])
    version_in = {row["step"]: row["version_in"] for row in tables["train_steps"]}
    counted: list[Token] = []
    for row in tables["deliveries"]:
        stated = row["consumer_version"]
        consumer = version_in.get(row["step"]) if stated is None else stated
        if row["outcome"] != "trained" or consumer is None:
            continue
        tokens = tokens_of.get(row["sample_id"], [])
        newest = max((version for version, _ in tokens), default=0)
        counted += [Token(consumer - v, newest - v, consumer - newest, source) for v, source in tokens]
    return counted


def sample_ages(tables: Mapping[str, Sequence[Row]]) -> list[int]:
    """The age of the oldest token of every use of a sample that has one."""
    version_in = {row["step"]: row["version_in"] for row in tables["train_steps"]}
    ages: list[int] = []
    for row in tables["deliveries"]:
        consumer = version_in.get(row["step"]) if row["consumer_version"] is None else row["consumer_version"]
        own = [segment for segment in tables["samples"] if segment["sample_id"] == row["sample_id"]]
        versions = [run["version"] for segment in own for run in segment["versions"]]
        if row["outcome"] == "trained" and consumer is not None and versions:
            ages.append(consumer - min(versions))
    return ages


def quantile(ages: Sequence[int], percent: int) -> int:
    """The smallest age that `percent` % of the tokens do not exceed, found by looking at each."""
    return next(age for age in sorted(set(ages)) if sum(a <= age for a in ages) * 100 >= len(ages) * percent)


def mean(values: Sequence[int]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize("seed", [1, *map(nightly, (0, *range(2, 6)))])
def test_the_staleness_of_a_run_is_what_counting_single_tokens_gives(seed: int, tmp_path: Path) -> None:
    workers, tables = scattered_rows(seed, 60)
    staleness = analyze(write_run(tmp_path, workers, {"max_staleness": 3}, **tables), also_ask=()).staleness
    tokens = single_tokens(tables)
    ages = [token.age for token in tokens]
    assert staleness.tokens is not None and staleness.samples is not None
    assert staleness.tokens.histogram == tuple(sorted(Counter(ages).items()))
    assert staleness.tokens.mean == pytest.approx(mean(ages))
    found = (staleness.tokens.p50, staleness.tokens.p95, staleness.tokens.p99, staleness.tokens.max)
    assert found == (quantile(ages, 50), quantile(ages, 95), quantile(ages, 99), max(ages))
    assert staleness.in_flight_mean == pytest.approx(mean([token.in_flight for token in tokens]))
    assert staleness.in_queue_mean == pytest.approx(mean([token.in_queue for token in tokens]))
    assert staleness.over_cap_tokens == sum(age > 3 for age in ages)
    assert staleness.version_source_tokens == Counter(token.source for token in tokens)
    oldest = sample_ages(tables)
    assert (staleness.samples.mean, staleness.samples.max) == (pytest.approx(mean(oldest)), max(oldest))


def test_a_quantile_is_the_smallest_value_that_enough_of_the_weight_does_not_exceed() -> None:
    histogram = ((0, 50), (1, 45), (4, 4), (7, 1))
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
def test_the_same_rows_in_more_files_give_the_same_answers(seed: int, tmp_path: Path) -> None:
    workers, tables = scattered_rows(seed, 60)
    split = write_run(tmp_path / "split", workers)
    for table, rows in tables.items():
        for worker_id in sorted({row["worker_id"] for row in rows}):
            own = [row for row in rows if row["worker_id"] == worker_id]
            for sequence, start in enumerate(range(0, len(own), 40), start=1):
                write_rows(split, table, worker_id, own[start : start + 40], sequence)
    assert_same(answers_as_written(seed), answers_of(split))


def test_the_order_of_rows_in_a_file_changes_no_answer_but_the_one_about_it(tmp_path: Path) -> None:
    workers, tables = scattered_rows(1, 60)
    shuffled = {table: Random(9).sample(rows, len(rows)) for table, rows in tables.items()}
    sorted_rows = dict(answers_as_written(1))
    any_order = answers_of(write_run(tmp_path / "shuffled", workers, **shuffled))
    assert sorted_rows.pop("ledger").rows() == any_order.pop("ledger").rows()
    assert_same(sorted_rows, any_order)


@pytest.mark.parametrize("by_ns", [nightly(7), 1_700_000_000 * SECOND])
def test_moving_every_clock_moves_times_and_changes_nothing_else(by_ns: int, tmp_path: Path) -> None:
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
