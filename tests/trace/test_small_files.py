"""Many small files read in one call give what each gives by itself, or nothing."""

from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rlscope_otel.schema import FileNumbers

from rlscope.alerts.live import rows as live_rows
from rlscope.alerts.live.files import NewFile
from rlscope.alerts.live.rows import LiveRows
from rlscope.trace import small_files
from rlscope.trace.small_files import read_small_files
from tests.trace_folder import engine_row, sample_row, write_rows, write_run

FLUSHES: Final = 4


@pytest.fixture
def engine_files(tmp_path: Path) -> list[tuple[Path, int]]:
    folder = write_run(tmp_path / "run", [])
    counts = range(1, FLUSHES + 1)
    flushes = [[engine_row("e0", at, at + 1, decode_tokens=count) for at in range(count)] for count in counts]
    return [(write_rows(folder, "engine_steps", "e0", rows, number), number) for number, rows in enumerate(flushes, 1)]


def found(files: list[tuple[Path, int]]) -> list[list[dict[str, object]]] | None:
    read = read_small_files(files)
    return None if read is None else [rows.to_pylist() for rows in read]


def by_themselves(files: list[tuple[Path, int]]) -> list[list[dict[str, object]]]:
    return [pq.read_table(path).to_pylist() for path, _ in files]


def test_each_file_has_its_own_rows_in_their_order(engine_files: list[tuple[Path, int]]) -> None:
    assert found(engine_files) == by_themselves(engine_files)
    assert found(engine_files[::-1]) == by_themselves(engine_files)[::-1]


def test_lists_are_read_as_they_are(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [])
    flushed = [[sample_row(f"s{number}", "e0", [(0, 0, 4), (1, 4, 9)])] for number in (1, 2)]
    files = [(write_rows(folder, "samples", "e0", rows, number), 1) for number, rows in enumerate(flushed, 1)]
    assert found(files) == by_themselves(files)


def test_a_column_that_one_file_lacks_is_null_there_alone(engine_files: list[tuple[Path, int]]) -> None:
    path, _ = engine_files[0]
    pq.write_table(pq.read_table(path).drop_columns(["waiting"]), path)
    read = found(engine_files)
    assert read is not None
    assert [[row["waiting"] for row in rows] for rows in read][:2] == [[None], [0, 0]]


def test_nothing_is_read_where_a_file_is_damaged_gone_or_of_other_rows(engine_files: list[tuple[Path, int]]) -> None:
    (first, _), (second, rows) = engine_files[:2]
    assert found([(first, 2), (second, rows - 1)]) is None
    assert found([(first, 1), (second, rows + 1)]) is None
    content = first.read_bytes()
    first.write_bytes(content[:-5])
    assert found(engine_files) is None
    first.unlink()
    assert found(engine_files) is None


def test_nothing_is_read_where_a_path_could_stand_for_others(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run[1]", [])
    path = write_rows(folder, "engine_steps", "e0", [engine_row("e0", 0, 1)])
    assert found([(path, 1)]) is None


def new_files(files: list[tuple[Path, int]]) -> list[NewFile]:
    return [NewFile(path, "engine_steps", 0, 9, FileNumbers("e0", rows, rows), rows) for path, rows in files]


@pytest.mark.parametrize("least", [FLUSHES, FLUSHES + 1])
def test_a_watch_has_the_same_rows_from_files_that_it_reads_together(
    least: int, engine_files: list[tuple[Path, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_files, "_LEAST_TOGETHER", least)
    opened = list[Path]()

    def stored_rows(file: NewFile) -> pa.Table:
        opened.append(file.path)
        return one_by_one(file)

    one_by_one = live_rows._stored_rows
    monkeypatch.setattr(live_rows, "_stored_rows", stored_rows)
    held, new = LiveRows(), new_files(engine_files)
    held.read_ahead(new)
    assert [held.add(file).to_pylist() for file in new] == by_themselves(engine_files)
    assert len(opened) == (0 if least <= FLUSHES else FLUSHES)


def test_of_files_that_a_watch_reads_together_the_damaged_one_is_the_one_that_fails(
    engine_files: list[tuple[Path, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_files, "_LEAST_TOGETHER", 1)
    expected = by_themselves(engine_files)
    (path, _), new, held = engine_files[2], new_files(engine_files), LiveRows()
    path.write_bytes(path.read_bytes()[:-5])
    held.read_ahead(new)
    with pytest.raises((OSError, pa.ArrowException)):
        held.add(new[2])
    assert [held.add(file).to_pylist() for file in (*new[:2], new[3])] == [*expected[:2], expected[3]]


def test_a_row_without_a_value_that_must_be_is_left_out_and_counted_though_files_are_read_together(
    engine_files: list[tuple[Path, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_files, "_LEAST_TOGETHER", 1)
    path, _ = engine_files[1]
    rows = [dict(row, start_ns=None) for row in pq.read_table(path).to_pylist()]
    schema = pa.schema([field.with_nullable(True) for field in pq.read_schema(path)])
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    held, new = LiveRows(), new_files(engine_files)
    held.read_ahead(new)
    assert [held.add(file).num_rows for file in new] == [1, 0, 3, 4]
    assert held.left_out() == ("engine_steps: 2 rows lack a value that the format requires; they are left out",)
