"""Keeps a fork from copying the process in the middle of a write.

The libraries that write let go of the interpreter and hold locks of their own meanwhile. In the child nobody would
release them, and the first write there would wait for ever. So a fork waits until the file of the moment is written,
though not for longer than a file system that hangs would make it.
"""

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager

# A file takes milliseconds; beyond this the host's fork matters more than what the child may want to write.
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
    """While this is open, no thread forks; it opens when no other is open and no thread forks or waits to."""
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
    """Have forks wait, from now on. Once a process; a child inherits it."""
    if hasattr(os, "register_at_fork"):
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
