"""Dispatch: all engines with their load, the two ways in which samples reach them, and the staleness cap that waits.

A `Router` keeps samples in one line and gives each to the engine with the fewest requests. With `Pull` every engine
takes whole groups between its passes: at a boundary it first queues its finished groups, then starts groups while it
has free places, keeps no finished group, and no limit holds. Engines with spare capacity are called whenever a limit
has moved. `Cap` is for publications that wait: it tells which groups in progress the next version would make too stale.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush, heapreplace

from rlscope.model.simulate.engine import EngineTerms, SimulatedEngine
from rlscope.model.simulate.queue import Gate, GroupQueue, Hold
from rlscope.model.simulate.samples import NEVER, Samples


class EngineFleet:
    """The engines, what each was given, and the time of each one's next boundary."""

    def __init__(self, terms: Sequence[EngineTerms], places_per_engine: int, samples: Samples) -> None:
        self.engines = [SimulatedEngine(index, each, samples) for index, each in enumerate(terms)]
        self._samples = samples
        self._places_per_engine = places_per_engine
        self._load = [0] * len(self.engines)
        """Running and waiting requests, and held places."""
        self._held_places = [0] * len(self.engines)
        """Part of the load: requests that wait outside their engine."""
        self._max_running, self._away_place_held = terms[0].max_running, terms[0].away_place_held
        self.free_places = places_per_engine * len(self.engines)
        self.idle_engines = len(self.engines)
        self._boundaries: list[tuple[float, int, int]] = []
        """(time, engine, wake-up); valid only if the wake-up is the engine's last one."""
        self._wakeups = [0] * len(self.engines)
        self._next_s = [math.inf] * len(self.engines)
        self.at_boundary = NEVER
        """Engine between reach_boundary and leave_boundary; NEVER at other times."""
        self.paused: Sequence[int] = ()
        """Samples that left for their environment at the last boundary."""
        self._called: set[int] = set()

    def next_boundary_s(self) -> float:
        """Time of the next boundary of any engine; infinity if all are idle."""
        boundaries = self._boundaries
        while boundaries:
            at_s, index, wakeup = boundaries[0]
            if wakeup == self._wakeups[index]:
                return at_s
            heappop(boundaries)
        return math.inf

    def reach_boundary(self) -> Sequence[int]:
        """Advance the next engine to its boundary; returns the samples that finish there.

        Engines may be given new work before `leave_boundary` lets this engine continue.
        """
        now_s, index, _ = self._boundaries[0]
        self.at_boundary = index
        engine = self.engines[index]
        finished = engine.settle(now_s)
        if finished:
            self._note_load(index, -len(finished))
        self.paused = engine.paused
        if engine.paused:
            self._send_away(index, len(engine.paused))
        if engine.new_version != NEVER:
            engine.take_weights()
        return finished

    def leave_boundary(self, now_s: float) -> None:
        """Let the engine at its boundary continue, with the samples dispatched to it."""
        index, self.at_boundary = self.at_boundary, NEVER
        next_s = self.engines[index].resume(now_s)
        self._next_s[index] = next_s
        _, top, wakeup = self._boundaries[0]
        if top == index and wakeup == self._wakeups[index] and next_s < math.inf:
            heapreplace(self._boundaries, (next_s, index, wakeup))
        else:
            self._wakeups[index] += 1
            if next_s < math.inf:
                heappush(self._boundaries, (next_s, index, self._wakeups[index]))
        self.idle_engines += next_s == math.inf

    def free_places_of(self, index: int) -> int:
        """Places of an engine without a request, minus requests that wait beyond its places; may be negative."""
        return self._places_per_engine - self._load[index]

    def least_loaded(self) -> int:
        """Engine with the fewest requests."""
        load, index = self._load, self.at_boundary
        if index >= 0 and self.free_places == self._places_per_engine - load[index]:
            return index
        return load.index(min(load))

    def give(self, index: int, samples: Sequence[int]) -> None:
        """Put samples into an engine's line; call `wake` afterwards."""
        self._note_load(index, len(samples))
        self.engines[index].waiting.extend(samples)
        self.call(index)

    def hold_place(self, index: int, places: int) -> None:
        """Reserve more of an engine's places for requests that wait outside; a negative number releases them."""
        self._note_load(index, places)
        self._hold(index, places)

    def come_back(self, sample: int) -> None:
        """Resume a sample, on its engine, that left for its environment between two tokens; call `wake` afterwards."""
        index = self._samples.engine[sample]
        self._send_away(index, -1)
        self.engines[index].back.append(sample)
        self.call(index)

    def _send_away(self, index: int, samples: int) -> None:
        if self._away_place_held:
            self._hold(index, samples)
        else:
            self._note_load(index, -samples)

    def _hold(self, index: int, places: int) -> None:
        self._held_places[index] += places
        most = min(self._max_running, self._places_per_engine - self._held_places[index])
        self.engines[index].most_running = most

    def call(self, index: int) -> None:
        """Mark that an engine has something to handle at its next boundary; call `wake` afterwards."""
        if index != self.at_boundary:
            self._called.add(index)

    def wake(self, now_s: float) -> None:
        """Let the called engines handle pending work at their next boundary."""
        if self._called:
            for index in self._called:
                self._wake(index, now_s)
            self._called.clear()

    def publish(self, version: int, now_s: float) -> None:
        """Offer new weights to every engine; each takes them at its next boundary."""
        for index, engine in enumerate(self.engines):
            engine.new_version = version
            self._wake(index, now_s)

    def oldest_version(self) -> int:
        """Oldest version that an engine would use for the next token."""
        return min(engine.version for engine in self.engines)

    def _note_load(self, index: int, change: int) -> None:
        load = self._load[index]
        self._load[index] = load + change
        free = self._places_per_engine - load
        after = free - change
        self.free_places += (after if after > 0 else 0) - (free if free > 0 else 0)

    def _wake(self, index: int, now_s: float) -> None:
        """Let an engine handle pending work at its next boundary; an idle engine is at a boundary now."""
        engine = self.engines[index]
        engine.cut_short(now_s)
        at_s = max(now_s, engine.boundary_s())
        if at_s != self._next_s[index]:
            self._wakeups[index] += 1
            heappush(self._boundaries, (at_s, index, self._wakeups[index]))
            self.idle_engines -= self._next_s[index] == math.inf
            self._next_s[index] = at_s


