"""Each test ends a real process in one of the ways that processes end, and reads what it left."""

import signal
import subprocess

import pytest

SLOW = "run = rlscope_otel.start_run(worker_id='w0', flush_interval_s=3600)"
RECORD = """
import os, signal, sys, threading, rlscope_otel
{start}
for number in range(100):
    run.engine_step(number, number + 1)
running = run.sample("s1")
running.tokens(3, 0)
print("ready", flush=True)
"""
WAIT_FOREVER = "signal.pause()\n"


def script(start: str = SLOW, then: str = "") -> str:
    return RECORD.format(start=start) + then


def until_ready(process: "subprocess.Popen[str]") -> None:
    line = process.stdout.readline()
    assert line == "ready\n", process.stderr.read()


def ended(process: "subprocess.Popen[str]") -> int:
    _, errors = process.communicate(timeout=30)
    assert errors == ""
    return process.returncode


def counts(rows) -> tuple[int, list[object]]:
    return len(rows("engine_steps")), [row["finish_reason"] for row in rows("samples")]


def test_sigterm_with_the_default_action_writes_and_closes_everything_and_ends_by_the_signal(
    start_script, tmp_path, rows, worker
):
    process = start_script(script(then=WAIT_FOREVER))
    until_ready(process)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == -signal.SIGTERM
    assert counts(rows) == (100, ["unfinished"])
    assert [path.name for path in tmp_path.glob("engine_steps/*")] == ["w0-000001.parquet"]
    assert worker("w0")["stopped_ns"] is not None


def test_sigterm_after_sigterm_while_the_host_is_stopping_the_run_still_writes_everything(start_script, rows):
    then = """
from rlscope_otel.open_journal import OpenJournal
write = OpenJournal._write
def slowly(*arguments):
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(0.2)
    return write(*arguments)
OpenJournal._write = slowly
run.stop()
"""
    process = start_script(script(then=then))
    assert ended(process) == -signal.SIGTERM
    assert counts(rows) == (100, ["unfinished"])


def test_the_host_s_own_sigterm_handler_still_runs_after_a_flush(start_script, rows, worker):
    start = "signal.signal(signal.SIGTERM, lambda *_: (print('host', flush=True), os._exit(7)))\n" + SLOW
    process = start_script(script(start, WAIT_FOREVER))
    until_ready(process)
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "host\n"
    assert ended(process) == 7
    assert counts(rows) == (100, [])
    assert worker("w0")["stopped_ns"] is None


IGNORES = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLOW
OFF_THE_MAIN_THREAD = f"""
def begin():
    global run
    {SLOW}
thread = threading.Thread(target=begin); thread.start(); thread.join()
"""


@pytest.mark.parametrize(
    ("start", "then", "handler"),
    [
        (IGNORES, "os.kill(os.getpid(), signal.SIGTERM)", "SIG_IGN"),
        (OFF_THE_MAIN_THREAD, "", "SIG_DFL"),
        (SLOW, "run.stop()", "SIG_DFL"),
    ],
    ids=["an ignored one stays ignored", "a run of another thread leaves it alone", "stop gives the host its own back"],
)
def test_sigterm_is_the_host_s(start, then, handler, start_script, rows):
    then += f"\nassert signal.getsignal(signal.SIGTERM) is signal.{handler}"
    assert ended(start_script(script(start, then))) == 0
    assert counts(rows) == (100, ["unfinished"])


def test_a_forked_child_is_inert_and_the_parent_s_rows_are_written_once(start_script, rows, tmp_path):
    then = """
child = os.fork()
if child == 0:
    assert not run.active
    with run.wait("samples"):
        run.engine_step(500, 501)
    running.finish()
    run.sample("s2").finish()
    assert run.flush() and run.stop()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    assert ended(start_script(script(then=then))) == 0
    assert counts(rows) == (100, ["unfinished"])
    assert rows("activities") == []
    assert [path.name for path in (tmp_path / "workers").iterdir()] == ["w0.json"]


WRITES = """
import os, threading
from rlscope_otel import forks
forks.LONGEST_WAIT_S = {longest_wait_s}
inside, written, never = threading.Event(), threading.Event(), threading.Event()
def write():
    with forks.writing():
        inside.set()
        never.wait({write_s})
        written.set()
threading.Thread(target=write, daemon=True).start()
inside.wait()
child = os.fork()
if child == 0:
    with forks.writing():
        os._exit(0 if written.is_set() == {waited} else 1)
"""


@pytest.mark.parametrize(
    ("longest_wait_s", "write_s", "waited"), [(60, 0.2, True), (0.05, 0.5, False)], ids=["it ends", "it hangs"]
)
def test_a_fork_waits_for_the_write_of_the_moment_unless_it_hangs(start_script, longest_wait_s, write_s, waited):
    writes = WRITES.format(longest_wait_s=longest_wait_s, write_s=write_s, waited=waited)
    then = writes + "\nassert os.waitpid(child, 0)[1] == 0"
    assert ended(start_script(script(then=then))) == 0


MULTIPROCESSING = """
import multiprocessing, rlscope_otel

def record(worker_id, start_ns):
    run = rlscope_otel.start_run(worker_id=worker_id, flush_interval_s=3600)
    run.engine_step(start_ns, start_ns + 1)

if __name__ == "__main__":
    record("parent", 100)
    process = multiprocessing.get_context("{method}").Process(target=record, args=("child", 0))
    process.start()
    process.join()
    assert process.exitcode == 0
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_of_multiprocessing_joins_the_run_and_writes_its_rows_at_exit(method, start_script, columns, worker):
    assert ended(start_script(MULTIPROCESSING.format(method=method))) == 0
    assert columns("engine_steps", "worker_id", "start_ns") == [("child", 0), ("parent", 100)]
    assert all(worker(name)["stopped_ns"] for name in ("child", "parent"))
