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
    queue_capacity_samples: int
    max_in_flight_samples: int | None
    admission_staleness: int | None
    """With the policy `admission`: how many publications ahead samplers may generate."""


class Gate:
    """Every counter has one writer: a sampler its own entries, the trainer `taken` and `discarded`."""

    def __init__(self, context: SpawnContext, samplers: int, limits: Limits) -> None:
        self.limits = limits
        self._lock = context.Lock()
        self._admitted = context.RawArray(ctypes.c_int64, samplers)
        self._queued = context.RawArray(ctypes.c_int64, samplers)
        self._oldest_running = context.RawArray(ctypes.c_int64, [NO_OPEN_GROUP] * samplers)
        self._oldest_open = context.RawArray(ctypes.c_int64, [NO_OPEN_GROUP] * samplers)
        self._taken = context.RawValue(ctypes.c_int64, 0)
        self._discarded = context.RawValue(ctypes.c_int64, 0)

    def depth(self) -> int:
        """Samples in the queue."""
        return sum(self._queued) - self._taken.value

    def has_room(self, samples: int) -> bool:
        """Whether the queue takes so many more."""
        return self.depth() + samples <= self.limits.queue_capacity_samples

    def may_start(self, samples: int, version: int) -> bool:
        """Whether so many more samples may start under a policy version without breaking a limit on what is in flight.

        With `admission_staleness` samplers generate at most that many publications ahead of the version they hold.
        What was thrown away used up no training step, so it may be started again.
        """
        limits, admitted = self.limits, sum(self._admitted) + samples
        if limits.max_in_flight_samples is not None and admitted - self._taken.value > limits.max_in_flight_samples:
            return False
        if limits.admission_staleness is None:
            return True
        publications = version + limits.admission_staleness + 1
        return admitted <= publications * limits.samples_per_publication + self._discarded.value

    def try_start(self, sampler: int, samples: int, version: int) -> bool:
        """Count the samples as in flight if the limits allow it."""
        with self._lock:
            if not self.may_start(samples, version):
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

    def note_discarded(self, samples: int) -> None:
        """Samples that were taken and not trained on."""
        self._discarded.value += samples

    def note_oldest(self, sampler: int, running_version: int, open_version: int) -> None:
        """The oldest version among a sampler's groups that still generate, and among all it has not yet queued."""
        self._oldest_running[sampler] = running_version
        self._oldest_open[sampler] = open_version

    def oldest_running(self) -> int:
        """The oldest version among all groups that still generate."""
        return min(self._oldest_running)

    def oldest_open(self) -> int:
        """The oldest version among all groups that are started and not yet queued."""
        return min(self._oldest_open)
