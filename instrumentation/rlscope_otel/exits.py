"""Handling of the ways in which a process ends or forks during a recording.

| ending | what is kept |
|---|---|
| normal exit, `sys.exit`, end of a multiprocessing child | everything: the run is stopped |
| SIGTERM with the default action | everything: the run is stopped, then the signal ends the process |
| SIGTERM with a handler of the host | everything so far: the run is flushed, then the host's handler is called |
| `os._exit`, SIGKILL, a crash | everything but the last flush interval |
| fork | the parent continues; the child records nothing until it calls `start_run` itself |

A fork waits until the current file is written (`forks.py`). No handler is installed before the first run starts.
SIGTERM is handled only if the main thread starts the run and the signal is not ignored.
"""

import atexit
import os
import signal
import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING

from rlscope_otel import forks

if TYPE_CHECKING:
    from rlscope_otel.recorder import Run
    from rlscope_otel.recording import Recording

# Maximum delay of a terminated process, well below the 30 s that schedulers usually grant.
_SIGTERM_TIMEOUT_S = 5.0


_live: "list[Run]" = []
_hooked_pids: set[int] = set()
_previous_sigterm: object = None


def watch(run: "Run") -> None:
    """Stop the run when the process ends."""
    _live.append(run)
    _hook_process()
    _hook_sigterm()


def unwatch(run: "Recording") -> None:
    """Forget a stopped run. After the last one, restore the host's SIGTERM handler."""
    global _previous_sigterm
    _live[:] = [each for each in _live if each is not run]
    ours = signal.getsignal(signal.SIGTERM) is _on_sigterm
    if not _live and ours and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _previous_sigterm)  # pyright: ignore[reportArgumentType]  # as getsignal gave it
        _previous_sigterm = None


def live_runs() -> "tuple[Run, ...]":
    """Return the active runs of this process, oldest first."""
    return tuple(_live)


def _hook_process() -> None:
    """Install the exit hooks once per process. A forked child inherits all of them except multiprocessing's."""
    if os.getpid() in _hooked_pids:
        return
    if not _hooked_pids:
        atexit.register(_stop_all)
        forks.hook()
        os.register_at_fork(after_in_child=_abandon_all)
    _hooked_pids.add(os.getpid())
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        # A forked multiprocessing child exits through os._exit, which runs these finalizers but not atexit.
        from multiprocessing.util import Finalize

        Finalize(None, _stop_all, exitpriority=10)


def _hook_sigterm() -> None:
    global _previous_sigterm
    if threading.current_thread() is not threading.main_thread():
        return
    current = signal.getsignal(signal.SIGTERM)
    if current is None or current is signal.SIG_IGN or current is _on_sigterm:
        return
    _previous_sigterm = current
    signal.signal(signal.SIGTERM, _on_sigterm)


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    previous = _previous_sigterm
    if callable(previous) and previous is not signal.SIG_DFL:
        for run in live_runs():
            run.flush(_SIGTERM_TIMEOUT_S)
        previous(number, frame)
        return
    for run in live_runs():
        run.stop(_SIGTERM_TIMEOUT_S)
    # Only now, so that a second SIGTERM waits for the first instead of interrupting it.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def _stop_all() -> None:
    for run in live_runs():
        run.stop()


def _abandon_all() -> None:
    for run in live_runs():
        run.abandon()
    _live.clear()
