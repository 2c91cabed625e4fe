"""Files that a recorder merged into another are counted once, whatever was there when it was killed."""

import copy
import itertools
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlscope_otel.schema import FileNumbers, chained_checksum, joined_checksum
from rlscope_otel.worker_file import Written

from rlscope.trace.completeness import Checked, check_files
from rlscope.trace.files import list_table
from tests.merged_run import ROWS, TABLE, flush_all, merge, path_of
from tests.trace_folder import write_rows


def checked(folder: Path, worker: dict[str, Any]) -> Checked:
    files, skipped = list_table(folder, TABLE)
    found = check_files(folder, "run", [worker], {TABLE: files})
    return found._replace(skipped=[*skipped, *found.skipped])


def names(found: Checked) -> list[str]:
    return [path.stem.removeprefix("w-1-") for path in found.tables[TABLE].paths]


def times(found: Checked) -> list[int]:
    return [time for path in found.tables[TABLE].paths for time in pq.read_table(path)["time_ns"].to_pylist()]


EVERY_TIME = [100, 101, 102, 200, 300, 301, 302, 303, 400, 401]


@pytest.mark.parametrize("kept", [kept for size in range(4) for kept in itertools.combinations((1, 2, 3), size)])
def test_whatever_parts_a_kill_leaves_beside_the_merged_file_every_row_counts_once(
    kept: tuple[int, ...], tmp_path: Path
) -> None:
    worker = flush_all(tmp_path)
    merge(tmp_path, worker, 1, 3)
    for number in {1, 2, 3} - set(kept):
        path_of(tmp_path, number, number).unlink()
    found = checked(tmp_path, worker)
    assert names(found) == ["000001_000003", "000004"]
    assert times(found) == EVERY_TIME
    assert (found.completeness.state, found.completeness.is_verified, found.skipped) == ("complete", True, [])


def read_after_flush(folder: Path, last_file: int) -> dict[str, Any]:
    """The worker's own file as it was after one of the four flushes: a reader opens it before it lists the others."""
    worker, written = flush_all(folder), Written()
    for number in range(1, last_file + 1):
        written = written.and_file(number, ROWS[number - 1], zlib.crc32(path_of(folder, number, number).read_bytes()))
    worker["written"][TABLE] = asdict(written)
    return worker | {"stopped_ns": None}


@pytest.mark.parametrize("last_file", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("first", "last", "parts"), [(1, 4, None), (1, 3, None), (2, 4, None), (1, 4, [(1, 3), (4, 4)])]
)
def test_what_a_worker_merges_between_the_reading_of_its_file_and_of_the_others_is_no_gap(
    first: int, last: int, parts: list[tuple[int, int]] | None, last_file: int, tmp_path: Path
) -> None:
    worker = read_after_flush(tmp_path, last_file)
    merge(tmp_path, copy.deepcopy(worker), first, last, parts=parts)
    for number in range(first, last + 1):
        path_of(tmp_path, number, number).unlink()
    found = checked(tmp_path, worker)
    assert times(found) == EVERY_TIME
    assert (found.completeness.state, found.completeness.gaps, found.skipped) == ("complete", (), [])
    assert not found.completeness.is_verified


def test_of_rows_merged_after_the_reading_of_the_worker_file_those_that_are_missing_are_named(tmp_path: Path) -> None:
    worker = read_after_flush(tmp_path, 3)
    merge(tmp_path, copy.deepcopy(worker), 2, 4)
    for number in range(1, 5):
        path_of(tmp_path, number, number).unlink()
    (gap,) = checked(tmp_path, worker).completeness.gaps
    assert (gap.kind, gap.rows) == ("missing", ROWS[0])
    assert "(file 000001)" in gap.detail


@pytest.mark.parametrize("last_file", [3, 4])
def test_a_damaged_page_in_a_file_merged_after_the_reading_of_the_worker_file_is_named(
    last_file: int, tmp_path: Path
) -> None:
    worker = read_after_flush(tmp_path, last_file)
    path = merge(tmp_path, copy.deepcopy(worker), 1, 4)
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)
    found = checked(tmp_path, worker)
    assert found.tables[TABLE].rows == 0
    assert [file.path for file in found.skipped] == [f"{TABLE}/{path.name}"]
    assert [(gap.kind, gap.rows) for gap in found.completeness.gaps] == [("missing", sum(ROWS[:last_file]))]


def test_a_merged_file_that_was_merged_again_is_left_out_too(tmp_path: Path) -> None:
    worker = flush_all(tmp_path)
    for first, last in ((1, 2), (3, 4), (1, 4)):
        merge(tmp_path, worker, first, last)
    found = checked(tmp_path, worker)
    assert (names(found), times(found)) == (["000001_000004"], EVERY_TIME)
    assert found.completeness.is_verified


def test_without_the_merged_file_its_parts_are_read_though_the_worker_announced_it(tmp_path: Path) -> None:
    worker = flush_all(tmp_path)
    merge(tmp_path, worker, 1, 3).unlink()
    found = checked(tmp_path, worker)
    assert (names(found), times(found)) == (["000001", "000002", "000003", "000004"], EVERY_TIME)
    assert found.completeness.is_verified


