"""Who may start and who may queue: counters in shared memory that samplers and the trainer keep together."""

import ctypes
from dataclasses import dataclass
from multiprocessing.context import SpawnContext
from typing import Final

NO_OPEN_GROUP: Final = 2**62


@dataclass(frozen=True, slots=True)
class Limits:
    """What the gate allows; None is no limit. All in samples except `max_staleness`, in publications."""

    samples_per_step: int
    samples_per_publication: int
    queue_capacity: int
    max_in_flight: int | None
    admission_staleness: int | None
    """With the policy `admission`: how many publications ahead samplers may generate."""


class Gate:
    """Every counter has one writer: a sampler its own entries, the trainer `taken` and `published`."""

    def __init__(self, context: SpawnContext, samplers: int, limits: Limits) -> None:
        self.limits = limits
        self._lock = context.Lock()
        self._admitted = context.RawArray(ctypes.c_int64, samplers)
        self._queued = context.RawArray(ctypes.c_int64, samplers)
        self._oldest_open = context.RawArray(ctypes.c_int64, [NO_OPEN_GROUP] * samplers)
        self._taken = context.RawValue(ctypes.c_int64, 0)
        self._allowed = context.RawValue(ctypes.c_int64, 0)

    def depth(self) -> int:
        """Samples in the queue."""
        return sum(self._queued) - self._taken.value

    def has_room(self, samples: int) -> bool:
        """Whether the queue takes so many more."""
        return self.depth() + samples <= self.limits.queue_capacity

    def may_start(self, samples: int) -> bool:
        """Whether so many more samples may start without breaking the limits on what is in flight."""
        admitted = sum(self._admitted)
        in_flight_ok = (
            self.limits.max_in_flight is None or admitted - self._taken.value + samples <= self.limits.max_in_flight
        )
        return in_flight_ok and (self.limits.admission_staleness is None or admitted + samples <= self._allowed.value)

    def try_start(self, sampler: int, samples: int) -> bool:
        """Count the samples as in flight if the limits allow it."""
        with self._lock:
            if not self.may_start(samples):
                return False
            self._admitted[sampler] += samples
            return True

    def try_queue(self, sampler: int, samples: int) -> bool:
        """Count the samples as queued if there is room; the caller then sends them."""
        with self._lock:
            if not self.has_room(samples):
                return False
            self._queued[sampler] += samples
            return True

    def take(self, samples: int) -> None:
        """The trainer took samples out of the queue, to train on them or to throw them away."""
        self._taken.value += samples

    def note_published(self, version: int, discarded_samples: int) -> None:
        """Let samplers generate up to `admission_staleness` publications ahead of the version.

        What was thrown away used up no training step, so it is added to what may start.
        """
        if self.limits.admission_staleness is not None:
            publications = version + self.limits.admission_staleness + 1
            self._allowed.value = publications * self.limits.samples_per_publication + discarded_samples

    def note_oldest_open(self, sampler: int, version: int) -> None:
        """The oldest version among the groups that a sampler has started and not yet queued."""
        self._oldest_open[sampler] = version

    def oldest_open(self) -> int:
        """The oldest version among all groups that are started and not yet queued."""
        return min(self._oldest_open)
