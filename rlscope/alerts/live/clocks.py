"""Clock correction of a run in progress: the clocks of its hosts are compared every few minutes, by the rows in memory.

Stored rows stay as they were written. Tables are corrected when buckets are computed from them, by the code that
corrects a finished run; the times of worker files are corrected here. Ticks evaluated before a clock error was detected
are not evaluated again, because their alerts were sent. A note reports the last of these ticks for the whole watch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from rlscope.errors import UnreadableDataError
from rlscope.format import duration, instant
from rlscope.trace.clock_offsets import HostClock
from rlscope.trace.clocks import FoundClocks
from rlscope.trace.store import OpenRun, compare_clocks
from rlscope.trace.worker_files import Worker

_OFTEN_NS: Final = 60_000_000_000
"""Time between the first comparisons, while there are few rows."""
_SELDOM_NS: Final = 300_000_000_000
_EARLY: Final = 10
"""Number of comparisons at the short interval."""


class LiveClocks:
    """Known clock errors of the hosts."""

    def __init__(self) -> None:
        self.found: FoundClocks | None = None
        """Clock estimates for `open_rows`. None before two hosts were compared."""
        self._compared = 0
        self._compared_ns = 0
        self._why_not: str | None = None
        self._hosts: dict[str, str] = {}
        self._corrected: dict[str, HostClock] = {}
        self.is_resumed = False
        """Whether an earlier watch of this run evaluated the ticks before the next comparison, by its own estimate."""
        self._late_ns: dict[str, int] = {}
        """Last tick that was evaluated with the uncorrected clock, by host."""

    def is_due(self, workers: Sequence[Worker], until_ns: int) -> bool:
        """Return whether to compare the clocks now, by rows up to until_ns. Never for a single host."""
        self._hosts = {each.worker_id: each.host for each in workers if each.host is not None}
        pause_ns = _OFTEN_NS if self._compared < _EARLY else _SELDOM_NS
        return len(set(self._hosts.values())) > 1 and (not self._compared or until_ns - self._compared_ns >= pause_ns)

    def compare(self, run: OpenRun, workers: Sequence[Worker], until_ns: int, evaluated_ns: int | None) -> int:
        """Estimate the clocks from uncorrected rows and workers.

        Returns the largest correction, in nanoseconds, of a clock that was used for ticks before evaluated_ns. 0 if no
        such clock was corrected.
        """
        self._compared, self._compared_ns = self._compared + 1, until_ns
        try:
            found = compare_clocks(run, workers)
            self._why_not = None
        except UnreadableDataError as error:
            self._why_not = f"clocks cannot be compared: {error}"
            return 0
        before, self.found = self._corrected, found
        self._corrected = {each.host: each for each in found.clocks.hosts if each.is_corrected}
        is_resumed, self.is_resumed = self.is_resumed, False
        if evaluated_ns is None or is_resumed:
            return 0
        moved_ns = self._moved_ns(before, evaluated_ns)
        self._late_ns |= dict.fromkeys(moved_ns, evaluated_ns)
        return max(moved_ns.values(), default=0)

    def _moved_ns(self, before: Mapping[str, HostClock], at_ns: int) -> dict[str, int]:
        """Return by how much the correction of each host changed at a time, if by more than its uncertainty."""
        moved: dict[str, int] = {}
        for host in {*before, *self._corrected}:
            now, old = self._corrected.get(host), before.get(host)
            by_ns = abs((_ahead_ns(now, at_ns) if now else 0) - (_ahead_ns(old, at_ns) if old else 0))
            if by_ns > ((now.uncertainty_ns if now else None) or 0):
                moved[host] = by_ns
        return moved

    def ahead_ns(self, worker_id: str, instant_ns: int) -> int:
        """Return the lead of a worker's clock when it reads instant_ns. 0 if the clock is not corrected."""
        clock = self._corrected.get(self._hosts.get(worker_id, ""))
        return 0 if clock is None else _ahead_ns(clock, instant_ns)

    def ahead_at(self, instant_ns: int) -> dict[str, int]:
        """Return the lead of each corrected clock at about this time, by worker."""
        own = {host: _ahead_ns(clock, instant_ns) for host, clock in self._corrected.items()}
        return {worker_id: own[host] for worker_id, host in self._hosts.items() if host in own}

    def corrected(self, workers: Sequence[Worker]) -> Sequence[Worker]:
        """The workers with their times corrected."""
        return [self._corrected_worker(each) for each in workers] if self._corrected else workers

    def _corrected_worker(self, worker: Worker) -> Worker:
        def corrected(time_ns: int) -> int:
            return time_ns - self.ahead_ns(worker.worker_id, time_ns)

        return replace(
            worker,
            started_ns=corrected(worker.started_ns),
            stopped_ns=None if worker.stopped_ns is None else corrected(worker.stopped_ns),
            last_flush_ns=None if worker.last_flush_ns is None else corrected(worker.last_flush_ns),
        )

    def corrected_ends(self, last_ns: Mapping[str, int]) -> dict[str, int]:
        """The end of each worker's latest row, corrected."""
        return {worker_id: instant - self.ahead_ns(worker_id, instant) for worker_id, instant in last_ns.items()}

    def notes(self) -> tuple[str, ...]:
        """One sentence for each clock that is off."""
        clocks = () if self.found is None else self.found.clocks.hosts
        failed = () if self._why_not is None else (self._why_not,)
        late = (
            f"clock of {host}: found to be off after the ticks until {instant(late_ns)} had been evaluated by it; "
            "they are not evaluated again, `rlscope check` gives the corrected result"
            for host, late_ns in sorted(self._late_ns.items())
        )
        return (*failed, *(_note(each) for each in clocks if each.is_off), *late)


def _ahead_ns(clock: HostClock, instant_ns: int) -> int:
    return int(clock.ahead_ns(np.array([instant_ns], np.int64))[0])


def _note(clock: HostClock) -> str:
    offset_ns = clock.offset_ns
    if not clock.is_corrected:
        known_ns = [each for each in (clock.least_ns, clock.most_ns) if each is not None]
        least = duration(min(map(abs, known_ns)) / 1e9) if known_ns else "an unknown time"
        return f"clock of {clock.host}: off by at least {least} against {clock.against}; not corrected, too uncertain"
    side = "ahead of" if offset_ns > 0 else "behind"
    uncertain = duration((clock.uncertainty_ns or 0) / 1e9)
    return (
        f"clock of {clock.host}: {duration(abs(offset_ns) / 1e9)} {side} {clock.against} (uncertainty {uncertain}); "
        "its times are corrected"
    )
