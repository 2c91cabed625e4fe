import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import rlscope_otel
from rlscope_otel import Run, exits

from tests.journals import recorded_rows
from tests.manual_clock import ManualClock

Rows = Callable[..., list[dict[str, object]]]
Columns = Callable[..., list[tuple[object, ...]]]


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in list(os.environ):
        if name.startswith(("RLSCOPE_", "OTEL_")):
            monkeypatch.delenv(name)
    yield
    for run in exits.live_runs():
        run.stop()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(wall_ns=1_000_000)


@pytest.fixture
def run(tmp_path: Path, clock: ManualClock) -> Iterator[Run]:
    """A run that writes only when told to."""
    with rlscope_otel.start_run(tmp_path, "colocated", "w0", clock=clock, flush_interval_s=3600) as started:
        yield started


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    """All rows of a table in the run folder, in file order, without the columns that are named.

    The runs of this process first write what they have.
    """

    def read(table: str, *without: str, run_dir: Path = tmp_path) -> list[dict[str, object]]:
        for live in exits.live_runs():
            live.flush()
        found = recorded_rows(run_dir, table)
        return [{name: value for name, value in row.items() if name not in without} for row in found]

    return read


@pytest.fixture
def columns(rows: Rows) -> Columns:
    """The rows of a table as tuples of these columns."""
    return lambda table, *names: [tuple(row[name] for name in names) for row in rows(table)]


@pytest.fixture
def worker(tmp_path: Path) -> Callable[[str], dict[str, object]]:
    return lambda worker_id: json.loads((tmp_path / "workers" / f"{worker_id}.json").read_text())


@pytest.fixture
def start_script(tmp_path: Path) -> Iterator[Callable[[str], "subprocess.Popen[str]"]]:
    """A Python process that runs the text, with RLSCOPE_RUN_DIR set; killed with its children after the test."""
    started: list[subprocess.Popen[str]] = []

    def start(text: str) -> "subprocess.Popen[str]":
        script = tmp_path.parent / f"{tmp_path.name}-script-{len(started)}.py"
        script.write_text(textwrap.dedent(text))
        environment = {**os.environ, "RLSCOPE_RUN_DIR": str(tmp_path), "RLSCOPE_ROLE": "sampler"}
        command = [sys.executable, "-W", "error", "-W", "ignore:This process:DeprecationWarning", str(script)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(command, **pipes, env=environment, start_new_session=True)
        started.append(process)
        return process

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
