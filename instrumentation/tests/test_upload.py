"""A run is copied to a store while it is recorded: whole at every moment, and of no concern to the host."""

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyarrow import fs
from rlscope_otel import Run, SetupError, open_journal, start_run, upload, uploader
from rlscope_otel.object_store import ObjectStore
from rlscope_otel.worker_copy import WorkerCopy

from rlscope.trace.worker_files import read_workers
from tests.journals import COMPLETE, read_back
from tests.waiting import until

TABLE = "engine_steps"
SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"


# --- one round after the other


class Folder(ObjectStore):
    """A store that is a folder, and that is looked at after each change."""

    def __init__(self, path: Path, look: Callable[[], None] = lambda: None) -> None:
        super().__init__(f"file://{path}")
        self.look = look
        self.puts: list[str] = []

    def put(self, name: str, data: bytes) -> None:
        super().put(name, data)
        self.puts.append(name)
        self.look()

    def remove(self, name: str) -> None:
        super().remove(name)
        self.look()


def record(run: Run, count: int = 1) -> None:
    for _ in range(count):
        run.engine_step(int(time.monotonic_ns()), int(time.monotonic_ns()) + 1)
        run.flush()


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.setattr(open_journal, "_FULL_BYTES", 5000)
    with start_run(tmp_path / "run", "sampler", "w0", flush_interval_s=3600) as run:
        yield run


def test_a_reader_finds_every_row_once_at_every_moment_though_rounds_fail_half_way_and_copies_start_again(
    tmp_path, recorded
):
    looks, refuses = [0], False

    def look() -> None:
        if (tmp_path / "store" / "workers" / "w0.json").exists():
            found, completeness = read_back(tmp_path / "store")
            assert completeness.state == "complete"
            assert len(found) == len(set(found)) >= looks[-1]
            looks.append(len(found))
        if refuses:
            raise OSError("refused")

    store = Folder(tmp_path / "store", look)
    copy = WorkerCopy(tmp_path / "run", "w0", store)
    for number in range(12):
        record(recorded, 2)
        refuses = number % 3 == 1
        with pytest.raises(OSError, match="refused") if refuses else contextlib.nullcontext():
            copy.round()
        if number % 4 == 3:
            copy = WorkerCopy(tmp_path / "run", "w0", store)
    recorded.stop()
    refuses = True
    for _ in range(3):
        with contextlib.suppress(OSError):
            copy.round()
    refuses = False
    assert WorkerCopy(tmp_path / "run", "w0", store).round()
    assert sum(name.endswith(".parquet") for name in store.puts) >= 4
    own = read_back(tmp_path / "run")
    assert read_back(tmp_path / "store") == own
    assert own[1] == COMPLETE
    assert sorted(store.names(TABLE)) == sorted(os.listdir(tmp_path / "run" / TABLE))


def test_an_open_journal_is_copied_whenever_it_has_grown_and_goes_once_its_closed_file_is_there(tmp_path, recorded):
    store = Folder(tmp_path / "store")
    copy = WorkerCopy(tmp_path / "run", "w0", store)
    record(recorded)
    for grows in (False, True, False):
        if grows:
            record(recorded)
        copy.round()
        copy.round()
    journal, worker = f"{TABLE}/w0-000001.arrows", "workers/w0.json"
    assert store.puts == ["run.json", journal, worker, journal, worker]
    store.puts.clear()
    recorded.stop()
    assert copy.round()
    assert store.puts == [f"{TABLE}/w0-000001.parquet", worker]
    assert store.names(TABLE) == ["w0-000001.parquet"]
    document = json.loads((tmp_path / "store" / worker).read_text())
    assert document["closed"] == json.loads((tmp_path / "run" / worker).read_text())["closed"]


# --- when


@pytest.mark.parametrize(("failures", "wait_s"), [(1, 1), (2, 2), (5, 16), (9, 256), (10, 300), (5000, 300)])
def test_a_failed_round_is_tried_again_later_and_later_up_to_five_minutes(failures, wait_s):
    assert upload.retry_s(failures) == wait_s


def test_rounds_come_at_the_interval_and_later_after_failures(monkeypatch):
    waits, said, outcomes = list[float](), list[str](), iter([False, OSError("a"), OSError("b"), False, False])

    def round_of() -> bool:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def is_over(seconds: float) -> bool:
        waits.append(seconds)
        return len(waits) == 4

    assert upload.copy_until_the_end(round_of, 1.5, is_over, said.append)
    assert waits == [1.5, 1.5, 2.0, 1.5]
    assert said == ["OSError: a", "OSError: b"]


