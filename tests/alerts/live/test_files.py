"""A watch finds each row once: in a journal that grows, in the Parquet file that replaces it, and in other files."""

import os
import zlib
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rlscope_otel.journal import sealed

from rlscope.alerts.live import files
from rlscope.alerts.live.files import LiveFiles
from rlscope.alerts.live.rows import LiveRows
from rlscope.trace.usual_times import Window
from rlscope.trace.worker_files import Worker
from tests import journals
from tests.journals import append, append_table, close, journal_path, table_of
from tests.trace_folder import Row, activity, engine_row, worker, write_run

TABLE: Final = "engine_steps"
FLUSHES: Final = (2, 1, 3, 1)
"""Rows of each flush of e0; a row starts at its number."""
PATIENCE_NS: Final = 10
E0: Final = Worker.of(worker("e0", "sampler"))


def rows_from(first: int, count: int, name: str = "e0") -> list[Row]:
    return [engine_row(name, at, at + 1) for at in range(first, first + count)]


def flush(folder: Path, numbers: Sequence[int], journal: int = 1) -> Path:
    """Append the flushes with these numbers, from 0 on, to a journal of e0."""
    for number in numbers:
        first = sum(FLUSHES[:number])
        path = append(folder, TABLE, "e0", rows_from(first, FLUSHES[number]), first_row=first, number=journal)
    return path  # type: ignore[possibly-undefined]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    return write_run(folder, [worker("e0", "sampler")])


class Watch:
    def __init__(
        self, folder: Path, tables: Sequence[str] = (TABLE,), window: Window | None = None, due_ns: int = 10
    ) -> None:
        self.folder, self.due_ns = folder, due_ns
        self.files = LiveFiles(folder, PATIENCE_NS, tables)
        self.window = window

    def look(self, now_ns: int = 0, stated: int | None = None) -> list[int]:
        """The starts of the rows that are new. stated: rows that the worker file counts; None if it counts none."""
        owner = replace(E0, rows=None if stated is None else {TABLE: stated})
        found = self.files.look([owner], now_ns, journals.RUN_ID, self.window, self.due_ns)
        read = [*found.read, *((piece.table, piece.read()) for piece in found.pieces)]
        tables = [LiveRows().keep(*each) for each in read]
        return sorted(start_ns for rows in tables for start_ns in rows["start_ns"].to_pylist())

    @property
    def said(self) -> list[str]:
        return self.files.skipped


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("due_ns", [10, 0])
@pytest.mark.parametrize("seen", range(5))
def test_each_row_is_found_once_whenever_a_parquet_file_replaces_the_journal(
    seen: int, due_ns: int, keep: bool, run: Path
) -> None:
    watch, rows = Watch(run, due_ns=due_ns), sum(FLUSHES[:seen])
    if seen:
        flush(run, range(seen))
    assert watch.look(stated=rows) == [*range(rows)]
    if seen < len(FLUSHES):
        flush(run, range(seen, len(FLUSHES)))
    close(journal_path(run, TABLE, "e0"), keep=keep)
    append(run, TABLE, "e0", rows_from(7, 2), first_row=7, number=2)
    assert watch.look(stated=9) == [*range(rows, 9)]
    assert [watch.look(now_ns, stated=9) for now_ns in (5, 50)] == [[], []]
    assert (watch.files.stored_rows, watch.files.last_ns, watch.said) == (9, {"e0": 9}, [])


