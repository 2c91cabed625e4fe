"""Staleness equals a count over single tokens in plain Python; other files, orders or clocks change no answer."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
import pytest

from rlscope.analysis.staleness import weighted_quantile
from rlscope.pipeline import DRAWN, QUESTIONS, analyze
from rlscope.trace.query import ask, standard_arguments
from rlscope.trace.store import open_run
from tests.nightly import nightly
from tests.several_hosts import TIMES, WORKER_TIMES
from tests.trace_folder import (
    Row,
    activity,
    delivery_row,
    engine_row,
    gpu_row,
    queue_row,
    sample_row,
    train_row,
    update_row,
    worker,
    write_rows,
    write_run,
)

SECOND = 10**9


@dataclass(frozen=True)
class Token:
    """One use of one token."""

    step: int | None
    age: int
    in_flight: int
    in_queue: int
    source: str


@dataclass(frozen=True)
class RandomRun:
    """Workers and rows of a run."""

    workers: list[Row]
    tables: dict[str, list[Row]]


def random_run(seed: int) -> RandomRun:
    """Four engines, two ranks, samples of several segments and versions, several epochs, unknown and untrained ones."""
    random = Random(seed)
    engines = [f"e{i}" for i in range(4)]
    workers = [worker(e, "sampler", 0, 100 * SECOND, host="b") for e in engines]
    workers += [worker(t, "trainer", SECOND, 101 * SECOND, gpu_count=2, host="a") for t in ("t0", "t1")]
    steps = list(range(1, 13))
    tables: dict[str, list[Row]] = {
        "samples": [row for i in range(60) for row in random_sample(random, f"s{i}", engines)],
        "deliveries": [random_delivery(random, steps) for _ in range(120)],
        "train_steps": [
            train_row(t, (8 * s - 4) * SECOND, 8 * s * SECOND + rank, s, version_in=s // 2, version_out=(s + 1) // 2)
            for s in steps
            for rank, t in enumerate(("t0", "t1"))
        ],
        "weight_updates": [update_row("t0", 8 * s * SECOND, (8 * s + 1) * SECOND, s, "publish") for s in steps]
        + [update_row(e, (8 * s + 1) * SECOND, (8 * s + 2) * SECOND, s) for s in steps for e in engines],
        "activities": [activity("t0", 8 * s * SECOND, (8 * s + 3) * SECOND, "wait", "samples") for s in steps],
        "engine_steps": [
            engine_row(e, i * SECOND // 2, (i + 1) * SECOND // 2, random.randrange(SECOND // 2), running=1 + i % 7)
            for e in engines
            for i in range(190)
        ],
        "queue_depths": [queue_row("t0", i * SECOND, random.randrange(9)) for i in range(1, 99)],
        "gpu_samples": [gpu_row("t0", i * SECOND, random.random()) for i in range(1, 99)],
    }
    return RandomRun(workers, tables)


def random_sample(random: Random, sample_id: str, engines: Sequence[str]) -> list[Row]:
    version = random.randrange(4)
    rows: list[Row] = []
    for segment in range(random.choice([1, 1, 2, 3])):
        runs: list[tuple[int, int, int]] = []
        end = 0
        for _ in range(random.randrange(4)):
            start, end = end, end + random.randrange(1, 30)
            runs.append((version, start, end))
            version += random.randrange(2)
        source = random.choice(["engine", "engine", "segment", "time_join"])
        finished_ns = random.randrange(SECOND, 90 * SECOND)
        more = {"segment": segment, "version_source": source, "finished_ns": finished_ns, "group_id": sample_id[:2]}
        rows.append(sample_row(sample_id, random.choice(engines), runs, **more))
    return rows


def random_delivery(random: Random, steps: Sequence[int]) -> Row:
    step = random.choice([*steps, None])
    consumer_version = random.choice([None, 4 + (step or 0) // 2])
    outcome = random.choice(["trained", "trained", "trained", "dropped_stale", "filtered"])
    more = {"step": step, "consumer_version": consumer_version, "taken_ns": random.randrange(90 * SECOND, 99 * SECOND)}
    return delivery_row(f"s{random.randrange(64)}", "t0", outcome, **more)


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
        stated, step = row["consumer_version"], row["step"]
        consumer = version_in.get(step) if stated is None else stated
        if row["outcome"] != "trained" or consumer is None:
            continue
        tokens = tokens_of.get(row["sample_id"], [])
        newest = max((version for version, _ in tokens), default=0)
        counted += [Token(step, consumer - v, newest - v, consumer - newest, source) for v, source in tokens]
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


@pytest.mark.parametrize("seed", [0, 1, *map(nightly, range(2, 6))])
def test_the_staleness_of_a_run_is_what_counting_single_tokens_gives(seed: int, tmp_path: Path) -> None:
    run = random_run(seed)
    staleness = analyze(write_run(tmp_path, run.workers, {"max_staleness": 3}, **run.tables), also_ask=()).staleness
    tokens = single_tokens(run.tables)
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
    oldest = sample_ages(run.tables)
    assert (staleness.samples.mean, staleness.samples.max) == (pytest.approx(mean(oldest)), max(oldest))


@pytest.mark.parametrize("seed", range(3))
def test_the_staleness_of_each_step_is_what_counting_its_single_tokens_gives(seed: int, tmp_path: Path) -> None:
    tables = random_run(seed).tables
    with open_run(write_run(tmp_path, random_run(seed).workers, **tables)) as run:
        answer = ask(run, "token_staleness_by_step").rows(named=True)
    in_steps = sorted((t for t in single_tokens(tables) if t.step is not None), key=lambda token: token.step)
    expected: list[dict[str, Any]] = []
    for step, group in groupby(in_steps, key=lambda token: token.step):
        tokens = list(group)
        ages = [token.age for token in tokens]
        expected.append(
            {
                "step": step,
                "tokens": len(tokens),
                "staleness_mean": pytest.approx(mean(ages)),
                "staleness_p50": quantile(ages, 50),
                "staleness_p95": quantile(ages, 95),
                "staleness_p99": quantile(ages, 99),
                "staleness_max": max(ages),
                "in_flight_mean": pytest.approx(mean([token.in_flight for token in tokens])),
                "in_queue_mean": pytest.approx(mean([token.in_queue for token in tokens])),
            }
        )
    assert len(expected) > 8
    assert answer == expected


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
    run = random_run(seed)
    with TemporaryDirectory() as folder:
        return answers_of(write_run(Path(folder), run.workers, **run.tables))


def assert_same(left: Mapping[str, pl.DataFrame], right: Mapping[str, pl.DataFrame]) -> None:
    for name, frame in left.items():
        assert frame.columns == right[name].columns
        for one, other in zip(frame.rows(), right[name].rows(), strict=True):
            near = [pytest.approx(cell) if isinstance(cell, float) else cell for cell in one]
            assert list(other) == near, name


@pytest.mark.parametrize("seed", [1, nightly(0)])
def test_the_same_rows_in_more_files_give_the_same_answers(seed: int, tmp_path: Path) -> None:
    run = random_run(seed)
    split = write_run(tmp_path / "split", run.workers)
    for table, rows in run.tables.items():
        for worker_id in sorted({row["worker_id"] for row in rows}):
            own = [row for row in rows if row["worker_id"] == worker_id]
            for sequence, start in enumerate(range(0, len(own), 40), start=1):
                write_rows(split, table, worker_id, own[start : start + 40], sequence)
    assert_same(answers_as_written(seed), answers_of(split))


def test_the_order_of_rows_in_a_file_changes_no_answer_but_the_one_about_it(tmp_path: Path) -> None:
    run = random_run(1)
    shuffled = {table: Random(9).sample(rows, len(rows)) for table, rows in run.tables.items()}
    sorted_rows = dict(answers_as_written(1))
    any_order = answers_of(write_run(tmp_path / "shuffled", run.workers, **shuffled))
    assert sorted_rows.pop("ledger").rows() == any_order.pop("ledger").rows()
    assert_same(sorted_rows, any_order)


@pytest.mark.parametrize("by_ns", [nightly(7), 1_700_000_000 * SECOND])
def test_moving_every_clock_moves_times_and_changes_nothing_else(by_ns: int, tmp_path: Path) -> None:
    run, here = random_run(1), answers_as_written(1)

    def moved(row: Row) -> Row:
        return row | {name: row[name] + by_ns for name in {*TIMES, *WORKER_TIMES} & set(row)}

    tables = {table: [moved(row) for row in rows] for table, rows in run.tables.items()}
    there = answers_of(write_run(tmp_path, [moved(w) for w in run.workers], **tables))
    instants = pl.selectors.by_name(
        "start_ns", "end_ns", "bucket_start_ns", "publish_start_ns", "applied_ns", "first_start_ns", "tail_start_ns",
        "last_finish_ns", "wait_from_ns", "wait_to_ns", "time_ns", "started_ns", "finished_ns", "queued_ns", "taken_ns",
        "trained_ns", "heard_ns", "last_row_ns", require_all=False,
    )  # fmt: skip
    assert_same({name: frame.with_columns(instants + by_ns) for name, frame in here.items()}, there)