def test_after_the_end_a_store_that_fails_is_tried_for_a_minute_and_its_errors_name_no_secret(monkeypatch):
    now_s = [0.0]
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setattr(upload.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(upload.time, "sleep", lambda seconds: now_s.__setitem__(0, now_s[0] + seconds))

    def round_of() -> bool:
        raise OSError(f"signature of {SECRET}\nrefused")

    said: list[str] = []
    assert not upload.copy_until_the_end(round_of, 30.0, lambda _: True, said.append)
    assert (now_s[0], said) == (1 + 2 + 4 + 8 + 16, ["OSError: signature of *** refused"] * 7)


# --- with a process of its own


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    yield
    for process in uploader._left:
        process.kill()
        process.wait()
    uploader._left.clear()


def test_a_store_that_refuses_is_counted_and_gets_everything_once_it_accepts(tmp_path, monkeypatch):
    monkeypatch.setattr(uploader, "_INTERVAL_S", 0.1)
    store = tmp_path / "store"
    store.write_text("a file where the folder should be")
    run = start_run(tmp_path / "run", "sampler", "w0", upload_to=f"file://{store}", flush_interval_s=0.05)
    run.engine_step(1, 2)
    until(lambda: run.faults.counts.get("cannot copy to the store", 0) > 1)
    store.unlink()
    assert run.stop()
    assert read_back(store) == ([1], COMPLETE)


def test_a_store_that_never_answers_holds_up_nothing_and_the_local_files_are_whole(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{deaf.getsockname()[1]}")
        run = start_run(tmp_path / "run", "sampler", "w0", upload_to="s3://runs/monday", flush_interval_s=0.05)
        run.engine_step(1, 2)
        assert run.flush()
        assert run.stop(1.0)
        assert run.faults.counts == {"cannot copy to the store": 1}
        assert read_back(tmp_path / "run") == ([1], COMPLETE)


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[fs.S3FileSystem]:
    """A client of an S3 server in this process, with the empty bucket `runs`."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    client = fs.S3FileSystem(endpoint_override=f"http://{host}:{port}", region="us-east-1", allow_bucket_creation=True)
    client.create_dir("runs")
    yield client
    server.stop()


def test_a_run_is_in_a_bucket_as_it_is_on_disk(bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(uploader, "_INTERVAL_S", 0.2)
    folder = tmp_path / "run"
    with start_run(folder, "sampler", "w0", upload_to="s3://runs/monday", flush_interval_s=0.05) as run:
        for start_ns in range(30):
            run.engine_step(start_ns, start_ns + 1)
            time.sleep(0.02)
    assert run.faults.counts == {}
    fs.copy_files("runs/monday", str(tmp_path / "copy"), source_filesystem=bucket)
    assert read_back(tmp_path / "copy") == read_back(folder) == ([*range(30)], COMPLETE)


SCRIPT = """
import os, sys, time, rlscope_otel
from rlscope_otel import uploader
uploader._INTERVAL_S = 3600
run = rlscope_otel.start_run(upload_to="file://{store}", flush_interval_s=0.05)
run.engine_step(1, 2)
run.flush()
time.sleep(0.2)
child = os.fork() or time.sleep(60)
run.engine_step(3, 4)
run.flush()
print(child, flush=True)
time.sleep(600)
"""


def test_what_was_flushed_before_a_kill_is_copied_after_it_though_a_fork_lives_on(tmp_path, start_script):
    store = tmp_path / "store"
    process = start_script(SCRIPT.format(store=store))
    forked = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.wait()

    def is_copied() -> bool:
        # The worker file comes last in a round.
        return bool(list(store.glob("workers/*.json"))) and read_back(store)[0] == [1, 3]

    try:
        until(is_copied)
    finally:
        os.kill(forked, signal.SIGKILL)


# --- settings


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("bucket/run", "no address"),
        ("ftp://host/run", "an address of the scheme ftp"),
        ("s3://", "an address without a folder"),
        (f"s3://key:{SECRET}@bucket/run", "an address that holds credentials"),
        (f"abfs://account:{SECRET}@container/run", "an address that holds credentials"),
        (f"abfs://c@account.dfs.core.windows.net/run?sig={SECRET}", "an address that holds credentials"),
        (f"s3://bucket/run?endpoint_override=http://key:{SECRET}@host", "an address that holds credentials"),
    ],
)
def test_an_address_that_cannot_be_one_is_refused_at_the_start(address, found, tmp_path):
    with pytest.raises(SetupError, match=found) as refused:
        start_run(tmp_path / "run", "sampler", "w0", upload_to=address)
    assert SECRET not in str(refused.value)


def test_with_an_address_of_the_environment_workers_of_two_nodes_have_names_of_their_own_and_settings_in_common(
    tmp_path, monkeypatch
):
    shared = tmp_path / "shared" / "monday"
    monkeypatch.setenv("RLSCOPE_UPLOAD", f"file://{shared}")
    for node, config in (("a", {"max_staleness": 4}), ("b", {"max_staleness": 8, "samples_per_step": 2})):
        with start_run(tmp_path / node, "sampler", "w0", config=config) as run:
            record(run)
    workers, _ = read_workers(shared)
    assert len({worker.worker_id for worker in workers}) == 2
    assert all(worker.worker_id.startswith("w0.") for worker in workers)
    found, completeness = read_back(shared)
    assert (len(found), completeness) == (2, COMPLETE)
    document = json.loads((shared / "run.json").read_text())
    assert document["config"] == {"max_staleness": 4, "samples_per_step": 2}
    assert document["run_id"] == json.loads((tmp_path / "a" / "run.json").read_text())["run_id"]
