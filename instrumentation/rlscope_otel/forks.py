"""Keeps a fork from copying the process in the middle of a write.

The libraries that write release the interpreter while they hold locks of their own. In a forked child nothing would
release these locks, and its first write would wait forever. So a fork waits until the current file is written, up to a
time limit in case the file system hangs.
"""

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager

# A file takes milliseconds. After this time, the host's fork matters more than later writes of the child.
LONGEST_WAIT_S = 1.0


class _Gate:
    """Either one thread writes, or threads fork; a fork that waits goes before the next write."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.writes = False
        self.forks = 0


_gate = _Gate()


@contextmanager
def writing() -> Generator[None]:
    """Keep all threads from forking. Waits while another thread writes, forks or waits to fork."""
    gate = _gate
    with gate.changed:
        gate.changed.wait_for(lambda: not gate.writes and gate.forks <= 0)
        gate.writes = True
    try:
        yield
    finally:
        with gate.changed:
            gate.writes = False
            gate.changed.notify_all()


def hook() -> None:
    """Make forks wait from now on. Called once per process; a child inherits it."""
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)


def _before() -> None:
    with _gate.changed:
        _gate.forks += 1
        _gate.changed.wait_for(lambda: not _gate.writes, timeout=LONGEST_WAIT_S)


def _after_in_parent() -> None:
    with _gate.changed:
        _gate.forks -= 1
        _gate.changed.notify_all()


def _after_in_child() -> None:
    global _gate
    _gate = _Gate()