def test_a_merged_file_that_cannot_be_read_hides_nothing(tmp_path: Path) -> None:
    worker = flush_all(tmp_path)
    path = merge(tmp_path, worker, 1, 3)
    path.write_bytes(path.read_bytes()[:-3])
    found = checked(tmp_path, worker)
    assert (times(found), found.completeness.state) == (EVERY_TIME, "complete")
    assert [file.path for file in found.skipped] == [f"{TABLE}/w-1-000001_000003.parquet"]


def test_a_missing_merged_file_is_named_by_the_numbers_that_it_stood_for(tmp_path: Path) -> None:
    worker = flush_all(tmp_path)
    path = merge(tmp_path, worker, 1, 3)
    for number in (1, 2, 3):
        path_of(tmp_path, number, number).unlink()
    path.unlink()
    (gap,) = checked(tmp_path, worker).completeness.gaps
    assert (gap.kind, gap.rows) == ("missing", 8)
    assert "(files 000001, 000002, 000003)" in gap.detail


def test_other_values_in_a_merged_file_are_named_by_its_checksum(tmp_path: Path) -> None:
    worker = flush_all(tmp_path)
    path = merge(tmp_path, worker, 1, 4)
    for number in range(1, 5):
        path_of(tmp_path, number, number).unlink()
    metadata = pq.read_metadata(path).metadata or {}
    rows = pq.read_table(path)
    changed = rows.set_column(3, "depth", pa.array([9] * rows.num_rows, pa.int64()))
    with pq.ParquetWriter(path, changed.schema, store_schema=False) as writer:
        writer.add_key_value_metadata({key.decode(): value.decode() for key, value in metadata.items()})
        writer.write_table(changed)
    (gap,) = checked(tmp_path, worker).completeness.gaps
    assert (gap.kind, gap.rows) == ("changed", 10)


@pytest.mark.parametrize("name", ["w-1-000001_000009", "w-1-000002_000004", "other-000001_000004"])
def test_a_copy_whose_name_claims_more_numbers_hides_nothing(name: str, tmp_path: Path) -> None:
    worker = flush_all(tmp_path)
    copy = tmp_path / TABLE / f"{name}.parquet"
    copy.write_bytes(path_of(tmp_path, 3, 3).read_bytes())
    found = checked(tmp_path, worker)
    assert (times(found), found.completeness.state) == (EVERY_TIME, "complete")
    assert [file.path for file in found.skipped] == [f"{TABLE}/{name}.parquet"]


def test_a_copy_of_a_merged_file_is_left_out_and_named(tmp_path: Path) -> None:
    worker = flush_all(tmp_path)
    path = merge(tmp_path, worker, 1, 3)
    (tmp_path / TABLE / "w-1-000005.parquet").write_bytes(path.read_bytes())
    found = checked(tmp_path, worker)
    assert (times(found), found.completeness.state) == (EVERY_TIME, "complete")
    assert "a copy of w-1-000001_000003.parquet" in found.skipped[0].why


def test_a_merged_file_of_another_run_hides_nothing(tmp_path: Path) -> None:
    worker = flush_all(tmp_path)
    merge(tmp_path, worker, 1, 3, run_id="other")
    found = checked(tmp_path, worker)
    assert (times(found), found.completeness.state) == (EVERY_TIME, "complete")


def test_files_without_a_stamp_go_by_their_names(tmp_path: Path) -> None:
    rows = [{"queue": "q", "worker_id": "w-1", "time_ns": time_ns, "depth": 0} for time_ns in (1, 2)]
    whole = write_rows(tmp_path, TABLE, "w-1", rows).rename(path_of(tmp_path, 1, 2))
    for sequence, row in enumerate(rows, start=1):
        write_rows(tmp_path, TABLE, "w-1", [row], sequence)
    files, skipped = list_table(tmp_path, TABLE)
    assert (files.paths, skipped) == ((whole,), [])


def test_files_come_in_the_order_of_their_first_numbers(tmp_path: Path) -> None:
    for first, last in ((10, 12), (2, 9), (13, 13), (1, 1)):
        write_rows(tmp_path, TABLE, "w-1", []).rename(path_of(tmp_path, 99, 99))
        path_of(tmp_path, 99, 99).rename(path_of(tmp_path, first, last))
    files, _ = list_table(tmp_path, TABLE)
    assert [path.stem[4:] for path in files.paths] == ["000001", "000002_000009", "000010_000012", "000013"]


@pytest.mark.parametrize(
    ("stem", "numbers"),
    [
        ("w-000001-000002", ("w-000001", 2, 2)),
        ("w_1-000001_000150", ("w_1", 1, 150)),
        ("w-1000000_2000000", ("w", 1_000_000, 2_000_000)),
        ("w-000002_000001", None),
        ("w-1_", None),
        ("-000001", None),
        ("w", None),
    ],
)
def test_a_name_says_its_worker_and_numbers(stem: str, numbers: tuple[str, int, int] | None) -> None:
    found = FileNumbers.of(stem)
    assert found == numbers
    assert found is None or found.name == f"{stem}.parquet"


@given(st.lists(st.integers(0, 2**32 - 1), max_size=9), st.integers(0, 9))
def test_checksums_of_stretches_join_to_that_of_the_whole(files: list[int], cut: int) -> None:
    def chain(numbered: list[tuple[int, int]]) -> int:
        checksum = 0
        for number, crc32 in numbered:
            checksum = chained_checksum(checksum, number, crc32)
        return checksum

    numbered = list(enumerate(files, start=1))
    after = numbered[cut:]
    assert joined_checksum(chain(numbered[:cut]), chain(after), len(after)) == chain(numbered)