class Cap:
    """Groups in progress, and the publications that would make one of them too stale."""

    def __init__(self, max_staleness: int, samples: Samples, queue: GroupQueue | None, fleet: EngineFleet) -> None:
        """Watch a cap. queue: the finished groups that are waited for; None if only running ones are."""
        self._max_staleness = max_staleness
        self._samples, self._queue, self._fleet = samples, queue, fleet
        self.open_groups: set[int] = set()
        """Groups with unfinished samples."""
        self._oldest_version = self._oldest_group = NEVER

    def waits_for_one(self, next_version: int) -> bool:
        """Whether a group in progress would be too stale to train on once the next version is published.

        A finished group that a full queue keeps out could not arrive, so it is not waited for.
        """
        queue = self._queue
        held = queue.oldest_held_version() if queue is not None and queue.has_room else None
        versions = [self._oldest_running(), held]
        return any(version is not None and version < next_version - self._max_staleness for version in versions)

    def allows(self, version: int) -> bool:
        """Whether nothing would be too stale if the version were published.

        Covers samples that run, are finished if those are waited for, or start on the versions that engines hold.
        """
        finished = None if self._queue is None else self._queue.oldest_version()
        versions = (self._oldest_running(), finished, self._fleet.oldest_version())
        return min(each for each in versions if each is not None) >= version - self._max_staleness

    def _oldest_running(self) -> int | None:
        """Oldest version in any unfinished group; None if none has started."""
        if self._oldest_group in self.open_groups:
            return self._oldest_version
        oldest = min(
            ((version, group) for group in self.open_groups if (version := self._version_of(group)) is not None),
            default=None,
        )
        # While this group runs, nothing older can start, unless an engine still holds an older version.
        if oldest is not None and oldest[0] <= self._fleet.oldest_version():
            self._oldest_version, self._oldest_group = oldest
        return None if oldest is None else oldest[0]

    def _version_of(self, group: int) -> int | None:
        samples = self._samples
        versions = samples.first_version[samples.members(group)]
        return min((version for version in versions if version != NEVER), default=None)


