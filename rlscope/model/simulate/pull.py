"""Whole groups, taken by each engine itself between its passes: a scheduler of its own in every sampler process.

At a boundary an engine first queues what it has finished, then starts groups for as long as it has free places, holds
no finished group back, and no limit holds. Engines that could do more are called whenever a limit has moved.
"""

from collections import deque
from collections.abc import Callable

from rlscope.model.simulate.fleet import Fleet
from rlscope.model.simulate.gate import Gate, Hold
from rlscope.model.simulate.places import Cause
from rlscope.model.simulate.queue import GroupQueue
from rlscope.model.simulate.samples import NEVER, Samples


class Pull:
    """What a `Router` does, engine by engine."""

    def __init__(
        self,
        fleet: Fleet,
        gate: Gate,
        queue: GroupQueue,
        samples: Samples,
        start_group: Callable[[], range],
        note_queued: Callable[[float], None],
    ) -> None:
        self._fleet, self._gate, self._queue, self._samples = fleet, gate, queue, samples
        self._start_group, self._note_queued = start_group, note_queued
        self._outboxes: list[deque[int]] = [deque() for _ in fleet.engines]
        """Finished groups that are not queued, by engine."""
        self.outside = 0
        """Samples that wait for their environment; each holds a place of its engine."""
        self._hold: Hold = "backpressure"
        """What last kept an engine from starting a group."""
        self._seen: tuple[int, ...] = ()
        """The limits when engines were last called for them."""
        self._swapped = NEVER
        """The engine of the last swap: at its boundary until something else happens."""

    @property
    def empty_places(self) -> int:
        """Places that neither a request nor a sample outside has."""
        return self._fleet.free_places

    @property
    def cause(self) -> Cause:
        """Why places are empty."""
        return "weight_updates" if self._fleet.closed_engines else self._hold

    def go_outside(self, sample: int) -> None:
        """The sample has left its engine for its environment."""
        self.outside += 1
        self._fleet.hold_place(self._samples.engine[sample], 1)

    def come_back(self, sample: int) -> None:
        """The environment has answered."""
        engine = self._samples.engine[sample]
        self.outside -= 1
        self._fleet.hold_place(engine, -1)
        self._fleet.call(engine)

    def finish(self, group: int, version: int, now_s: float) -> None:
        """A group is finished and kept: its engine has it."""
        engine = self._samples.engine[group * self._samples.group_size]
        self._queue.hold_back(group)
        self._outboxes[engine].append(group)
        if engine == self._here():
            self._deliver(engine, version, now_s)

    def swap(self, before_s: float) -> int:
        """Let the next in an engine's line replace the next that finishes there, as `Fleet.swap` says."""
        index = self._fleet.next_engine
        finished = NEVER if index == NEVER or self._outboxes[index] else self._fleet.swap(NEVER, before_s)
        self._swapped = index if finished != NEVER else NEVER
        return finished

    def fill(self, version: int, now_s: float) -> None:
        """Let the engine that is at its boundary queue and start what it may, and call the others if a limit moved."""
        here = self._here()
        if here != NEVER:
            self._deliver(here, version, now_s)
            self._start(here)
        limits = (self._gate.taken, self._gate.filtered, self._gate.version, self._queue.dropped)
        if limits != self._seen:
            self._seen = limits
            for index, outbox in enumerate(self._outboxes):
                if index != here and (outbox or self._fleet.free_places_of(index) > 0):
                    self._fleet.call(index)
        self._fleet.wake(now_s)

    def _here(self) -> int:
        at_boundary = self._fleet.at_boundary
        return self._swapped if at_boundary == NEVER else at_boundary

    def _deliver(self, index: int, version: int, now_s: float) -> None:
        outbox = self._outboxes[index]
        while outbox and self._queue.has_room:
            self._queue.release(outbox.popleft(), version, now_s)
            self._note_queued(now_s)

    def _start(self, index: int) -> None:
        # What the engine still holds back did not fit into the queue, so the gate holds too.
        while self._fleet.free_places_of(index) > 0:
            hold = self._gate.hold()
            if hold is not None:
                self._hold = hold
                return
            self._fleet.give(index, self._start_group())
