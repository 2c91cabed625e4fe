"""What happens when: handlers called in order of time, those of one time in the order they were scheduled."""

import heapq
from collections.abc import Callable

Handler = Callable[[float], None]


class Agenda:
    """A heap of things to do; a handler is given the time, in seconds since the start of the run."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Handler]] = []
        self._scheduled = 0
        self._closed_s: float | None = None

    def schedule(self, at_s: float, handler: Handler) -> None:
        """Call the handler at that time."""
        self._scheduled += 1
        heapq.heappush(self._entries, (at_s, self._scheduled, handler))

    def run(self) -> float:
        """Call everything until closed; returns when that was. Raises RuntimeError when nothing is left before that."""
        while self._closed_s is None:
            if not self._entries:
                raise RuntimeError("everyone waits for someone else: these limits let no step be filled")
            at_s, _, handler = heapq.heappop(self._entries)
            handler(at_s)
        return self._closed_s

    def close(self, now_s: float) -> None:
        """Nothing further is called."""
        self._closed_s = now_s
