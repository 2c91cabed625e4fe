"""A run folder with journals: every whole batch is read once, and what is not read is named."""

import os
import re
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlscope.trace import files, store
from rlscope.trace.completeness import Completeness
from rlscope.trace.journals import Batches, read_batches
from rlscope.trace.query import ask
from rlscope.trace.store import open_run
from tests import journals
from tests.in_shares import in_one_process
from tests.trace_folder import Row, damaged, engine_row, sample_row, train_row, worker, write_run

SECOND = 10**9
CLOSED = "train_steps/t0-000001.parquet"
JOURNAL = "train_steps/t0-000002.arrows"


def train_rows(first: int, last: int) -> list[Row]:
    """Steps of one second each."""
    return [train_row("t0", step * SECOND, (step + 1) * SECOND, step) for step in range(first, last + 1)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Steps 0 to 4 in a closed file, 5 to 9 in a journal of two flushes, by a worker that still records."""
    folder = write_run(tmp_path / "run", [worker("t0", "trainer", 0, None, gpu_count=2, last_flush_ns=10 * SECOND)])
    crc32 = journals.close(journals.append(folder, "train_steps", "t0", train_rows(0, 4)))
    journals.append(folder, "train_steps", "t0", train_rows(5, 7), first_row=5, number=2)
    journals.append(folder, "train_steps", "t0", train_rows(8, 9), first_row=8, number=2)
    journals.state(folder, "t0", {"train_steps": 10}, {"train_steps": {"1": crc32}})
    return folder


def seen(folder: Path) -> tuple[list[int], Completeness, dict[str, str]]:
    """The steps that are read, what is said of their completeness, and the files that were skipped."""
    with open_run(folder) as run:
        steps = [int(row[0]) for row in run.connection.execute("SELECT step FROM train_steps ORDER BY ALL").fetchall()]
        assert run.row_counts["train_steps"] == len(steps)
        return steps, run.completeness, {file.path: file.why for file in run.skipped_files}


def began(left: bytes) -> Callable[[Path], object]:
    return lambda run: (run / "train_steps" / "t0-000003.arrows").write_bytes(left)


@pytest.mark.parametrize(
    "change",
    [
        lambda run: None,
        lambda run: (run / JOURNAL).write_bytes((run / JOURNAL).read_bytes() + b"\xff\xff\xff\xff\x00"),
        lambda run: journals.close(run / JOURNAL),
        began(b""),
        began(b"\xff\xff"),
        began(b"\xff\xff\xff\xff\x70\x03\0\0"),
        began(bytes(100)),
    ],
    ids=[
        "as recorded",
        "half a batch while it grows",
        "closed after its worker file was read",
        *(f"the worker was killed as it began the next journal {number}" for number in range(4)),
    ],
)
def test_a_journal_is_read_beside_closed_files_and_what_is_normal_is_not_worth_a_word(
    change: Callable[[Path], object], run: Path
) -> None:
    change(run)
    assert seen(run) == (list(range(10)), Completeness("complete"), {})


@pytest.mark.parametrize(("first", "last"), [(8, 9), (10, 10)], ids=["appended twice", "not yet stated"])
def test_every_row_of_a_recording_worker_is_read_once(first: int, last: int, run: Path) -> None:
    journals.append(run, "train_steps", "t0", train_rows(first, last), first_row=first, number=2)
    assert seen(run) == (list(range(last + 1)), Completeness("complete"), {})


def test_a_run_of_journals_alone_is_answered_as_the_same_run_of_closed_files(tmp_path: Path) -> None:
    workers = [worker("t0", stop_ns=9 * SECOND), worker("e0", "sampler", stop_ns=9 * SECOND)]
    tables: dict[str, list[Row]] = {
        "train_steps": train_rows(0, 7),
        "engine_steps": [engine_row("e0", at * SECOND, (at + 1) * SECOND) for at in range(8)],
        "samples": [sample_row(f"s{n}", "e0", [(0, 0, 5), (1, 5, 9)], finished_ns=n * SECOND) for n in range(8)],
    }
    folder = write_run(tmp_path / "closed", workers, **tables)
    other = write_run(tmp_path / "open", workers)
    for table, rows in tables.items():
        for first in (0, 4):
            journals.append(other, table, rows[0]["worker_id"], rows[first : first + 4], first_row=first)
    with open_run(folder) as closed, open_run(other) as opened:
        for table in tables:
            assert opened.connection.table(table).pl().equals(closed.connection.table(table).pl())
        for question in ("training_steps", "token_staleness"):
            assert ask(opened, question).equals(ask(closed, question))


def test_shares_of_a_run_read_the_journals_of_their_workers(run: Path) -> None:
    with open_run(run) as whole, open_run(run, divide=in_one_process(2, 2)) as divided:
        assert ask(divided, "training_steps").equals(ask(whole, "training_steps"))


def test_more_rows_than_a_stopped_worker_states_are_named(run: Path) -> None:
    stopped = worker("t0", "trainer", 0, 10 * SECOND, rows={"train_steps": 9}, closed={"train_steps": {}})
    write_run(run, [stopped])
    steps, found, _ = seen(run)
    assert (steps, found.state) == (list(range(10)), "incomplete")
    assert [(gap.kind, gap.rows) for gap in found.gaps] == [("beyond", 1)]


@pytest.mark.parametrize(
    ("batches", "steps", "detail"),
    [(1, range(8), "2 of the 10 rows that t0 wrote are missing (rows 8 to 9)"),
     (0, range(5), "5 of the 10 rows that t0 wrote are missing (rows 5 to 9)")],
)  # fmt: skip
def test_a_cut_journal_gives_its_whole_batches_and_names_the_missing_rows(
    batches: int, steps: Sequence[int], detail: str, run: Path
) -> None:
    path = run / JOURNAL
    path.write_bytes(path.read_bytes()[: read(path).sealed[batches].start + 10])
    found_steps, found, skipped = seen(run)
    assert (found_steps, [gap.detail for gap in found.gaps]) == (list(steps), [detail])
    start = f"row {len(steps)} on" if batches else "its start on"
    assert skipped == {JOURNAL: f"incomplete or damaged from {start}; its last 10 bytes are left out"}


def read(path: Path) -> Batches:
    found = read_batches(path, "train_steps")
    assert not isinstance(found, str)
    return found


def test_a_batch_that_was_removed_from_the_middle_is_missed(run: Path) -> None:
    journals.append(run, "train_steps", "t0", train_rows(10, 11), first_row=10, number=2)
    journals.state(run, "t0", {"train_steps": 12}, {"train_steps": {"1": crc32_of(run / CLOSED)}})
    path = run / JOURNAL
    content, (_, second, _) = path.read_bytes(), read(path).sealed
    path.write_bytes(content[: second.start] + content[second.end :])
    steps, found, _ = seen(run)
    assert steps == [*range(8), 10, 11]
    assert [(gap.rows, gap.detail) for gap in found.gaps] == [
        (2, "2 of the 12 rows that t0 wrote are missing (rows 8 to 9)")
    ]


def test_a_journal_that_repeats_rows_of_another_file_is_left_out_and_named(run: Path) -> None:
    journals.append(run, "train_steps", "t0", train_rows(5, 11), first_row=5, number=3)
    steps, found, skipped = seen(run)
    assert (steps, found.state) == (list(range(10)), "complete")
    assert list(skipped) == ["train_steps/t0-000003.arrows"]
    assert skipped["train_steps/t0-000003.arrows"].startswith("repeats rows from 5 on, which are in another file")


def crc32_of(path: Path) -> int:
    return zlib.crc32(path.read_bytes())


@pytest.mark.parametrize("harm", [None, damaged, lambda path: path.write_bytes(b"PAR1")])
def test_a_parquet_file_wins_over_its_journal_unless_it_is_damaged_and_named(
    harm: Callable[[Path], object] | None, run: Path
) -> None:
    crc32 = journals.close(run / JOURNAL, keep=True)
    journals.state(run, "t0", {"train_steps": 10}, {"train_steps": {"1": crc32_of(run / CLOSED), "2": crc32}})
    if harm is None:
        (run / JOURNAL).write_bytes(b"never opened")
    else:
        harm((run / JOURNAL).with_suffix(".parquet"))
    steps, found, skipped = seen(run)
    assert (steps, found) == (list(range(10)), Completeness("complete"))
    assert list(skipped) == ([] if harm is None else ["train_steps/t0-000002.parquet"])


def test_a_damaged_closed_file_is_left_out_and_its_rows_are_named(run: Path) -> None:
    damaged(run / CLOSED)
    steps, found, skipped = seen(run)
    assert (steps, [gap.detail for gap in found.gaps]) == (
        list(range(5, 10)), ["5 of the 10 rows that t0 wrote are missing (rows 0 to 4)"]
    )  # fmt: skip
    assert skipped[CLOSED].startswith("damaged after it was written: ")


def test_other_values_in_a_closed_file_that_reads_well_are_named(run: Path) -> None:
    held = pq.read_table(run / CLOSED)
    pq.write_table(
        held.set_column(1, "step", pa.array([each + 100 for each in held["step"].to_pylist()])), run / CLOSED
    )
    steps, found, _ = seen(run)
    assert steps == [*range(5, 10), *range(100, 105)]
    assert [(gap.kind, gap.rows) for gap in found.gaps] == [("changed", 5)]


@pytest.mark.parametrize("when", ["while it is listed", "before its rows are read again"])
def test_a_journal_that_is_replaced_meanwhile_is_read_from_its_parquet_file(
    when: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def close_first(folder: Path) -> Any:
        found = list_files(folder)
        if (run / JOURNAL).exists() and folder.name == "train_steps":
            journals.close(run / JOURNAL)
        return found

    def close_after(*arguments: Any) -> Any:
        found = usual_window(*arguments)
        journals.append(run, "train_steps", "t0", train_rows(10, 11), first_row=10, number=2)
        journals.close(run / JOURNAL)
        return found

    list_files, usual_window = files._data_files, store.usual_window
    if when == "while it is listed":
        monkeypatch.setattr(files, "_data_files", close_first)
    else:
        monkeypatch.setattr(store, "usual_window", close_after)
        monkeypatch.setattr("rlscope.trace.journals._MOST_HELD_BYTES", 0)
    steps, found, skipped = seen(run)
    assert not (run / JOURNAL).exists()
    assert (steps, found.state, skipped) == (list(range(10)), "complete", {})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:40]), "incomplete or damaged from its start on; its last 40"),
        (lambda path: path.write_bytes(b"PAR1" * 20), "80 bytes long, and not a journal"),
        (lambda path: path.write_bytes(pa.schema([("step", pa.int64())]).serialize()), "its head does not say where"),
        (lambda path: (path.unlink(), os.mkfifo(path)), "a pipe, a socket or a device"),
    ],
    ids=["cut head", "no journal", "no stamp", "pipe"],
)
def test_what_is_no_journal_is_named_and_its_rows_are_missed(
    change: Callable[[Path], object], why: str, run: Path
) -> None:
    change(run / JOURNAL)
    steps, found, skipped = seen(run)
    assert (steps, [gap.rows for gap in found.gaps]) == (list(range(5)), [5])
    assert skipped[JOURNAL].startswith(why)


@pytest.mark.parametrize("keep_bytes", [256 * 10**6, 0])
def test_rows_at_the_end_of_a_journal_that_the_next_one_begins_with_are_read_once(
    keep_bytes: int, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlscope.trace.journals._MOST_HELD_BYTES", keep_bytes)
    journals.append(run, "train_steps", "t0", train_rows(8, 10), first_row=8, number=3)
    journals.state(run, "t0", {"train_steps": 11})
    steps, found, skipped = seen(run)
    assert (steps, found.state, skipped) == (list(range(11)), "complete", {})


@pytest.mark.parametrize(
    ("is_closed", "name", "says"), [(False, "t0-000003.arrows", "head"), (True, "t0-000003.parquet", "footer")]
)
def test_a_file_of_another_run_is_left_out_and_a_renamed_journal_is_read(
    is_closed: bool, name: str, says: str, run: Path
) -> None:
    rows = journals.table_of("train_steps", train_rows(10, 10))
    path = journals.append_table(run, rows, "t0", "train_steps", first_row=10, number=3, run_id="other")
    if is_closed:
        journals.close(path)
    (run / JOURNAL).rename(run / "train_steps" / "t0-000009.arrows")
    steps, found, skipped = seen(run)
    assert (steps, found) == (list(range(10)), Completeness("complete"))
    assert skipped[f"train_steps/{name}"].startswith(f"belongs to train_steps of run 'other' according to its {says}")


def test_impossible_values_in_a_journal_are_left_out_and_named(run: Path) -> None:
    odd = [train_row("t0", 10 * SECOND, 11 * SECOND, 10, tokens=-1), train_row("t0", 10**17, 10**17 + 1, 11)]
    journals.append(run, "train_steps", "t0", odd, first_row=10, number=2)
    journals.append(run, "train_steps", "t0", train_rows(12, 12), first_row=12, number=2)
    with open_run(run) as opened:
        assert ask(opened, "training_steps")["step"].to_list() == [*range(10), 12]
        assert list(opened.gaps) == [
            "train_steps: 1 rows have an impossible tokens; they are left out",
            "train_steps: 1 rows have a time far from the rest of the run; they are left out",
        ]


def test_offsets_that_point_outside_a_sealed_batch_are_refused(run: Path) -> None:
    path = journals.append(run, "train_steps", "t0", train_rows(10, 10), first_row=10, number=3)
    content, start = path.read_bytes(), read(path).sealed[0].start
    # The offsets of the worker's name, and the seal of a writer that wrote them.
    body = content[start:].replace(struct.pack("<ii", 0, 2), struct.pack("<ii", 0, 2**31 - 1), 1)
    found = re.search(rb"[0-9a-f]{40}", body)
    assert found is not None
    crc32 = zlib.crc32(content[:start])
    for piece in (body[: found.end() - 8], body[found.end() :]):
        crc32 = zlib.crc32(piece, crc32)
    path.write_bytes(content[:start] + body[: found.end() - 8] + b"%08x" % crc32 + body[found.end() :])
    assert read(path).rows == 1
    steps, _, skipped = seen(run)
    assert steps == list(range(10))
    assert skipped["train_steps/t0-000003.arrows"].startswith("cannot be read: ")


def test_a_journal_that_is_shorter_than_before_and_one_that_is_gone_are_told_apart(run: Path) -> None:
    place = read(run / JOURNAL).place
    (run / JOURNAL).write_bytes(b"")
    assert read_batches(run / JOURNAL, "train_steps", place) == "0 bytes long, shorter than before"
    (run / JOURNAL).unlink()
    with pytest.raises(FileNotFoundError):
        read_batches(run / JOURNAL, "train_steps", place)


def test_without_its_worker_file_an_incomplete_journal_is_named(run: Path) -> None:
    (run / "workers" / "t0.json").unlink()
    with (run / JOURNAL).open("ab") as file:
        file.write(b"\xff\xff\xff\xff")
    steps, found, skipped = seen(run)
    assert (steps, found.uncounted_workers) == (list(range(10)), ("t0",))
    assert skipped == {JOURNAL: "incomplete or damaged from row 10 on; its last 4 bytes are left out"}
