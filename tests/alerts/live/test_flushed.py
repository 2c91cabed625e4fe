"""Files that are read together as soon as they are found give the rows that each gives by itself."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rlscope_otel.schema import FileNumbers

from rlscope.alerts.live import files
from rlscope.alerts.live.files import FoundFiles, LiveFiles
from rlscope.alerts.live.flushed import Flushed, read_flushed, small_content
from rlscope.alerts.live.rows import LiveRows
from rlscope.trace import small_files
from tests.trace_folder import engine_row, worker, write_rows, write_run

TABLE: Final = "engine_steps"
FLUSHES: Final[Mapping[str, Sequence[int]]] = {"e0": (2, 1, 3, 1), "e1": (1, 2), "e2": (2, 1), "e3": (1,)}
"""Rows of each file of each engine."""
STARTS: Final = {"e0": [0, 1, 2, 3, 4, 5, 6], "e1": [0, 1, 2], "e2": [0, 1, 2], "e3": [0]}
"""When the rows of each engine start."""


@pytest.fixture(autouse=True)
def _two_are_worth_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_files, "_LEAST_TOGETHER", 2)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = write_run(tmp_path / "run", [])
    for name, flushes in FLUSHES.items():
        at = 0
        for number, rows in enumerate(flushes, 1):
            write_rows(folder, TABLE, name, [engine_row(name, at + n, at + n + 1) for n in range(rows)], number)
            at += rows
    return folder


def path_of(run: Path, name: str, number: int) -> Path:
    return run / TABLE / f"{name}-{number:06d}.parquet"


def look(live: LiveFiles, now_ns: int = 0) -> FoundFiles:
    documents: list[dict[str, Any]] = [
        worker(name, "sampler", rows={TABLE: sum(flushes)}) for name, flushes in FLUSHES.items()
    ]
    return live.look(documents, now_ns)


def together(found: FoundFiles) -> list[list[tuple[str, int]]]:
    """The files of each call that read several."""
    return [[numbers[:2] for numbers in read.numbers] for read in found.read]


def alone(found: FoundFiles) -> list[tuple[str, int]]:
    return sorted(file.numbers[:2] for file in found.files)


def starts(found: FoundFiles) -> dict[str, list[int]]:
    """By engine, the starts of the rows, read together or one by one."""
    tables = [read.rows for read in found.read] + [LiveRows().add(file) for file in found.files]
    rows = [(row["worker_id"], row["start_ns"]) for table in tables for row in table.to_pylist()]
    return {name: sorted(start_ns for own, start_ns in rows if own == name) for name in FLUSHES}


def test_the_first_file_of_each_worker_is_read_in_one_call_then_those_that_follow(run: Path) -> None:
    live = LiveFiles(run, 10, [TABLE])
    found = look(live)
    assert together(found) == [
        [("e0", 1), ("e1", 1), ("e2", 1), ("e3", 1)], [("e0", 2), ("e1", 2), ("e2", 2), ("e0", 3)]
    ]  # fmt: skip
    assert alone(found) == [("e0", 4)], "one worker alone has nobody to be read with"
    assert starts(found) == STARTS
    assert (live.stored_rows, live.last_ns, live.skipped) == (14, {"e0": 7, "e1": 3, "e2": 3, "e3": 1}, [])
    assert look(live) == FoundFiles([], [])


def test_each_file_of_a_call_has_its_rows_and_its_times(run: Path) -> None:
    (first, second) = look(LiveFiles(run, 10, [TABLE])).read
    assert first.counts.tolist() == [2, 1, 2, 1]
    assert list(zip(second.first_ns.tolist(), second.last_ns.tolist(), strict=True)) == [(2, 3), (1, 3), (2, 3), (3, 6)]
    assert [(numbers.worker_id, rows["start_ns"].to_pylist()) for numbers, rows in second.each()] == [
        ("e0", [2]), ("e1", [1, 2]), ("e2", [2]), ("e0", [3, 4, 5])
    ]  # fmt: skip


def test_a_part_of_what_was_read_holds_the_rows_of_its_files(run: Path) -> None:
    (first, _) = look(LiveFiles(run, 10, [TABLE])).read
    part = first.part(first.counts == 2)
    assert [(numbers.worker_id, rows["start_ns"].to_pylist()) for numbers, rows in part.each()] == [
        ("e0", [0, 1]), ("e2", [0, 1])
    ]  # fmt: skip
    assert set(part.rows["worker_id"].to_pylist()) == {"e0", "e2"}


def test_of_a_table_whose_rows_nobody_needs_none_are_kept(run: Path) -> None:
    live = LiveFiles(run, 10)
    found = look(live)
    assert (found.read, alone(found)) == ([], [("e0", 4)])
    assert (live.stored_rows, live.last_ns, live.skipped) == (14, {"e0": 7, "e1": 3, "e2": 3, "e3": 1}, [])


@pytest.mark.parametrize(("column", "named"), [("kv_used_tokens", 0), ("waiting", 1), ("end_ns", 1)])
def test_a_file_that_lacks_a_column_is_named_also_where_nobody_needs_its_rows(
    column: str, named: int, run: Path
) -> None:
    path = path_of(run, "e3", 1)
    pq.write_table(pq.read_table(path).drop_columns([column]), path)
    live = LiveFiles(run, 10)
    look(live)
    look(live, now_ns=20)
    assert sum(f"column {column} is missing" in said for said in live.skipped) == named


def test_a_damaged_file_is_named_and_the_others_are_read(run: Path) -> None:
    content = bytearray(path_of(run, "e1", 1).read_bytes())
    content[4:40] = bytes(36)
    path_of(run, "e1", 1).write_bytes(content)
    found = look(LiveFiles(run, 10, [TABLE]))
    assert together(found)[0] == [("e2", 1), ("e3", 1)], "the half without it"
    damaged = next(file for file in found.files if file.numbers[:2] == ("e1", 1))
    with pytest.raises((OSError, pa.ArrowException)):
        LiveRows().add(damaged)
    found.files.remove(damaged)
    assert starts(found) == STARTS | {"e1": [1, 2]}


def test_a_row_that_lacks_a_value_is_left_out_and_counted(run: Path) -> None:
    stored = pq.read_table(path_of(run, "e0", 1))
    schema = pa.schema([field.with_nullable(True) for field in stored.schema])
    rows = [dict(row, start_ns=row["start_ns"] or None) for row in stored.to_pylist()]
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path_of(run, "e0", 1))
    found, kept = look(LiveFiles(run, 10, [TABLE])), LiveRows()
    assert ("e0", 1) in alone(found)
    for file in found.files:
        kept.add(file)
    assert kept.left_out() == (f"{TABLE}: 1 rows lack a value that the format requires; they are left out",)
    assert starts(found) == STARTS | {"e0": STARTS["e0"][1:]}


def test_a_file_that_holds_rows_of_another_worker_is_read_by_itself(run: Path) -> None:
    path_of(run, "e3", 1).write_bytes(path_of(run, "e0", 1).read_bytes())
    found = look(LiveFiles(run, 10, [TABLE]))
    assert together(found)[0] == [("e0", 1), ("e1", 1)]
    assert {("e2", 1), ("e3", 1)} <= set(alone(found))


def test_a_file_that_is_merged_before_it_is_read_is_read_all_the_same(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, real = LiveFiles(run, 10, [TABLE]), read_flushed

    def vanishing(flushed: Sequence[Flushed], table: str, most_rows: int) -> Any:
        for file in flushed[:-1]:
            (run / TABLE / file.numbers.name).unlink()
        return real(flushed, table, most_rows)

    monkeypatch.setattr(files, "read_flushed", vanishing)
    found = look(live)
    assert (starts(found), live.skipped, live.stored_rows) == (STARTS, [], 14)


def test_a_link_and_a_pipe_are_not_opened_as_files(run: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.parquet"
    path_of(run, "e1", 1).rename(outside)
    path_of(run, "e1", 1).symlink_to(outside)
    path_of(run, "e2", 1).unlink()
    os.mkfifo(path_of(run, "e2", 1))
    live = LiveFiles(run, 10, [TABLE])
    found = look(live)
    assert together(found) == [[("e0", 1), ("e3", 1)]]
    assert starts(found) == STARTS | {"e1": [1, 2], "e2": [2]}
    assert look(live, now_ns=20) == FoundFiles([], [])
    assert "a link that points outside the run folder" in live.skipped[0]


def read_two(folder: Path, most_rows: int = 10) -> list[list[int]]:
    """The counts of what is read of the first files of two workers."""
    numbered = [FileNumbers(name, 1, 1) for name in ("e0", "e1")]
    flushed = [Flushed(numbers, small_content(f"{folder}/{TABLE}/{numbers.name}")) for numbers in numbered]
    return [read.counts.tolist() for read in read_flushed(flushed, TABLE, most_rows)]


@pytest.mark.parametrize("kept", [3, 11, 60, 400])
def test_a_file_that_was_cut_is_left_to_be_parsed(kept: int, run: Path) -> None:
    assert read_two(run) == [[2, 1]]
    content = path_of(run, "e0", 1).read_bytes()
    for cut in (content[:kept], content[:kept] + content[-kept:]):
        path_of(run, "e0", 1).write_bytes(cut)
        assert read_two(run) == []


@pytest.mark.parametrize(("column", "read"), [("kv_used_tokens", [[2, 1]]), ("start_ns", []), ("more", [])])
def test_a_file_may_lack_a_column_that_may_be_null_and_has_no_other(column: str, read: Any, run: Path) -> None:
    stored = pq.read_table(path_of(run, "e0", 1))
    lacks = column in stored.column_names
    other = stored.drop_columns([column]) if lacks else stored.append_column(column, pa.array([1, 2]))
    pq.write_table(other, path_of(run, "e0", 1))
    assert read_two(run) == read


@pytest.mark.parametrize(("most_rows", "read"), [(3, [[2, 1]]), (2, [])])
def test_a_call_reads_no_more_rows_than_it_may(most_rows: int, read: Any, run: Path) -> None:
    assert read_two(run, most_rows) == read


def test_a_look_reads_no_more_rows_than_it_can_hold(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_ROWS", 6)
    found = look(LiveFiles(run, 10, [TABLE]))
    assert together(found) == [[("e0", 1), ("e1", 1), ("e2", 1), ("e3", 1)]]
    assert starts(found) == STARTS


def test_a_large_file_is_left_to_be_read_when_its_rows_are_due(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(path_of(run, "e0", 1))
    size_bytes = os.path.getsize(path)
    monkeypatch.setattr("rlscope.alerts.live.flushed._MOST_BYTES", size_bytes)
    assert len(small_content(path)) == size_bytes
    monkeypatch.setattr("rlscope.alerts.live.flushed._MOST_BYTES", size_bytes - 1)
    assert small_content(path) == b""
