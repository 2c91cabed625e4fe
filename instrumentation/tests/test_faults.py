"""Real processes whose disk or children fail them, or that end badly: nothing raises, and every row is counted."""

import json
import signal
import subprocess
import textwrap
from pathlib import Path

import pytest

from tests.journals import COMPLETE, read_back
from tests.nightly import nightly

START = """
import errno, os, signal, socket, sys, threading, time, rlscope_otel
from pathlib import Path
from rlscope_otel import closing, exits, json_files, open_journal, recorder, writer
from rlscope_otel.open_journal import OpenJournal
closing._REST_S, open_journal._FULL_BYTES = 0.1, 20_000
run_dir = Path(os.environ["RLSCOPE_RUN_DIR"])
{before}
run = rlscope_otel.start_run(worker_id='w0', flush_interval_s={interval})
recorded = 0
def record(count):
    global recorded
    for _ in range(count):
        run.engine_step(recorded, recorded + 1)
        recorded += 1
def record_until(condition, timeout_s=20):
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s
        record(5)
        time.sleep(0.005)
def closed_files():
    return list((run_dir / "engine_steps").glob("w0-*.parquet"))
"""
END = """
run.stop()
print(recorded, run.faults.counts, flush=True)
"""


def program(then: str, before: str = "", interval: float = 0.02) -> str:
    return START.format(before=textwrap.dedent(before), interval=interval) + textwrap.dedent(then) + END


def said(process: "subprocess.Popen[str]", returncode: int = 0) -> tuple[int, str, str]:
    """The rows that the program recorded, the faults that it counted, and what it logged."""
    output, errors = process.communicate(timeout=60)
    assert process.returncode == returncode, errors
    assert "Traceback" not in errors
    recorded, _, faults = output.strip().rpartition("\n")[2].partition(" ")
    return int(recorded), faults, errors


def dropped(run_dir: Path, worker_id: str = "w0") -> int:
    return json.loads((run_dir / "workers" / f"{worker_id}.json").read_text())["dropped"]["engine_steps"]


# --- the disk

FILLS = """
record_until(closed_files)
full.set()
record_until(lambda: run.faults.counts)
record(100)
full.clear()
assert run.flush()
count = len(closed_files())
record_until(lambda: len(closed_files()) > count)
"""
FULL = """
full = threading.Event()
def refusing(function):
    def refuse(*arguments, **more):
        if full.is_set():
            raise OSError(errno.ENOSPC, "No space left on device")
        return function(*arguments, **more)
    return refuse
def half_refusing(pwrite):
    def refuse(descriptor, content, place):
        if not full.is_set():
            return pwrite(descriptor, content, place)
        if place % 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(descriptor, content[: len(content) // 2 | 1], place)
    return refuse
"""


@pytest.mark.parametrize(
    "place",
    [
        "os.pwrite = half_refusing(os.pwrite)",
        "os.fsync = refusing(os.fsync)",
        "os.replace = refusing(os.replace)",
        nightly("os.pwrite = refusing(os.pwrite)"),
        nightly("os.write = refusing(os.write)"),
        nightly("json_files._write_part = refusing(json_files._write_part)"),
    ],
)
def test_a_disk_that_fills_and_empties_again_costs_no_row(place: str, start_script, tmp_path: Path) -> None:
    recorded, _, errors = said(start_script(program(FILLS, FULL + place)))
    assert read_back(tmp_path) == (list(range(recorded)), COMPLETE)
    assert dropped(tmp_path) == 0
    assert errors.count("No space left on device") in (1, 2)
    assert not [path for path in tmp_path.rglob("*.part")]


@pytest.mark.parametrize(
    "place",
    [
        "os.pwrite = stuck(os.pwrite)",
        "os.fsync = stuck(os.fsync)",
        nightly("os.pread = stuck(os.pread)"),
        nightly("os.write = stuck(os.write)"),
        nightly("json_files.replace = stuck(json_files.replace)"),
        nightly("Path.unlink = stuck(Path.unlink)"),
    ],
)
def test_no_hook_waits_for_a_disk_that_hangs(place: str, start_script, tmp_path: Path) -> None:
    before = """
hangs, is_there = threading.Event(), threading.Event()
def stuck(function):
    def wait(*arguments, **more):
        if threading.current_thread().name == "rlscope-flush" and not hangs.is_set():
            is_there.set()
            hangs.wait(50)
        return function(*arguments, **more)
    return wait
"""
    then = """
record_until(is_there.is_set)
for number in range(300):
    record(10)
    run.delivery(f"s{number}", "trained")
    run.queue_depth("q", number)
    with run.wait("samples"):
        sample = run.sample(f"s{number}")
        sample.tokens(1, 0)
        sample.finish()
assert not hangs.is_set()
hangs.set()
"""
    recorded, faults, _ = said(start_script(program(then, before + place)))
    assert read_back(tmp_path) == (list(range(recorded)), COMPLETE)
    assert faults == "{}"


