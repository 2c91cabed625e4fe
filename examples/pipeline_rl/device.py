"""A device slower than the core that stands for it.

What a worker's arithmetic takes is counted in processor time, not by the clock: a worker that waits for a core, because
more of them run than there are cores, then sleeps that much less, and its device keeps its speed.
"""

import time
from collections.abc import Generator
from contextlib import contextmanager


class SlowDevice:
    """Stretches this thread's arithmetic by a factor; a factor of 1 adds nothing."""

    def __init__(self, slowdown: float) -> None:
        self._slowdown = slowdown
        self.compute_s = 0.0
        """Processor time of the last piece of arithmetic, before it was stretched."""

    @contextmanager
    def computing(self) -> Generator[None]:
        """The block's arithmetic, and then a sleep for as long as the slow device would still compute."""
        begun_s, begun_cpu_s = time.perf_counter(), time.thread_time()
        yield
        self.compute_s = time.thread_time() - begun_cpu_s
        if self._slowdown > 1:
            time.sleep(max(0.0, self.compute_s * self._slowdown - (time.perf_counter() - begun_s)))
