"""When to write: at every interval, when a buffer is nearly full, on request, and at the end.

One daemon thread does all writing, so the host's threads do no I/O. Requests go through a `SimpleQueue`, whose `put`
may be called from a signal handler that interrupted another `put`. Between two writes the thread does background work
in slices, for at most a fifth of the time.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import NamedTuple

from rlscope_otel.faults import Faults

# Rest per second of background work, because the host's threads need the interpreter too.
_REST = 4.0


class _Order(NamedTuple):
    """Request for an early flush. `reply` receives whether everything is on disk."""

    reply: "SimpleQueue[bool] | None" = None
    last: bool = False


@dataclass
class FlushThread:
    """Calls `write(last)` until stopped; `write` returns whether everything reached the disk."""

    write: Callable[[bool], bool]
    interval_s: float
    faults: Faults
    aside: Callable[[], bool] = lambda: False
    """Does background work for some milliseconds and returns whether more is left."""
    finish: Callable[[], None] = lambda: None
    """Does what is left of the background work after the last write."""

    def __post_init__(self) -> None:
        self._orders: SimpleQueue[_Order] = SimpleQueue()
        self._pressed = self._stopping = False
        self._thread = threading.Thread(target=self._loop, name="rlscope-flush", daemon=True)

    def start(self) -> None:
        """Begin to write at every interval."""
        self._thread.start()

    def press(self) -> None:
        """Write soon, since a buffer is long: one request at a time; if writing fails, not before the next interval."""
        if not self._pressed:
            self._pressed = True
            self._orders.put(_Order())

    def flush(self, timeout_s: float) -> bool:
        """Write now and wait for it; False when it failed or took longer."""
        return self._ask(last=False, timeout_s=timeout_s)

    def stop(self, timeout_s: float) -> bool:
        """Write for the last time and wait for the thread to end; False when writing failed or took longer.

        What `finish` does is worth waiting for, but without it everything is on disk too.
        """
        if self._stopping:
            self._thread.join(timeout_s)
            return not self._thread.is_alive()
        self._stopping = True
        until_s = time.monotonic() + timeout_s
        complete = self._ask(last=True, timeout_s=timeout_s)
        if complete:
            self._thread.join(max(0.0, until_s - time.monotonic()))
        return complete

    def _ask(self, *, last: bool, timeout_s: float) -> bool:
        if not self._thread.is_alive():
            return False
        reply: SimpleQueue[bool] = SimpleQueue()
        self._orders.put(_Order(reply, last))
        try:
            return reply.get(timeout=timeout_s)
        except Empty:
            return False

    def _loop(self) -> None:
        due_s = time.monotonic() + self.interval_s
        while True:
            order = self._next_order(due_s)
            complete = self.faults.attempt("flush", self.write, order is not None and order.last) or False
            # Only now, because the rows being written still fill the buffer and would request a nearly empty file.
            self._pressed = not complete
            due_s = time.monotonic() + self.interval_s
            if order is not None and order.reply is not None:
                order.reply.put(complete)
            if order is not None and order.last:
                break
        # Everything is on disk.
        self.faults.attempt("closing", self.finish)

    def _next_order(self, due_s: float) -> _Order | None:
        """Return the next request, or None when it is time to write. Does background work until then."""
        rest_s = self._work_aside()
        while True:
            now_s = time.monotonic()
            left_s = max(0.0, due_s - now_s)
            try:
                return self._orders.get(timeout=left_s if rest_s is None else min(left_s, rest_s))
            except Empty:
                if time.monotonic() >= due_s:
                    return None
            rest_s = self._work_aside()

    def _work_aside(self) -> float | None:
        """Do a slice of background work and return the rest after it, in seconds. None if no work is left."""
        began_s = time.monotonic()
        has_more = self.faults.attempt("closing", self.aside)
        return _REST * (time.monotonic() - began_s) if has_more else None