# --- processes and threads


def test_two_hosts_that_start_one_worker_id_at_once_record_side_by_side(start_script, tmp_path: Path) -> None:
    before = """
socket.gethostname = lambda: {host!r}
ready = run_dir.with_name(run_dir.name + "-ready")
ready.mkdir(exist_ok=True)
(ready / {host!r}).touch()
while len(os.listdir(ready)) < 2:
    pass
"""
    hosts = ("host-a", "host-b")
    started = [start_script(program("record_until(closed_files)", before.format(host=host))) for host in hosts]
    counts = sorted(said(process)[0] for process in started)
    found, completeness = read_back(tmp_path)
    assert (len(found), completeness) == (sum(counts), COMPLETE)
    workers = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "workers").glob("*.json")}
    assert sorted(workers) == ["w0", "w0.r1"]
    assert {worker["host"] for worker in workers.values()} == {"host-a", "host-b"}
    assert sorted(worker["rows"]["engine_steps"] for worker in workers.values()) == counts


CHILD = """
def child(number):
    open_journal._FULL_BYTES = 1
    own = rlscope_otel.start_run(worker_id=f"child-{number}", flush_interval_s=0.02)
    for each in range(20):
        own.engine_step(10**6 + each, 10**6 + each + 1)
    return own.stop()
"""


def test_forks_from_several_threads_in_the_middle_of_flushes_and_closings(start_script, tmp_path: Path) -> None:
    then = """
def fork(number):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if child(number) else 1)
    codes.append(os.waitpid(pid, 0)[1])
codes = []
record_until(closed_files)
for attempt in range(4):
    threads = [threading.Thread(target=fork, args=(3 * attempt + index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    record_until(lambda: not any(thread.is_alive() for thread in threads))
assert codes == [0] * 12, codes
"""
    recorded, faults, _ = said(start_script(program(then, CHILD, interval=0.005)))
    found, completeness = read_back(tmp_path)
    assert sorted(found) == sorted([*range(recorded), *([*range(10**6, 10**6 + 20)] * 12)])
    assert (completeness, faults) == (COMPLETE, "{}")


# --- the end

SLOWLY = """
write = OpenJournal._write
def slowly(*arguments):
    writing.set()
    time.sleep(0.3)
    return write(*arguments)
writing = threading.Event()
OpenJournal._write = slowly
"""


def test_an_interpreter_that_ends_during_a_flush_ends_after_it(start_script, tmp_path: Path) -> None:
    then = """
record(100)
writing.wait(20)
record(50)
raise KeyboardInterrupt
"""
    process = start_script(program(then, SLOWLY))
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors.strip().rpartition("\n")[2]) == (-signal.SIGINT, "KeyboardInterrupt")
    assert read_back(tmp_path) == (list(range(150)), COMPLETE)


def test_an_interpreter_ends_though_the_disk_hangs_and_what_it_wrote_before_is_whole(
    start_script, tmp_path: Path
) -> None:
    then = """
record(100)
run.flush()
OpenJournal._write = lambda *_: hung.wait(60)
record(50)
recorder.Run.stop.__defaults__ = (0.3,)
sys.exit(0)
"""
    process = start_script(program(then, "hung = threading.Event()", interval=3600))
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    assert read_back(tmp_path) == (list(range(100)), COMPLETE)


@pytest.mark.parametrize("number", [signal.SIGTERM, nightly(signal.SIGINT)])
def test_a_signal_while_a_journal_is_closed_and_another_is_written(number: int, start_script, tmp_path: Path) -> None:
    then = """
record_until(closed_files)
print("ready", flush=True)
while True:
    record(1)
    time.sleep(0.001)
"""
    # A process ends only once its threads have returned from the disk, and a busy disk may take long to sync a file. If
    # something else holds the process up, its threads say where they are.
    before = """
import faulthandler
faulthandler.dump_traceback_later(25)
os.fsync = lambda descriptor: None
closing._SLICE_S = 0
"""
    process = start_script(program(then, before))
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    try:
        process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail(process.communicate()[1])
    assert process.returncode == -number
    found, completeness = read_back(tmp_path)
    assert (found, completeness) == (list(range(len(found))), COMPLETE)
