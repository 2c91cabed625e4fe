"""A watch follows a folder whose files are merged and vanish: each row is read once."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlscope.alerts.live import files
from rlscope.alerts.live.files import LiveFiles
from rlscope.alerts.live.rows import LiveRows
from rlscope.trace import files as trace_files
from tests.merged_run import ROWS, TABLE, flush_all, merge, path_of
from tests.trace_folder import worker, write_run

EVERY_TIME = [100, 101, 102, 200, 300, 301, 302, 303, 400, 401]


def remove(folder: Path, *numbers: int) -> None:
    for number in numbers:
        path_of(folder, number, number).unlink()


def stating(worker: dict[str, Any], last_file: int) -> dict[str, Any]:
    """The worker's own file while it had flushed so many files."""
    return {**worker, "rows": {TABLE: sum(ROWS[:last_file])}}


class Watch:
    def __init__(self, folder: Path) -> None:
        self.files = LiveFiles(folder, patience_ns=10)

    def look(self, worker: dict[str, Any], now_ns: int = 0) -> list[int]:
        """The times of the rows that are new."""
        rows = [LiveRows().add(file) for file in self.files.look([worker], now_ns).files]
        return sorted(time_ns for part in rows for time_ns in part["time_ns"].to_pylist())


@pytest.mark.parametrize("seen", range(5))
def test_of_a_merged_file_only_what_was_not_seen_before_is_read(seen: int, tmp_path: Path) -> None:
    worker, watch = flush_all(tmp_path), Watch(tmp_path)
    later = {number: path_of(tmp_path, number, number).read_bytes() for number in range(seen + 1, 5)}
    remove(tmp_path, *later)
    before = watch.look(stating(worker, seen))
    for number, content in later.items():
        path_of(tmp_path, number, number).write_bytes(content)
    merge(tmp_path, worker, 1, 4)
    remove(tmp_path, 1, 2, 3, 4)
    assert before == EVERY_TIME[: sum(ROWS[:seen])]
    assert watch.look(stating(worker, 4)) == EVERY_TIME[sum(ROWS[:seen]) :]
    assert (watch.files.is_complete(stating(worker, 4)), watch.files.skipped) == (True, [])


@pytest.mark.parametrize("gone", [(), (1, 2, 3)])
def test_a_watch_that_starts_late_reads_the_merged_file_or_its_parts_and_never_both(gone, tmp_path: Path) -> None:
    worker, watch = flush_all(tmp_path), Watch(tmp_path)
    merge(tmp_path, worker, 1, 3)
    remove(tmp_path, *gone)
    assert watch.look(stating(worker, 4)) == EVERY_TIME
    assert [watch.look(stating(worker, 4)) for _ in range(40)] == [[]] * 40
    assert watch.files.stored_rows == 10


def test_a_file_that_vanishes_between_the_look_and_the_reading_is_found_in_the_merged_one(tmp_path: Path) -> None:
    worker, watch = flush_all(tmp_path), Watch(tmp_path)
    found = watch.files.look([stating(worker, 4)], 0).files
    merge(tmp_path, worker, 1, 4)
    remove(tmp_path, 1, 2, 3, 4)
    for file in found:
        with pytest.raises(FileNotFoundError):
            LiveRows().add(file)
        watch.files.forget(file)
    assert watch.look(stating(worker, 4)) == EVERY_TIME
    assert watch.files.stored_rows == 10


def test_a_merged_file_that_stays_unreadable_leaves_its_parts_to_be_read(tmp_path: Path) -> None:
    worker, watch = flush_all(tmp_path), Watch(tmp_path)
    path = merge(tmp_path, worker, 1, 3)
    path.write_bytes(path.read_bytes()[:-3])
    assert watch.look(stating(worker, 4)) == EVERY_TIME
    assert [watch.look(stating(worker, 4), now_ns) for now_ns in (5, 20)] == [[], []]


def test_a_long_merged_file_is_read_in_pieces_of_whole_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_PIECE_ROWS", 4)
    worker, watch = flush_all(tmp_path), Watch(tmp_path)
    merge(tmp_path, worker, 1, 4)
    remove(tmp_path, 1, 2, 3, 4)
    found = watch.files.look([stating(worker, 4)], 0).files
    assert [(file.numbers.range, file.first_row, file.rows) for file in found] == [
        ("000001_000002", 0, 4), ("000003", 4, 4), ("000004", 8, 2)
    ]  # fmt: skip
    assert [time_ns for file in found for time_ns in LiveRows().add(file)["time_ns"].to_pylist()] == EVERY_TIME


def test_rows_that_were_partly_read_and_merged_twice_since_are_left_out_and_said(tmp_path: Path) -> None:
    worker, watch = flush_all(tmp_path), Watch(tmp_path)
    second = path_of(tmp_path, 2, 2).read_bytes()
    remove(tmp_path, 2)
    assert len(watch.look(stating(worker, 1))) == 9
    path_of(tmp_path, 2, 2).write_bytes(second)
    merge(tmp_path, worker, 1, 4, parts=[(1, 2), (3, 4)])
    remove(tmp_path, 1, 2, 3, 4)
    assert watch.look(stating(worker, 4)) == []
    (said,) = watch.files.skipped
    assert "4 rows skipped, some of them read before the merging" in said
    assert watch.look(stating(worker, 4)) == []


def test_a_worker_file_is_read_again_only_when_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(tmp_path, [worker("e0", "sampler"), worker("e1", "sampler")])
    (folder / "workers" / "broken.json").write_text("{")
    opened: list[str] = []

    def read(path: Path, state: tuple[int, int, int], is_plain: bool) -> Any:
        opened.append(path.stem)
        return real(path, state, is_plain)

    real = trace_files._read_worker
    monkeypatch.setattr(trace_files, "_read_worker", read)
    known: trace_files.KnownWorkers = {}
    first = trace_files.read_workers(folder, known)
    assert trace_files.read_workers(folder, known) == first
    assert (opened, [each["worker_id"] for each in first[0]]) == (["broken", "e0", "e1"], ["e0", "e1"])
    document = worker("e1", "sampler", stop_ns=None)
    (folder / "workers" / "e1.json").write_text(json.dumps(document))
    assert trace_files.read_workers(folder, known)[0][1] == document
    assert opened[3:] == ["e1"]
