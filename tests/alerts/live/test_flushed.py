"""Files that are read together as soon as they are found give the rows that each gives by itself."""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rlscope_otel.schema import TABLES, FileNumbers

from rlscope.alerts.live import files, flushed
from rlscope.alerts.live.files import LiveFiles, NewFile
from rlscope.alerts.live.flushed import FlushedFiles
from rlscope.alerts.live.rows import LiveRows
from rlscope.trace import small_files
from tests.trace_folder import engine_row, worker, write_rows, write_run

TABLE = "engine_steps"
FLUSHES = (2, 1, 3, 1)
"""Rows of each file of the one engine."""


@pytest.fixture(autouse=True)
def _two_are_worth_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_files, "_LEAST_TOGETHER", 2)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = write_run(tmp_path / "run", [])
    at = 0
    for number, rows in enumerate(FLUSHES, 1):
        write_rows(folder, TABLE, "e0", [engine_row("e0", at + n, at + n + 1) for n in range(rows)], number)
        at += rows
    return folder


def path_of(run: Path, number: int) -> Path:
    return run / TABLE / f"e0-{number:06d}.parquet"


def found(live: LiveFiles, rows: int = sum(FLUSHES), now_ns: int = 0) -> list[NewFile]:
    document: dict[str, Any] = worker("e0", "sampler", rows={TABLE: rows})
    return live.look([document], now_ns)


def read(new: list[NewFile]) -> list[list[int]]:
    """The starts of the rows of each file, by two ways: kept at once, and opened where it was not read."""
    kept, starts = LiveRows(), list[list[int]]()
    for file in new:
        if file.held is not None:
            kept.keep(file.table, file.held)
        rows = kept.add(file) if file.held is None else file.held.own
        starts.append(rows["start_ns"].to_pylist())
    assert kept.count == sum(map(len, starts))
    return starts


def is_read(new: list[NewFile]) -> list[bool]:
    return [file.held is not None for file in sorted(new, key=lambda file: file.numbers.first)]


def test_the_first_file_teaches_how_footers_begin_and_the_others_are_read_with_their_times(run: Path) -> None:
    live = LiveFiles(run, 10, [TABLE])
    new = found(live)
    assert is_read(new) == [False, True, True, True]
    assert read(new) == [[0, 1], [2], [3, 4, 5], [6]]
    assert [(file.first_ns, file.last_ns, file.rows) for file in new] == [(0, 2, 2), (2, 3, 1), (3, 6, 3), (6, 7, 1)]
    assert (live.stored_rows, live.last_ns, live.skipped, found(live)) == (7, {"e0": 7}, [], [])


def test_a_table_of_which_no_rows_are_needed_is_not_read(run: Path) -> None:
    assert is_read(found(LiveFiles(run, 10))) == [False] * 4


def test_a_damaged_file_is_named_and_the_others_are_read(run: Path) -> None:
    content = bytearray(path_of(run, 3).read_bytes())
    content[4:40] = bytes(36)
    path_of(run, 3).write_bytes(content)
    new = found(LiveFiles(run, 10, [TABLE]))
    assert is_read(new) == [False] * 4
    with pytest.raises((OSError, pa.ArrowException)):
        LiveRows().add(new[2])
    assert read([new[0], new[1], new[3]]) == [[0, 1], [2], [6]]


def test_a_row_that_lacks_a_value_is_left_out_and_counted(run: Path) -> None:
    stored = pq.read_table(path_of(run, 3))
    schema = pa.schema([field.with_nullable(True) for field in stored.schema])
    rows = [dict(row, start_ns=None if row["start_ns"] == 4 else row["start_ns"]) for row in stored.to_pylist()]
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path_of(run, 3))
    new, kept = found(LiveFiles(run, 10, [TABLE])), LiveRows()
    assert is_read(new) == [False, True, False, True]
    third = next(file for file in new if file.numbers.first == 3)
    assert kept.add(third)["start_ns"].to_pylist() == [3, 5]
    assert kept.left_out() == (f"{TABLE}: 1 rows lack a value that the format requires; they are left out",)


