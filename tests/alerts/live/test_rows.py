"""Of the rows in memory, the next buckets are given what they need, and old rows are dropped."""

from typing import Final

import pyarrow as pa
import pytest
from rlscope_otel.schema import arrow_schema

from rlscope.alerts.live.rows import CORRECTED_NS, JOINED_NS, LiveRows
from rlscope.trace.journals import fitted
from tests.trace_folder import Row, delivery_row, engine_row, sample_row, train_row

S: Final = 1_000_000_000
FROM_S: Final = 100
"""Where the buckets begin that are asked about."""


def held(**tables: list[Row]) -> LiveRows:
    rows = LiveRows()
    for table, own in tables.items():
        keep(rows, table, own)
    return rows


def keep(rows: LiveRows, table: str, own: list[Row]) -> None:
    whole = [{name: row.get(name) for name in arrow_schema(table).names} for row in own]
    rows.keep(table, fitted(pa.Table.from_pylist(whole, arrow_schema(table)), table))


def step(number: int, end_s: int) -> Row:
    return train_row("t0", (end_s - 1) * S, end_s * S, number)


def taken(name: str, at_s: int, step: int | None) -> Row:
    return delivery_row(name, "t0", "trained", taken_ns=at_s * S, step=step)


def sample(name: str, finished_s: int = 2) -> Row:
    return sample_row(name, "e0", [(0, 0, 5)], started_ns=0, finished_ns=finished_s * S)


@pytest.mark.parametrize(
    ("taken_s", "step_end_s", "is_given"),
    [(50, 99, False), (50, 100, True), (99, 99, False), (100, 99, True), (99, None, False), (100, None, True)],
)
def test_a_sample_is_given_that_was_taken_then_or_whose_step_ended_then(
    taken_s: int, step_end_s: int | None, is_given: bool
) -> None:
    steps = [step(1, 20), *([] if step_end_s is None else [step(2, step_end_s)])]
    rows = held(
        train_steps=steps,
        deliveries=[taken("old", 10, 1), taken("new", taken_s, None if step_end_s is None else 2)],
        samples=[sample("waiting"), sample("old"), sample("new"), sample("new")],
    )
    tables, _ = rows.since(FROM_S * S)
    given = [tables[name]["sample_id"].to_pylist() for name in ("deliveries", "samples")]
    assert given == ([["new"], ["new", "new"]] if is_given else [[], []])


@pytest.mark.parametrize(("table", "kept_ns"), [("engine_steps", CORRECTED_NS), ("samples", JOINED_NS)])
def test_rows_are_dropped_when_they_cannot_count_any_more(table: str, kept_ns: int) -> None:
    rows, left = LiveRows(), list[int]()
    for end_s in (2, 3, 5):
        engine = engine_row("e0", (end_s - 1) * S, end_s * S)
        keep(rows, table, [sample("a", end_s) if table == "samples" else engine])
    for later_ns in (0, 1, S, S + 1, 10**15):
        rows.prune(2 * S + kept_ns + later_ns)
        left.append(rows.count)
    assert left == [3, 2, 2, 1, 0]


def test_an_engine_is_known_by_one_of_its_rows_however_old_they_are() -> None:
    rows = held(engine_steps=[engine_row("e0", S, 2 * S), engine_row("e0", 2 * S, 3 * S), engine_row("e1", S, 200 * S)])
    rows.prune(10**15)
    assert rows.since(FROM_S * S)[0]["engine_steps"]["worker_id"].to_pylist() == ["e0", "e1"]


def test_rows_that_are_left_out_are_counted_by_table_and_reason() -> None:
    rows = LiveRows()
    for lacking in (2, 1_000):
        rows.keep("samples", fitted(pa.table({"segment": [0] * lacking}), "samples"))
    keep(rows, "engine_steps", [engine_row("e0", S, 2 * S, running=running) for running in (-1, 0)])
    assert rows.count == 1
    assert rows.left_out() == (
        "samples: 1,002 rows lack a value that the format requires; they are left out",
        "engine_steps: 1 rows have a value that cannot be; they are left out",
    )
