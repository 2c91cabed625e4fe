"""Of the rows in memory, the next buckets are given what they need, and old rows are dropped."""

from typing import Final

import pyarrow as pa
import pytest
from rlscope_otel.schema import arrow_schema

from rlscope.alerts.live.rows import CORRECTED_NS, JOINED_NS, LiveRows
from rlscope.trace.journals import fitted
from tests.trace_folder import Row, delivery_row, engine_row, sample_row, train_row, update_row

S: Final = 1_000_000_000
FROM_S: Final = 100
"""Where the buckets begin that are asked about."""
HALF_AN_HOUR_S: Final = 1_800


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


def sample(name: str) -> Row:
    return sample_row(name, "e0", [(0, 0, 5)], started_ns=0, finished_ns=S)


def samples_of(rows: LiveRows) -> tuple[list[str], list[str]]:
    """The samples of the deliveries, and the samples, that the next buckets are given."""
    tables, _ = rows.since(FROM_S * S)
    return tuple(tables[name]["sample_id"].to_pylist() for name in ("deliveries", "samples"))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("taken_s", "step_end_s", "is_given"),
    [(50, 99, False), (50, 100, True), (99, 99, False), (100, 99, True), (100, 150, True)],
)
def test_a_sample_is_given_that_was_taken_then_or_whose_step_ended_then(
    taken_s: int, step_end_s: int, is_given: bool
) -> None:
    rows = held(
        train_steps=[step(1, 20), step(2, step_end_s)],
        deliveries=[taken("old", 10, 1), taken("new", taken_s, 2)],
        samples=[sample("waiting"), sample("old"), sample("new"), sample("new")],
    )
    assert samples_of(rows) == ((["new"], ["new", "new"]) if is_given else ([], []))


def test_a_delivery_that_no_step_trained_on_counts_when_it_was_taken() -> None:
    rows = held(deliveries=[taken("old", 99, None), taken("new", 100, None)], samples=[sample("old"), sample("new")])
    assert samples_of(rows) == (["new"], ["new"])


def test_without_a_delivery_no_sample_is_needed() -> None:
    tables, _ = held(samples=[sample("waiting")]).since(FROM_S * S)
    assert tables["samples"].num_rows == 0


def test_weight_updates_are_given_by_version_with_their_publication() -> None:
    def update(worker_id: str, end_s: int, version: int, phase: str = "apply") -> Row:
        return update_row(worker_id, (end_s - 1) * S, end_s * S, version, phase)

    rows = held(
        weight_updates=[
            update("t0", 10, 1, "publish"), update("e0", 11, 1), update("t0", 20, 2, "publish"),
            update("e0", 99, 2), update("e1", 100, 2),
        ]
    )  # fmt: skip
    tables, _ = rows.since(FROM_S * S)
    given = [(row["worker_id"], row["version"]) for row in tables["weight_updates"].to_pylist()]
    assert given == [("t0", 2), ("e0", 2), ("e1", 2)]


def test_rows_that_start_after_the_buckets_are_not_given() -> None:
    rows = held(engine_steps=[engine_row("e0", at * S, (at + 1) * S) for at in (100, 103, 104)])
    tables, _ = rows.since((FROM_S + 1) * S, 104 * S)
    assert [start_ns // S for start_ns in tables["engine_steps"]["start_ns"].to_pylist()] == [100, 103]


def test_the_rows_of_an_engine_follow_each_other_whichever_file_came_first() -> None:
    rows = held(engine_steps=[engine_row("e0", 101 * S, 102 * S), engine_row("e1", 101 * S, 102 * S)])
    for name, start_s in (("e1", 103), ("e0", 103), ("e0", 100)):
        keep(rows, "engine_steps", [engine_row(name, start_s * S, (start_s + 1) * S)])
    tables, _ = rows.since(FROM_S * S)
    assert [(row["worker_id"], row["start_ns"] // S) for row in tables["engine_steps"].to_pylist()] == [
        ("e0", 100), ("e0", 101), ("e0", 103), ("e1", 101), ("e1", 103)
    ]  # fmt: skip


@pytest.mark.parametrize(("later_ns", "left"), [(0, 3), (1, 2), (S, 2), (S + 1, 1), (HALF_AN_HOUR_S * S, 0)])
def test_rows_are_dropped_when_they_cannot_count_any_more(later_ns: int, left: int) -> None:
    rows = held(engine_steps=[engine_row("e0", S, 2 * S)])
    for end_s in (3, 5):
        keep(rows, "engine_steps", [engine_row("e0", (end_s - 1) * S, end_s * S)])
    rows.prune(2 * S + CORRECTED_NS + later_ns)
    assert rows.count == left


@pytest.mark.parametrize(("later_ns", "left"), [(0, 2), (1, 1)])
def test_samples_are_kept_for_as_long_as_a_step_may_train_on_them(later_ns: int, left: int) -> None:
    rows = held(samples=[sample("first"), sample_row("second", "e0", [(0, 0, 5)], started_ns=0, finished_ns=2 * S)])
    rows.prune(S + JOINED_NS + later_ns)
    assert rows.count == left
