"""What connects the processes: weights, gate, stop signal and pipes. The launcher makes it, every worker gets it."""

import ctypes
import os
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext

from examples.pipeline_rl.gate import Gate, Limits
from examples.pipeline_rl.mailbox import WeightMailbox
from examples.pipeline_rl.options import Options


class StopSignal:
    """One flag in shared memory; a worker whose launcher is gone is also told to stop."""

    def __init__(self, context: SpawnContext) -> None:
        self._flag = context.RawValue(ctypes.c_bool, False)
        self._launcher_pid = os.getpid()

    def set(self) -> None:
        """Tell every process to finish what it is at and stop."""
        self._flag.value = True

    def is_set(self) -> bool:
        """Whether to stop; never blocks."""
        return self._flag.value or os.getpid() != self._launcher_pid != os.getppid()


@dataclass(frozen=True, slots=True)
class Links:
    """One end of everything, as one worker sees it."""

    run_id: str
    mailbox: WeightMailbox
    gate: Gate
    stop: StopSignal
    groups: tuple[Connection, ...]
    """Pipes of finished groups: the lead trainer has a reading end per sampler, a sampler its own writing end."""
    peers: tuple[Connection, ...]
    """Pipes of shares of a batch: the lead trainer has a writing end per peer, a peer its own reading end."""
    rendezvous: str
    """A file by which the trainers find each other; it is not there yet."""
    result: Connection
    """Where the worker sends its own count of what it did, once, at its end."""


def limits_of(options: Options) -> Limits:
    """The gate's limits for these options."""
    admission = options.staleness_policy == "admission" and not options.synchronous
    return Limits(
        samples_per_step=options.batch,
        samples_per_publication=options.batch * options.publish_every,
        queue_capacity_samples=options.queue_capacity_samples,
        max_in_flight_samples=options.max_in_flight_samples,
        admission_staleness=options.max_staleness if admission else None,
    )
