import errno
import json
import os
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rlscope_otel import buffers, journal, open_journal, schema, start_run
from rlscope_otel.faults import Faults
from rlscope_otel.flush_thread import FlushThread

from tests.journals import COMPLETE, read_back
from tests.waiting import until


def refuse(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_long_buffer_is_written_before_the_interval_ends(tmp_path, worker, monkeypatch):
    monkeypatch.setattr(buffers, "ROWS_PER_BATCH", 100)
    with start_run(tmp_path, "sampler", "w0", flush_interval_s=3600) as run:
        for number in range(101):
            run.engine_step(number, number + 1)
        until(lambda: worker("w0")["rows"]["engine_steps"] >= 100)


def test_a_batch_has_at_most_the_rows_it_may(tmp_path, monkeypatch):
    monkeypatch.setattr(buffers, "ROWS_PER_BATCH", 100)
    with start_run(tmp_path, "sampler", "w0", flush_interval_s=3600) as run:
        for number in range(250):
            run.engine_step(number, number + 1)
        run.flush()
        content = (tmp_path / "engine_steps" / "w0-000001.arrows").read_bytes()
        start = journal.head_length(content)
        batches = journal.whole_batches(content, start, zlib.crc32(content[:start]))
        assert max(batch.rows for batch in batches) <= 100
    assert read_back(tmp_path) == (list(range(250)), COMPLETE)


def test_many_threads_lose_and_double_nothing_while_journals_are_closed(tmp_path, rows, monkeypatch):
    threads_count, each = 16, 500
    monkeypatch.setattr(buffers, "ROWS_PER_BATCH", 100)
    monkeypatch.setattr(open_journal, "_FULL_BYTES", 20_000)
    with start_run(tmp_path, "sampler", "w0", flush_interval_s=0.01) as run:

        def steps(first: int) -> None:
            for number in range(first, first + each):
                with run.wait("samples"):
                    run.engine_step(number, number + 1)

        with ThreadPoolExecutor(threads_count) as pool:
            list(pool.map(steps, range(0, threads_count * each, each)))
    assert len(list((tmp_path / "engine_steps").glob("*.parquet"))) > 1
    found, completeness = read_back(tmp_path)
    assert (sorted(found), completeness, run.faults.counts) == (list(range(threads_count * each)), COMPLETE, {})
    assert len(rows("activities")) == threads_count * each


def test_a_fork_forgets_the_rows_of_its_parent_and_never_waits_for_a_thread_that_it_does_not_have(run):
    run.delivery("s", "trained")
    run.delivery("s", "eaten")
    buffers = run._buffers
    held, go_on = threading.Event(), threading.Event()

    def count() -> None:
        with buffers["deliveries"]._drop_lock:
            held.set()
            go_on.wait(10)

    counting = threading.Thread(target=count)
    counting.start()
    assert held.wait(10)
    run.abandon()
    in_child = threading.Thread(target=run.delivery, args=("s", "eaten"), daemon=True)
    in_child.start()
    in_child.join(5)
    assert not in_child.is_alive()
    go_on.set()
    counting.join()
    assert [(len(buffer), buffer.dropped) for buffer in buffers.values()] == [
        (0, table == "deliveries") for table in buffers
    ]


def test_long_buffers_do_not_make_it_write_again_and_again_while_the_disk_refuses():
    attempts: list[bool] = []

    def refuse(last: bool) -> bool:
        attempts.append(last)
        return False

    thread = FlushThread(refuse, interval_s=3600, faults=Faults())
    thread.start()
    thread.flush(timeout_s=10)
    for _ in range(100):
        thread.press()
    thread.flush(timeout_s=10)
    thread.stop(timeout_s=10)
    assert attempts == [False, False, True]


def test_background_work_that_fails_is_counted_and_the_writing_goes_on():
    faults = Faults()
    thread = FlushThread(lambda last: True, interval_s=3600, faults=faults, aside=refuse, finish=refuse)
    thread.start()
    until(lambda: faults.counts == {"closing": 1})
    assert thread.flush(timeout_s=10)
    seen = faults.counts["closing"]
    assert thread.stop(timeout_s=10)
    assert faults.counts == {"closing": seen + 1}


def test_while_the_disk_is_full_memory_is_bounded_and_drops_are_counted(tmp_path, rows, worker, monkeypatch, caplog):
    monkeypatch.setattr(buffers, "ROWS_PER_BATCH", 5)
    monkeypatch.setattr(buffers, "MOST_ROWS", 10)
    with start_run(tmp_path, "sampler", "w0", flush_interval_s=0.01) as run:
        (tmp_path / "engine_steps").write_text("a file where the folder should be")
        for number in range(100):
            run.engine_step(number, number + 1)
        assert not run.flush()
        (tmp_path / "engine_steps").unlink()
        assert run.flush()
        run.engine_step(100, 101)
    assert [row["start_ns"] for row in rows("engine_steps")] == [*range(10), 100]
    assert worker("w0")["dropped"]["engine_steps"] == 90
    assert len(caplog.records) == 1


@pytest.mark.parametrize("becomes_writable", [True, False])
def test_a_folder_that_cannot_be_created_is_one_warning_and_is_tried_again(becomes_writable, tmp_path, rows, caplog):
    folder = tmp_path / "run"
    folder.write_text("a file where the folder should be")
    run = start_run(folder, "sampler", "w0", flush_interval_s=3600, config={"total_gpus": 1})
    run.engine_step(0, 1)
    assert not run.flush()
    if becomes_writable:
        folder.unlink()
    assert run.stop() is becomes_writable
    said = [record.getMessage().partition("rlscope: ")[2] for record in caplog.records]
    assert said[0].startswith(f"cannot write {folder}")
    if becomes_writable:
        assert (len(said), len(rows("engine_steps", run_dir=folder))) == (1, 1)
        assert (folder / "run.json").exists()
    else:
        assert said[1].startswith("stop: 1 rows could not be written")


def test_journals_and_closed_files_say_where_they_belong_and_have_the_types_and_nulls_of_the_schema(tmp_path, run):
    run.sample("s").finish()
    run.engine_step(0, 1)
    run.flush()
    tables = ("samples", "engine_steps")
    heads = {table: pa.ipc.open_stream((tmp_path / table / "w0-000001.arrows").read_bytes()).schema for table in tables}
    run.stop()
    for table in tables:
        stamp = {
            b"rlscope.format": b"rlscope-trace",
            b"rlscope.version": b"1",
            b"rlscope.run": run.run_id.encode(),
            b"rlscope.table": table.encode(),
            b"rlscope.worker": b"w0",
            b"rlscope.sequence": b"1",
        }
        path = tmp_path / table / "w0-000001.parquet"
        assert heads[table].metadata == stamp
        assert pq.read_metadata(path).metadata == stamp | {b"rlscope.first_row": b"0"}
        expected = schema.arrow_schema(table).remove_metadata()
        assert pq.read_schema(path).remove_metadata() == heads[table].remove_metadata() == expected


def test_the_worker_file_follows_the_rows_that_it_counts(run, worker, monkeypatch):
    counted: list[int] = []
    pwrite = os.pwrite

    def look(*arguments) -> int:
        counted.append(worker("w0")["rows"]["engine_steps"])
        written = pwrite(*arguments)
        counted.append(worker("w0")["rows"]["engine_steps"])
        return written

    monkeypatch.setattr(os, "pwrite", look)
    run.engine_step(0, 1)
    run.flush()
    assert [*counted, worker("w0")["rows"]["engine_steps"]] == [0, 0, 1]


def test_an_error_that_cannot_be_shown_is_counted_by_its_type(caplog):
    class Silent(Exception):
        def __repr__(self) -> str:
            raise RuntimeError("no words")

    def fail() -> None:
        raise Silent

    faults = Faults()
    assert faults.attempt("hook", fail) is None
    assert faults.attempt("hook", lambda: 3) == 3
    assert faults.counts == {"hook": 1}
    assert "rlscope: hook: Silent (" in caplog.text


def test_a_folder_that_is_renamed_keeps_what_it_has_and_the_rest_is_recorded_under_the_name(tmp_path):
    folder = tmp_path / "run"
    with start_run(folder, worker_id="w0", role="sampler", config={"group_size": 4}) as run:
        run.engine_step(0, 1)
        assert run.flush()
        before = json.loads((folder / "run.json").read_text())
        folder.rename(tmp_path / "moved")
        run.engine_step(1, 2)
        assert run.flush()
    after = json.loads((folder / "run.json").read_text())
    assert (after["run_id"], after["config"]) == (before["run_id"], before["config"])
    (closed,) = (folder / "engine_steps").iterdir()
    metadata = pq.read_metadata(closed)
    assert (closed.name, metadata.num_rows, metadata.metadata[b"rlscope.first_row"]) == ("w0-000002.parquet", 1, b"1")
    assert read_back(tmp_path / "moved")[0] == [0]
    found, completeness = read_back(folder)
    assert (found, [(gap.kind, gap.rows) for gap in completeness.gaps]) == ([1], [("missing", 1)])


def test_nothing_stays_open_between_two_flushes(run):
    run.flush()
    before = os.listdir("/proc/self/fd")
    run.engine_step(0, 1)
    run.flush()
    assert os.listdir("/proc/self/fd") == before
