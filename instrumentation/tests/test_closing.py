"""Journals become Parquet files while the run goes on; whenever the process is killed, every row is there once."""

import json
import os
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rlscope_otel import Run, closing, open_journal, start_run
from rlscope_otel.batches import batch_of
from rlscope_otel.open_journal import Journals, Owner

from tests.journals import COMPLETE, read_back

TABLE = "engine_steps"


def names(run_dir: Path) -> list[str]:
    return sorted(path.name.removeprefix("w0-00000") for path in (run_dir / TABLE).glob("*"))


def record(run: Run, first: int, count: int) -> None:
    for number in range(first, first + count):
        run.engine_step(number, number + 1)
    assert run.flush()


# --- when a journal is closed


def depths(count: int) -> pa.RecordBatch:
    columns = [["samples"] * count, ["w0"] * count, range(count), range(count), [None] * count]
    return batch_of("queue_depths", columns)


@pytest.mark.parametrize(
    ("full_bytes", "aged_bytes", "age_s", "is_due"),
    [
        (1, 10**9, 0.0, True),
        (10**9, 1, 3599.9, False),
        (10**9, 1, 3600.0, True),
        (10**9, 10**9, 3600.0, False),
    ],
)
def test_a_journal_is_closed_at_a_size_or_at_an_age_and_a_smaller_size(
    full_bytes, aged_bytes, age_s, is_due, tmp_path, monkeypatch
):
    now_s = [0.0]
    monkeypatch.setattr(open_journal.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(open_journal, "_FULL_BYTES", full_bytes)
    monkeypatch.setattr(open_journal, "_AGED_BYTES", aged_bytes)
    journals = Journals(tmp_path / "queue_depths")
    journals.append(depths(2), Owner("run-1", "w0"))
    now_s[0] = age_s
    assert [each.number for each in journals.ended()] == ([1] if is_due else [])
    journals.append(depths(3), Owner("run-1", "w0"))
    journals.end()
    found = [(each.number, each.first_row, each.rows) for each in journals.ended()]
    assert found == ([(2, 2, 3)] if is_due else [(1, 0, 5)])


@pytest.mark.parametrize("read_bytes", [10_000, 100], ids=["several batches at once", "less than a batch at once"])
def test_closing_holds_a_row_group_and_not_the_journal(read_bytes, tmp_path, monkeypatch):
    monkeypatch.setattr(closing, "_GROUP_ROWS", 100)
    monkeypatch.setattr(closing, "_READ_BYTES", read_bytes)
    with start_run(tmp_path, "sampler", "w0", flush_interval_s=3600) as run:
        for number in range(20):
            record(run, 50 * number, 50)
    assert read_back(tmp_path) == (list(range(1000)), COMPLETE)
    groups = pq.read_metadata(tmp_path / TABLE / "w0-000001.parquet")
    assert [groups.row_group(index).num_rows for index in range(groups.num_row_groups)] == [100] * 10


# --- journals that are not as they were left


def test_a_journal_that_is_not_as_it_was_written_stays_a_journal(tmp_path):
    with start_run(tmp_path, "sampler", "w0", flush_interval_s=3600) as run:
        for number in range(3):
            record(run, number, 1)
        path = tmp_path / TABLE / "w0-000001.arrows"
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    assert list(run.faults.counts) == [f"cannot close a journal of {TABLE}"]
    assert names(tmp_path) == ["1.arrows"]
    assert not list((tmp_path / TABLE).glob(".*"))


def test_after_a_journal_that_was_cut_the_next_one_begins_and_the_cut_rows_are_missing(tmp_path):
    with start_run(tmp_path, "sampler", "w0", flush_interval_s=3600) as run:
        record(run, 0, 3)
        path = tmp_path / TABLE / "w0-000001.arrows"
        whole_bytes = path.stat().st_size
        record(run, 3, 2)
        os.truncate(path, whole_bytes + 100)
        record(run, 5, 4)
    assert names(tmp_path) == ["1.arrows", "2.parquet"]
    found, completeness = read_back(tmp_path, f"{TABLE}/w0-000001.arrows")
    assert found == [0, 1, 2, 5, 6, 7, 8]
    assert [(gap.kind, gap.rows) for gap in completeness.gaps] == [("missing", 2)]


def test_a_journal_that_cannot_be_cut_after_a_failed_flush_is_closed_and_the_next_one_begins(tmp_path, monkeypatch):
    def half(descriptor: int, content: bytes, place: int) -> int:
        if content[:4] != b"\xff\xff\xff\xff":
            raise OSError(28, "No space left on device")
        return pwrite(descriptor, content[:100], place)

    def refuse(*_: object) -> None:
        raise OSError(5, "Input/output error")

    pwrite = os.pwrite
    with start_run(tmp_path, "sampler", "w0", flush_interval_s=3600) as run:
        record(run, 0, 3)
        with monkeypatch.context() as failing:
            failing.setattr(os, "pwrite", half)
            failing.setattr(os, "truncate", refuse)
            run.engine_step(3, 4)
            assert not run.flush()
        record(run, 4, 2)
    assert names(tmp_path) == ["1.parquet", "2.parquet"]
    assert read_back(tmp_path) == (list(range(6)), COMPLETE)


# --- killed

RECORD = """
import os, signal, sys, threading, time, rlscope_otel
from pathlib import Path
from rlscope_otel import closing, exits, open_journal
open_journal._FULL_BYTES = {bytes}
{patch}
run = rlscope_otel.start_run(worker_id='w0', flush_interval_s=3600)
def record(first, count):
    for number in range(first, first + count):
        run.engine_step(number, number + 1)
    {flush}
for each in range(0, 25, 5):
    record(each, 5)
{then}
"""


def program(then: str, patch: str = "", size_bytes: int = 10**6, flush: str = "run.flush()") -> str:
    return RECORD.format(then=then, patch=patch, bytes=size_bytes, flush=flush)


DIE = "os.kill(os.getpid(), signal.SIGKILL)"
MOMENTS = {
    "half of the Parquet file is written": ("os.fsync = lambda _: {die}", ["1.arrows"]),
    "it is there under its temporary name": (
        "write = closing._write_synced\nclosing._write_synced = lambda *each: (write(*each), {die})",
        ["1.arrows"],
    ),
    "the worker file states it": (
        "stated = closing.Closing.stated\n"
        "closing.Closing.stated = lambda self: self._complete and {die} or stated(self)",
        ["1.arrows"],
    ),
    "it has its name": ("closing._sync_folder = lambda folder: {die}", ["1.arrows", "1.parquet"]),
    "the journal is removed": (
        "unlink = Path.unlink\n"
        "def dying(path, **more):\n    unlink(path, **more)\n    path.suffix == '.arrows' and {die}\n"
        "Path.unlink = dying",
        ["1.parquet"],
    ),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_in_a_closing_after(moment, start_script, tmp_path):
    """benchmarks/kills.py does it 200 times, also while the recorder stops."""
    patch, files = MOMENTS[moment]
    # All rows are in one journal, which is closed after the first flush.
    then = "while True:\n    run.flush()\n    time.sleep(0.01)"
    process = start_script(program(then, patch.format(die=DIE), size_bytes=1, flush="pass"))
    assert process.wait(timeout=30) == -signal.SIGKILL
    assert [name for name in names(tmp_path) if not name.startswith(".")] == files
    assert read_back(tmp_path) == (list(range(25)), COMPLETE)


# --- signals, forks and time limits

HELD = """
step = closing.Closing.step
begun, go_on = threading.Event(), threading.Event()
def held(self):
    if self._waiting:
        begun.set()
        go_on.wait(20)
    return step(self)
closing.Closing.step = held
"""


def test_what_is_not_closed_when_the_time_of_sigterm_is_over_stays_a_journal(start_script, tmp_path):
    patch = HELD + "exits._SIGTERM_TIMEOUT_S = 0.5\n"
    then = "print('ready', flush=True)\nsignal.pause()"
    process = start_script(program(then, patch))
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    assert process.wait(timeout=30) == -signal.SIGTERM
    assert names(tmp_path) == ["1.arrows"]
    assert read_back(tmp_path) == (list(range(25)), COMPLETE)
    assert json.loads((tmp_path / "workers" / "w0.json").read_text())["stopped_ns"] is not None


def test_a_child_forked_in_a_closing_leaves_the_parent_s_file_alone(start_script, tmp_path):
    then = """
run.flush()
begun.wait(20)
child = os.fork()
if child == 0:
    import gc
    gc.collect()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
go_on.set()
"""
    patch = HELD + "closing._GROUP_ROWS = 5\n"
    process = start_script(program(then, patch, size_bytes=1, flush="pass"))
    assert (process.communicate(timeout=30)[1], process.returncode) == ("", 0)
    assert read_back(tmp_path) == (list(range(25)), COMPLETE)
    assert all(name.endswith(".parquet") for name in names(tmp_path))