class Router:
    """Start groups while any place is free; finished groups wait in one line if the queue is full."""

    def __init__(self, fleet: EngineFleet, gate: Gate, queue: GroupQueue, start_group: Callable[[], range]) -> None:
        self._fleet, self._gate, self._queue, self._start_group = fleet, gate, queue, start_group
        self._line: deque[int] = deque()
        """Samples of started groups that are not yet with an engine."""
        self.outside = 0
        """Samples that wait for their environment; each holds a place, of no particular engine."""
        self.hold: Hold = "backpressure"
        """Limit that last kept the next group from starting."""

    @property
    def empty_places(self) -> int:
        """Places that neither a request nor a sample outside occupies."""
        return self._fleet.free_places - self.outside

    def go_outside(self, sample: int) -> None:
        """Record that a sample has left its engine for its environment."""
        self.outside += 1

    def come_back(self, sample: int) -> None:
        """Record that a sample's environment has answered."""
        self.outside -= 1

    def finish(self, group: int, version: int, now_s: float) -> None:
        """Handle a group that is finished and kept."""
        self._queue.offer(group, version, now_s)

    def fill(self, version: int, now_s: float) -> None:
        """Start every group that may start."""
        fleet, line = self._fleet, self._line
        empty = fleet.free_places - self.outside
        while empty > 0:
            if not line:
                if (hold := self._gate.hold()) is not None:
                    self.hold = hold
                    break
                line.extend(self._start_group())
            fleet.give(fleet.least_loaded(), (line.popleft(),))
            empty -= 1
        fleet.wake(now_s)


class Pull:
    """Let each engine take whole groups between its passes, and keep its finished ones until the queue has room."""

    def __init__(
        self,
        fleet: EngineFleet,
        gate: Gate,
        queue: GroupQueue,
        start_group: Callable[[], range],
        samples: Samples,
        note_queued: Callable[[float], None],
    ) -> None:
        self._fleet, self._gate, self._queue, self._samples = fleet, gate, queue, samples
        self._start_group, self._note_queued = start_group, note_queued
        self._outboxes: list[deque[int]] = [deque() for _ in fleet.engines]
        """Finished groups that are not queued, by engine."""
        self.hold: Hold = "backpressure"
        """Limit that last kept an engine from starting a group."""
        self._seen: tuple[int, ...] = ()
        """The limits when engines were last called because of them."""

    @property
    def empty_places(self) -> int:
        """Places that neither a request nor a sample outside occupies."""
        return self._fleet.free_places

    def go_outside(self, sample: int) -> None:
        """Record that a sample has left its engine for its environment."""
        self._fleet.hold_place(self._samples.engine[sample], 1)

    def come_back(self, sample: int) -> None:
        """Record that a sample's environment has answered."""
        engine = self._samples.engine[sample]
        self._fleet.hold_place(engine, -1)
        self._fleet.call(engine)

    def finish(self, group: int, version: int, now_s: float) -> None:
        """Handle a group that is finished and kept; its engine holds it."""
        engine = self._samples.engine[group * self._samples.group_size]
        self._queue.hold_back(group)
        self._outboxes[engine].append(group)
        if engine == self._fleet.at_boundary:
            self._deliver(engine, version, now_s)

    def fill(self, version: int, now_s: float) -> None:
        """Let the engine at its boundary queue and start what it may, and call the others if a limit moved."""
        fleet, gate = self._fleet, self._gate
        here = fleet.at_boundary
        if here != NEVER:
            if self._outboxes[here]:
                self._deliver(here, version, now_s)
            self._start(here)
        limits = (gate.taken, gate.out_of_flight, gate.filtered, gate.version, self._queue.dropped)
        if limits != self._seen:
            self._seen = limits
            for index, outbox in enumerate(self._outboxes):
                if index != here and (outbox or fleet.free_places_of(index) > 0):
                    fleet.call(index)
        fleet.wake(now_s)

    def _deliver(self, index: int, version: int, now_s: float) -> None:
        outbox = self._outboxes[index]
        while outbox and self._queue.has_room:
            self._queue.release(outbox.popleft(), version, now_s)
            self._note_queued(now_s)

    def _start(self, index: int) -> None:
        # Groups that the engine still holds back did not fit into the queue, so the gate holds too.
        fleet = self._fleet
        while fleet.free_places_of(index) > 0:
            if (hold := self._gate.hold()) is not None:
                self.hold = hold
                return
            fleet.give(index, self._start_group())
