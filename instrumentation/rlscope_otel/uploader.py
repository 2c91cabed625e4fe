"""Starts and ends the process that copies a worker's files to a store (`upload.py`), and reads its output.

Everything here runs on the flush thread, except `finish`, which is called at the end of a recording.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from rlscope_otel.faults import Faults

_KIND: Final = "cannot copy to the store"
_INTERVAL_S = 30.0
"""Between two rounds of the copy."""
_RESTART_S: Final = 30.0
_UNWANTED: Final = ("RLSCOPE_", "OTEL_")


class _Process(subprocess.Popen[bytes]):
    """A process that may outlive this one, which is no reason to warn of it."""

    def __del__(self) -> None:
        self.poll()


_left: list[_Process] = []
"""Processes that finish their copy on their own."""


class Uploader:
    """The copy of one worker's files."""

    def __init__(self, run_dir: Path, address: str, faults: Faults) -> None:
        self._run_dir = run_dir
        self._address = address
        self._faults = faults
        self._process: _Process | None = None
        self._heard = b""
        self._restart_s = 0.0
        self._pid = os.getpid()

    def ensure_running(self, worker_id: str, *, last: bool) -> None:
        """Start the process if it does not run, and note its output. `worker_id` is the claimed name."""
        if self._process is not None:
            self._read_output()
            if self._process.poll() is not None:
                self._faults.note(_KIND, f"the copying process ended with {self._process.returncode}")
                self._close()
        if self._process is None and (last or time.monotonic() >= self._restart_s):
            self._restart_s = time.monotonic() + _RESTART_S
            self._start(worker_id)

    def finish(self, timeout_s: float) -> None:
        """Wait for the copy after the recording ended. If it takes longer, it continues on its own."""
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._faults.note(_KIND, f"not all is copied after {timeout_s:.0f} s; the copy goes on for a minute")
            _left.append(process)
        self._read_output()
        self._close()
        _left[:] = [each for each in _left if each.poll() is None]

    def abandon(self) -> None:
        """This process is a fork: the copy is its parent's, which ends it by closing the pipe."""
        if self._process is not None:
            self._close()

    def _start(self, worker_id: str) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_UNWANTED)}
        environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
        copied = (str(self._run_dir), worker_id, self._address, str(_INTERVAL_S))
        try:
            self._process = _Process(
                [sys.executable, "-m", "rlscope_otel.upload", *copied],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            self._faults.note(_KIND, error)
            return
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)

    def _read_output(self) -> None:
        """Note the lines that the process has written."""
        process = self._process
        if process is None or process.stdout is None or process.stdout.closed:
            return
        try:
            while chunk := os.read(process.stdout.fileno(), 65_536):
                self._heard += chunk
        except BlockingIOError:
            pass
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            self._faults.note(_KIND, line.decode("utf-8", "replace"))

    def _close(self) -> None:
        process, self._process = self._process, None
        for pipe in (process.stdin, process.stdout) if process is not None else ():
            if pipe is not None:
                pipe.close()
        if os.getpid() != self._pid and process is not None:
            # Another process's child: nothing to wait for, and nothing to warn of.
            process.returncode = 0
