"""Runs the example pipeline as a user would, in a process of its own, on a tiny model."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
TINY = (
    *("--batch", "16", "--group", "4", "--slots", "8", "--queue-capacity-samples", "32"),
    *("--width", "32", "--layers", "1"),
)
SHORT = ("--response-cap", "32", "--flush-interval-s", "0.5", "--log-every", "1000")
TIME_LIMIT_S = 120


@dataclass(frozen=True, slots=True)
class Ended:
    """A pipeline that has ended, and what it counted itself."""

    run_dir: Path
    exit_status: int
    stderr: str

    @property
    def counted(self) -> dict[str, Any]:
        return json.loads((self.run_dir / "pipeline_summary.json").read_text())


def start(run_dir: Path, *flags: str) -> subprocess.Popen[str]:
    """Start the pipeline without waiting for it."""
    command = [sys.executable, "-m", "examples.pipeline_rl", str(run_dir), *TINY, *SHORT, *flags]
    return subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def finish(run_dir: Path, pipeline: subprocess.Popen[str]) -> Ended:
    """Wait for the pipeline's end."""
    _, stderr = pipeline.communicate(timeout=TIME_LIMIT_S)
    return Ended(run_dir, pipeline.returncode, stderr)


def run(run_dir: Path, *flags: str) -> Ended:
    """Run the pipeline to its end."""
    return finish(run_dir, start(run_dir, *flags))


def await_file(path: Path) -> None:
    """Wait until a file is there."""
    deadline_s = time.monotonic() + TIME_LIMIT_S
    while not path.exists():
        assert time.monotonic() < deadline_s, f"{path} never came"
        time.sleep(0.01)


def pid_of(run_dir: Path, worker_id: str) -> int:
    """The process of a worker, once it has said so."""
    path = run_dir / "workers" / f"{worker_id}.json"
    await_file(path)
    return int(json.loads(path.read_text())["pid"])


def kill_all(pipeline: subprocess.Popen[str]) -> None:
    """SIGKILL to the launcher and its workers at once; the tracker that unlinks their semaphores lives on to do so."""
    children = Path(f"/proc/{pipeline.pid}/task/{pipeline.pid}/children").read_text().split()
    workers = [pid for pid in children if b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes()]
    for pid in (pipeline.pid, *map(int, workers)):
        os.kill(pid, signal.SIGKILL)
    pipeline.communicate(timeout=TIME_LIMIT_S)
