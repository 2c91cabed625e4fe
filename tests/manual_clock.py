"""The clock of a run under test."""


class ManualClock:
    """A clock that moves only when advanced."""

    def __init__(self, wall_ns: int = 1_700_000_000_000_000_000, monotonic_ns: int = 0) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns

    def wall_ns(self) -> int:
        return self._wall_ns

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def advance(self, duration_ns: int) -> None:
        """Let both clocks run on by a duration."""
        self._wall_ns += duration_ns
        self._monotonic_ns += duration_ns

    def step_wall(self, by_ns: int) -> None:
        """Set the wall clock forward or back, as a time daemon may; the monotonic clock does not notice."""
        self._wall_ns += by_ns
