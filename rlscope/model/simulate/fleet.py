"""All engines: whose boundary is next, and which engine a sample goes to: the least loaded, sample by sample.

Not covered: dispatch that keeps a group, or a conversation, on one engine.
"""

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
        self.places = places_per_engine * len(self.engines)
        self._load = [0] * len(self.engines)
        """Running and waiting requests."""
        self.loaded = 0
        """Of all engines together."""
        self.open_places = self.places
        """Free places on the engines that take requests."""
        self.idle_engines = len(self.engines)
        self._boundaries: list[tuple[float, int, int]] = []
        """(time, engine, wake-up): void unless the wake-up is the engine's last."""
        self._wakeups = [0] * len(self.engines)
        self._next_s = [math.inf] * len(self.engines)
        self._at_boundary = NEVER
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

    def swap(self, newcomer: int, before_s: float) -> int:
        """Cross the next boundary, if it is before a moment and lets the newcomer replace the one that finishes there.

        Returns the finished sample and leaves the time in `swapped_s`; NEVER, with nothing done, where it is not so
        simple. All places must be taken.
        """
        boundaries = self._boundaries
        now_s, index, wakeup = boundaries[0]
        if now_s >= before_s or wakeup != self._wakeups[index]:
            return NEVER
        engine = self.engines[index]
        finished = engine.swap(now_s, newcomer)
        if finished >= 0:
            self._next_s[index] = engine.next_s
            heapreplace(boundaries, (engine.next_s, index, wakeup))
            self.swapped_s = now_s
        return finished

    def reach_boundary(self) -> Sequence[int]:
        """Bring the engine that is next to its boundary; returns the samples that finish there.

        What follows from it may be dispatched before `leave_boundary` lets the engine go on.
        """
        now_s, index, _ = self._boundaries[0]
        self._at_boundary = index
        engine = self.engines[index]
        finished = engine.settle(now_s)
        if finished:
            count = len(finished)
            self._load[index] -= count
            self.loaded -= count
            if self._load[index] < _CLOSED:
                self.open_places += count
        if engine.new_version != NEVER and engine.take_weights() and self._drains:
            self._load[index] -= _CLOSED
            self.open_places += self._places_per_engine - self._load[index]
        return finished

    def leave_boundary(self, now_s: float) -> None:
        """Let the engine at its boundary go on, with what was dispatched to it."""
        index, self._at_boundary = self._at_boundary, NEVER
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

    def dispatch(self, sample: int) -> None:
        """Give a sample to the engine with the fewest requests; there must be an open place, and `wake` must follow."""
        load = self._load
        index = self._at_boundary
        if index < 0 or self.open_places > self._places_per_engine - load[index]:
            index = load.index(min(load))
        load[index] += 1
        self.loaded += 1
        self.open_places -= 1
        self.engines[index].waiting.append(sample)
        if index != self._at_boundary:
            self._called.add(index)

    def wake(self, now_s: float) -> None:
        """Let the engines that were given something meet it at their next boundary."""
        for index in self._called:
            self._wake(index, now_s)
        self._called.clear()

    def publish(self, version: int, now_s: float) -> None:
        """Offer new weights to every engine; each takes them at its next boundary, or when it is empty."""
        for index, engine in enumerate(self.engines):
            if self._drains and engine.new_version == NEVER:
                self.open_places -= self._places_per_engine - self._load[index]
                self._load[index] += _CLOSED
            engine.new_version = version
            if not self._drains or not engine.running:
                self._wake(index, now_s)

    def oldest_version(self) -> int:
        """The oldest version that an engine would give the next token."""
        return min(engine.version for engine in self.engines)

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