def test_a_journal_that_is_replaced_while_the_folder_is_listed_hides_no_other(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, real, path = Watch(run), os.scandir, flush(run, [0])
    append(run, TABLE, "e0", rows_from(2, 2), first_row=2, number=2)

    def scandir(folder: Path) -> Any:
        with real(folder) as entries:
            listed = list(entries)
        if path.exists():
            close(path)
        return nullcontext(listed)

    monkeypatch.setattr(os, "scandir", scandir)
    assert (watch.look(now_ns=0, stated=4), watch.said) == ([2, 3], [])
    assert (watch.look(now_ns=20, stated=4), watch.said) == ([0, 1], [])


def test_only_what_is_new_is_read(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch, ends, offsets, real = Watch(run), [0], list[int](), os.pread

    def pread(descriptor: int, length: int, offset: int) -> bytes:
        offsets.append(offset)
        return real(descriptor, length, offset)

    monkeypatch.setattr(os, "pread", pread)
    for number in range(len(FLUSHES)):
        ends.append(flush(run, [number]).stat().st_size)
        for _ in range(2):
            watch.look(stated=sum(FLUSHES[: number + 1]))
    assert offsets == ends[:-1]


@pytest.mark.parametrize("cut_bytes", [1, 100, 600])
def test_a_batch_that_is_being_written_is_read_when_it_is_whole(cut_bytes: int, run: Path) -> None:
    watch, path = Watch(run), flush(run, [0, 1])
    content = path.read_bytes()
    path.write_bytes(content[:-cut_bytes])
    assert watch.look(now_ns=0, stated=3) == [0, 1]
    path.write_bytes(content)
    assert watch.look(now_ns=1, stated=3) == [2]
    flush(run, [2])
    assert watch.look(now_ns=100, stated=6) == [3, 4, 5]
    assert watch.said == []


@pytest.mark.parametrize(("stated", "is_named"), [(3, False), (4, True), (None, True)])
def test_a_journal_that_stays_damaged_is_named_if_rows_are_missing(
    stated: int | None, is_named: bool, run: Path
) -> None:
    watch, path = Watch(run), flush(run, [0, 1])
    sound = path.stat().st_size
    content = bytearray(flush(run, [2]).read_bytes())
    content[sound + 900] ^= 1
    path.write_bytes(content)
    assert watch.look(now_ns=0, stated=stated) == [0, 1, 2]
    assert (watch.look(now_ns=9, stated=stated), watch.said) == ([], [])
    assert watch.look(now_ns=10, stated=stated) == []
    why = f"skipped {TABLE}/e0-000001.arrows: no whole batch at byte {sound:,}: incomplete or damaged"
    assert watch.said == ([why] if is_named else [])
    assert (watch.look(now_ns=20, stated=stated), len(watch.said)) == ([], int(is_named))


def test_rows_that_were_partly_read_before_are_left_out_and_named(run: Path) -> None:
    watch = Watch(run)
    flush(run, [0])
    append(run, TABLE, "e0", rows_from(1, 3), first_row=1, number=2)
    assert watch.look() == [0, 1]
    assert watch.said == [f"{TABLE}/e0-000002.arrows: rows 1 to 3 are left out, some of them were read before"]


@pytest.mark.parametrize(
    ("run_id", "table", "is_closed", "said"),
    [
        ("tuesday", TABLE, False, f"it belongs to table {TABLE} of run tuesday"),
        ("tuesday", TABLE, True, f"it belongs to table {TABLE} of run tuesday"),
        ("run", "activities", False, "column running is missing, expected int32"),
        ("run", "activities", True, "column running is missing, expected int32"),
    ],
)
def test_a_file_of_another_run_or_table_is_named_and_not_read(
    run_id: str, table: str, is_closed: bool, said: str, run: Path
) -> None:
    rows = rows_from(0, 1) if table == TABLE else [activity("e0", 0, 1, "wait")]
    path = append_table(run, table_of(table, rows), "e0", table, first_row=0, run_id=run_id)
    if is_closed:
        close(path)
        path = path.with_suffix(".parquet")
    (run / TABLE).mkdir(exist_ok=True)
    path.rename(run / TABLE / path.name)
    watch = Watch(run)
    assert [watch.look(now_ns, stated=1) for now_ns in (0, 20)] == [[], []]
    assert watch.said == [f"skipped {TABLE}/{path.name}: {said}"]


def test_a_link_and_a_pipe_are_named_and_not_opened(run: Path, tmp_path: Path) -> None:
    flush(run, [0]).rename(tmp_path / "outside")
    (run / TABLE / "e0-000001.arrows").symlink_to(tmp_path / "outside")
    os.mkfifo(run / TABLE / "e0-000002.arrows")
    watch = Watch(run)
    assert watch.look() == []
    assert sorted(watch.said) == [
        f"skipped {TABLE}/e0-000001.arrows: a link that points outside the run folder",
        f"skipped {TABLE}/e0-000002.arrows: a pipe, a socket or a device",
    ]


@pytest.mark.parametrize("due_ns", [10, 0])
def test_a_batch_with_times_far_from_the_run_is_named_and_not_read(due_ns: int, run: Path) -> None:
    flush(run, [0])
    append(run, TABLE, "e0", [engine_row("e0", 900, 901)], first_row=2)
    flush(run, [2])
    watch = Watch(run, window=Window(0, 6, 0), due_ns=due_ns)
    assert watch.look(stated=6) == [0, 1, 3, 4, 5]
    assert watch.said == [f"skipped {TABLE}/e0-000001.arrows: its times are missing, or far from the rest of the run"]


@pytest.mark.parametrize("is_closed", [False, True])
def test_rows_that_are_not_due_yet_are_read_again_wherever_they_are_by_then(
    is_closed: bool, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_PIECE_NS", 3)
    close(flush(run, [0]))
    path = flush(run, [1, 2, 3], journal=2)
    found = LiveFiles(run, PATIENCE_NS, [TABLE]).look([E0], 0, journals.RUN_ID)
    if is_closed:
        close(path)
    assert [(piece.first_ns, piece.last_ns, piece.read()["start_ns"].to_pylist()) for piece in found.pieces] == [
        (0, 2, [0, 1]), (2, 3, [2]), (3, 6, [3, 4, 5]), (6, 7, [6])
    ]  # fmt: skip


@pytest.mark.parametrize(("due_ns", "held", "again"), [(7, [], [0, 3, 6]), (8, [0, 1, 2, 3, 4, 5, 6], [])])
def test_rows_that_are_due_at_once_are_held_and_others_are_read_again(
    due_ns: int, held: list[int], again: list[int], run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_PIECE_NS", 3)
    flush(run, range(4))
    found = LiveFiles(run, PATIENCE_NS, [TABLE]).look([E0], 0, journals.RUN_ID, due_ns=due_ns)
    assert [start_ns for _, rows in found.read for start_ns in rows["start_ns"].to_pylist()] == held
    assert [piece.first_ns for piece in found.pieces] == again


def test_a_file_of_another_writer_is_read_once_whatever_its_name(run: Path) -> None:
    watch = Watch(run)
    (run / TABLE).mkdir()
    for number, name in enumerate(("e0-000001", "mine", "e0-7_9")):
        pq.write_table(table_of(TABLE, rows_from(number, 1)), run / TABLE / f"{name}.parquet")
        assert watch.look() == [number]
    assert (watch.look(), watch.files.stored_rows) == ([], 3)


def test_journals_with_other_columns_are_read_too(run: Path) -> None:
    flush(run, [0])
    rows = table_of(TABLE, rows_from(2, 1, "e1")).drop_columns(["kv_used_tokens"])
    plain = pa.schema([field.remove_metadata() for field in rows.schema])
    head = plain.with_metadata({key: str(value) for key, value in journals.stamp_of(TABLE, "e1", 1).items()})
    content = head.serialize().to_pybytes()
    message = sealed(pa.record_batch(rows.to_batches()[0].columns, schema=plain), 0, zlib.crc32(content))
    journal_path(run, TABLE, "e1").write_bytes(content + message)
    assert Watch(run).look() == [0, 1, 2]
