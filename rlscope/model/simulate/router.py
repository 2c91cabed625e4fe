"""Samples in one line, each given to the engine with the fewest requests: a router in front of all engines."""

from collections import deque
from collections.abc import Callable

from rlscope.model.simulate.fleet import Fleet
from rlscope.model.simulate.gate import Gate, Hold
from rlscope.model.simulate.places import Cause
from rlscope.model.simulate.queue import GroupQueue
from rlscope.model.simulate.samples import NEVER


class Router:
    """Starts groups while any place is free; finished groups wait in one line where the queue is full."""

    def __init__(self, fleet: Fleet, gate: Gate, queue: GroupQueue, start_group: Callable[[], range]) -> None:
        self._fleet, self._gate, self._queue, self._start_group = fleet, gate, queue, start_group
        self._line: deque[int] = deque()
        """Samples of groups that have started, not yet with an engine."""
        self.outside = 0
        """Samples that wait for their environment; each holds a place, of no engine in particular."""
        self._hold: Hold | None = None
        """What kept the next group from starting when that was last asked; None where nothing did."""

    @property
    def empty_places(self) -> int:
        """Places that neither a request nor a sample outside has."""
        return self._fleet.free_places - self.outside

    @property
    def cause(self) -> Cause:
        """Why places are empty: where nothing holds the next group, they are of engines that take no requests."""
        return self._hold or "weight_updates"

    def go_outside(self, sample: int) -> None:
        """The sample has left its engine for its environment."""
        self.outside += 1

    def come_back(self, sample: int) -> None:
        """The environment has answered."""
        self.outside -= 1

    def finish(self, group: int, version: int, now_s: float) -> None:
        """A group is finished and kept."""
        self._queue.offer(group, version, now_s)

    def swap(self, before_s: float) -> int:
        """Let a sample of a started group replace the next that finishes, as `Fleet.swap` says."""
        if self._fleet.free_places:
            return NEVER
        if not self._line:
            if not self._gate.is_always_open:
                return NEVER
            self._line.extend(self._start_group())
        finished = self._fleet.swap(self._line[0], before_s)
        if finished >= 0:
            self._line.popleft()
        return finished

    def fill(self, version: int, now_s: float) -> None:
        """Start whatever may start."""
        fleet, line = self._fleet, self._line
        empty = fleet.free_places - self.outside
        self._hold = None
        while empty > 0 and fleet.has_open_place:
            if not line:
                self._hold = self._gate.hold()
                if self._hold is not None:
                    break
                line.extend(self._start_group())
            fleet.give(fleet.least_loaded(), (line.popleft(),))
            empty -= 1
        fleet.wake(now_s)