def test_a_file_that_is_merged_before_it_is_read_is_read_all_the_same(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, real = LiveFiles(run, 10, [TABLE]), flushed.read_flushed

    def vanishing(*given: Any) -> Any:
        for file in given[0]:
            Path(file.path).unlink()
        return real(*given)

    monkeypatch.setattr(files, "read_flushed", vanishing)
    assert sorted(read(found(live))) == [[0, 1], [2], [3, 4, 5], [6]]
    assert (live.stored_rows, live.skipped, found(live)) == (7, [], [])


def test_a_link_and_a_pipe_are_not_opened_as_files(run: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.parquet"
    path_of(run, 2).rename(outside)
    path_of(run, 2).symlink_to(outside)
    path_of(run, 3).unlink()
    os.mkfifo(path_of(run, 3))
    live = LiveFiles(run, 10, [TABLE])
    assert sorted(read(found(live))) == [[0, 1], [6]]
    assert found(live, now_ns=20) == []
    assert "a link that leads out of the run folder" in live.skipped[0]


@pytest.mark.parametrize(("rows", "stated"), [(1, 1), (63, 63), (64, 64), (5_000, 5_000), (5_001, None)])
@pytest.mark.parametrize("table", [TABLE, "samples"])
def test_the_number_of_rows_is_that_of_the_footer(rows: int, stated: int | None, table: str, tmp_path: Path) -> None:
    row = {column.name: _value(str(column.type)) for column in TABLES[table]}
    write_rows(tmp_path, table, "e0", [row], 1)
    many = write_rows(tmp_path, table, "e0", [row] * rows, 2)
    known = FlushedFiles()
    known.begin()
    first = tmp_path / table / "e0-000001.parquet"
    assert rows_in(known, many, table) is None
    known.learn(str(first), table, pq.read_metadata(first))
    assert rows_in(known, many, table) == stated


def rows_in(known: FlushedFiles, path: Path, table: str = TABLE) -> int | None:
    opened = known.opened(str(path), table, FileNumbers("e0", 1, 1))
    return None if opened is None else opened.rows


def _value(kind: str) -> object:
    if kind.startswith("int"):
        return 0
    if kind.startswith("list"):
        return []
    return {"string": "", "double": 0.0, "float": 0.0, "bool": False}[kind]


@pytest.mark.parametrize("kept", [0, 3, 11, 60, 400])
def test_a_file_that_was_cut_or_has_other_columns_is_left_to_be_parsed(kept: int, run: Path) -> None:
    known, path = FlushedFiles(), path_of(run, 1)
    known.learn(str(path), TABLE, pq.read_metadata(path))
    known.begin()
    content = path.read_bytes()
    path_of(run, 2).write_bytes(content[:kept])
    path_of(run, 3).write_bytes(content[:kept] + content[-kept:] if kept else b"")
    pq.write_table(pq.read_table(path_of(run, 4)).drop_columns(["waiting"]), path_of(run, 4))
    assert [rows_in(known, path_of(run, number)) for number in (2, 3, 4, 5)] == [None] * 4
    assert rows_in(known, path) == 2


@pytest.mark.parametrize("footer", [b"", b"\x00", b"\xff" * 40, b"\x15\x02\x19", b"\x15\x02\x19\xfc" + b"\xff" * 9])
def test_bytes_that_are_no_footer_begin_like_none(footer: bytes) -> None:
    assert flushed._begin(footer) is None


def test_a_look_reads_no_more_rows_than_it_can_hold(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flushed, "_MOST_ROWS", 3)
    new = found(LiveFiles(run, 10, [TABLE]))
    assert is_read(new) == [False, True, True, False]
    assert sorted(read(new)) == [[0, 1], [2], [3, 4, 5], [6]]
