"""Real processes whose disk or children fail them, or that end badly: nothing raises, and every row is counted."""

import subprocess
import textwrap

import pytest

from tests.journals import COMPLETE, read_back

START = """
import errno, os, sys, threading, time, rlscope_otel
from pathlib import Path
from rlscope_otel import closing, open_journal, recorder
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


def said(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """The rows that the program recorded, the faults that it counted, and what it logged."""
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    recorded, _, faults = output.strip().rpartition("\n")[2].partition(" ")
    return int(recorded), faults, errors


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
    ],
)
def test_a_disk_that_fills_and_empties_again_costs_no_row(place, start_script, tmp_path, worker):
    recorded, _, errors = said(start_script(program(FILLS, FULL + place)))
    assert read_back(tmp_path) == (list(range(recorded)), COMPLETE)
    assert worker("w0")["dropped"]["engine_steps"] == 0
    assert errors.count("No space left on device") in (1, 2)
    assert not [path for path in tmp_path.rglob("*.part")]


@pytest.mark.parametrize("place", ["os.pwrite = stuck(os.pwrite)", "os.fsync = stuck(os.fsync)"])
def test_no_hook_waits_for_a_disk_that_hangs(place, start_script, tmp_path):
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


def test_an_interpreter_ends_though_the_disk_hangs_and_what_it_wrote_before_is_whole(start_script, tmp_path):
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
