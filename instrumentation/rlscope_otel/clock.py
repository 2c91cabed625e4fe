"""The run's clock: the wall clock read once at the start, plus a monotonic clock.

So a step of the wall clock during the run cannot cause a negative duration.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """The two readings that a run needs. Tests can replace them."""

    def wall_ns(self) -> int:
        """Nanoseconds since the UTC epoch."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds that never go back."""
        ...


class SystemClock:
    """The machine's clocks."""

    # The functions of `time` are called directly, because an engine's hook reads the clock four times per step.
    wall_ns = staticmethod(time.time_ns)
    monotonic_ns = staticmethod(time.monotonic_ns)


class RunClock:
    """Wall time at the start plus monotonic time since."""

    def __init__(self, clock: Clock) -> None:
        self.offset_ns = clock.wall_ns() - clock.monotonic_ns()
        """Difference between the time of the run and the monotonic clock."""
        self.read_ns = clock.monotonic_ns
        """Reads the monotonic clock alone, for hooks that add `offset_ns` later."""
        offset_ns, read_ns = self.offset_ns, self.read_ns
        # One call and no lookups of attributes: hooks read the clock several times a step.
        self.now_ns = lambda: offset_ns + read_ns()
        """UTC epoch nanoseconds; never smaller than an earlier reading."""
