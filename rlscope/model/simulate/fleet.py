"""All engines: whose boundary is next, how many requests each has, and when it is told of new weights."""

import math
from collections.abc import Sequence
from heapq import heappop, heappush, heapreplace
from typing import Final

from rlscope.model.simulate.engine import Engine, EngineTerms
from rlscope.model.simulate.samples import NEVER, Samples

_CLOSED: Final = 1 << 40
"""Added to the load of an engine that takes no requests: above any real load."""


class Fleet:
    """The engines, what each has been given, and when each reaches its next boundary."""

    def __init__(self, terms: Sequence[EngineTerms], places_per_engine: int, samples: Samples) -> None:
        self.engines = [Engine(index, each, samples) for index, each in enumerate(terms)]
        self._drains = terms[0].drains
        self._places_per_engine = places_per_engine
        self._load = [0] * len(self.engines)
        """Running and waiting requests, and places held; _CLOSED more where they must finish before new weights."""
        self._held_places = [0] * len(self.engines)
        """Of the load: requests that wait outside their engine."""
        self._max_running = terms[0].max_running
        self.closed_engines = 0
        self.free_places = places_per_engine * len(self.engines)
        self.idle_engines = len(self.engines)
        self._boundaries: list[tuple[float, int, int]] = []
        """(time, engine, wake-up): void unless the wake-up is the engine's last."""
        self._wakeups = [0] * len(self.engines)
        self._next_s = [math.inf] * len(self.engines)
        self.at_boundary = NEVER
        """The engine between reach_boundary and leave_boundary; NEVER at other times."""
        self._called: set[int] = set()
        self.swapped_s = 0.0

    def next_boundary_s(self) -> float:
        """When an engine reaches a boundary next; infinity when all are idle."""
        boundaries = self._boundaries
        while boundaries:
            at_s, index, wakeup = boundaries[0]
            if wakeup == self._wakeups[index]:
                return at_s
            heappop(boundaries)
        return math.inf

    @property
    def next_engine(self) -> int:
        """The engine whose boundary is next, or was to be before it was called; NEVER when all are idle."""
        return self._boundaries[0][1] if self._boundaries else NEVER

    def swap(self, newcomer: int, before_s: float) -> int:
        """Cross the next boundary, if it is before a moment and lets the newcomer replace the one that finishes there.

        newcomer: NEVER takes the next in the engine's own line, where that is longer than its free places. Returns
        the finished sample and leaves the time in `swapped_s`; NEVER, with nothing done, where it is not so simple.
        """
        now_s, index, wakeup = self._boundaries[0]
        if now_s >= before_s or wakeup != self._wakeups[index]:
            return NEVER
        engine = self.engines[index]
        is_own = newcomer == NEVER
        if is_own != bool(engine.waiting) or (is_own and self._load[index] <= self._places_per_engine):
            return NEVER
        finished = engine.swap(now_s, engine.waiting[0] if is_own else newcomer)
        if finished >= 0:
            if is_own:
                engine.waiting.popleft()
                self._load[index] -= 1
            self._next_s[index] = engine.next_s
            heapreplace(self._boundaries, (engine.next_s, index, wakeup))
            self.swapped_s = now_s
        return finished

    def reach_boundary(self) -> Sequence[int]:
        """Bring the engine that is next to its boundary; returns the samples that finish there.

        What follows from it may be given to engines before `leave_boundary` lets this one go on.
        """
        now_s, index, _ = self._boundaries[0]
        self.at_boundary = index
        engine = self.engines[index]
        finished = engine.settle(now_s)
        if finished:
            self._note_load(index, -len(finished))
        if engine.new_version != NEVER and engine.take_weights() and self._drains:
            self._load[index] -= _CLOSED
            self.closed_engines -= 1
        return finished

    def leave_boundary(self, now_s: float) -> None:
        """Let the engine at its boundary go on, with what was dispatched to it."""
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

    @property
    def has_open_place(self) -> bool:
        """Whether an engine that takes requests has a free place."""
        return self.free_places > 0 if not self.closed_engines else min(self._load) < self._places_per_engine

    def free_places_of(self, index: int) -> int:
        """Places of an engine without a request, less those that wait beyond its places; it may be negative."""
        return self._places_per_engine - self._load[index]

    def least_loaded(self) -> int:
        """The engine with the fewest requests."""
        load, index = self._load, self.at_boundary
        if index >= 0 and self.free_places == self._places_per_engine - load[index]:
            return index
        return load.index(min(load))

    def give(self, index: int, samples: Sequence[int]) -> None:
        """Put samples into an engine's line; `wake` must follow."""
        self._note_load(index, len(samples))
        self.engines[index].waiting.extend(samples)
        self.call(index)

    def hold_place(self, index: int, places: int) -> None:
        """So many more of an engine's places go to requests that wait outside; below 0: they are back."""
        engine = self.engines[index]
        self._held_places[index] += places
        self._note_load(index, places)
        engine.most_running = min(self._max_running, self._places_per_engine - self._held_places[index])

    def call(self, index: int) -> None:
        """There is something for the engine to see to at its next boundary; `wake` must follow."""
        if index != self.at_boundary:
            self._called.add(index)

    def wake(self, now_s: float) -> None:
        """Let the engines that were called meet what there is at their next boundary."""
        for index in self._called:
            self._wake(index, now_s)
        self._called.clear()

    def publish(self, version: int, now_s: float) -> None:
        """Offer new weights to every engine; each takes them at its next boundary, or when it is empty."""
        for index, engine in enumerate(self.engines):
            if self._drains and engine.new_version == NEVER:
                self._load[index] += _CLOSED
                self.closed_engines += 1
            engine.new_version = version
            if not self._drains or not engine.running:
                self._wake(index, now_s)

    def oldest_version(self) -> int:
        """The oldest version that an engine would give the next token."""
        return min(engine.version for engine in self.engines)

    def _note_load(self, index: int, change: int) -> None:
        places, before = self._places_per_engine, self._load[index] % _CLOSED
        self._load[index] += change
        self.free_places += max(places - before - change, 0) - max(places - before, 0)

    def _wake(self, index: int, now_s: float) -> None:
        """Let an engine meet what has come up at its next boundary; an idle one is at a boundary now."""
        engine = self.engines[index]
        engine.cut_short(now_s)
        at_s = max(now_s, engine.boundary_s())
        if at_s != self._next_s[index]:
            self._wakeups[index] += 1
            heappush(self._boundaries, (at_s, index, self._wakeups[index]))
            self.idle_engines -= self._next_s[index] == math.inf
            self._next_s[index] = at_s
