"""The clocks of the hosts of a run in progress: compared every few minutes by the rows in memory, and corrected.

What is read stays as it was written. Tables are corrected when buckets are computed from them, by the code that
corrects a finished run, and the times of worker files here. A tick that was evaluated before a clock was found to be
off is not evaluated again.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from rlscope.format import duration
from rlscope.trace.clocks import Found, HostClock, estimate_run_clocks, offsets_ns
from rlscope.trace.files import host_of, is_integer
from rlscope.trace.store import OpenRun

_OFTEN_NS: Final = 60_000_000_000
"""Between two comparisons while rows are few."""
_SELDOM_NS: Final = 300_000_000_000
_EARLY: Final = 10
"""Comparisons that are made often."""
_TIMES: Final = ("started_ns", "stopped_ns", "last_flush_ns")


class LiveClocks:
    """How far the hosts' clocks are off, as far as it is known."""

    def __init__(self) -> None:
        self.found: Found | None = None
        """What `open_rows` corrects tables by; None before two hosts were compared."""
        self._compared = 0
        self._compared_ns = 0
        self._hosts: dict[str, str] = {}
        self._corrected: dict[str, HostClock] = {}

    def is_due(self, documents: Sequence[Mapping[str, object]], until_ns: int) -> bool:
        """Whether the clocks are to be compared, by rows up to then; never where there is one host."""
        self._hosts = {str(each["worker_id"]): host for each in documents if (host := host_of(each)) is not None}
        pause_ns = _OFTEN_NS if self._compared < _EARLY else _SELDOM_NS
        return len(set(self._hosts.values())) > 1 and (not self._compared or until_ns - self._compared_ns >= pause_ns)

    def compare(self, run: OpenRun, documents: Sequence[Mapping[str, object]], until_ns: int) -> None:
        """Estimate the clocks from rows as they were written; documents: those of the worker files."""
        self._compared, self._compared_ns = self._compared + 1, until_ns
        found = estimate_run_clocks(run.connection, documents)
        if self.found is None or not self._agrees(found, until_ns):
            self.found = found
            self._corrected = {each.host: each for each in found.clocks.hosts if each.is_corrected}

    def ahead_ns(self, worker_id: str, instant_ns: int) -> int:
        """How far the clock of a worker is ahead when it reads instant_ns; 0 for one that is not corrected."""
        clock = self._corrected.get(self._hosts.get(worker_id, ""))
        return 0 if clock is None else _ahead_ns(clock, instant_ns)

    def ahead_at(self, instant_ns: int) -> dict[str, int]:
        """By worker, how far the clocks that are corrected are ahead at about that time."""
        own = {host: _ahead_ns(clock, instant_ns) for host, clock in self._corrected.items()}
        return {worker_id: own[host] for worker_id, host in self._hosts.items() if host in own}

    def corrected(self, documents: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
        """The documents of worker files with their times corrected."""
        if not self._corrected:
            return [dict(document) for document in documents]
        return [
            document
            | {
                name: value - self.ahead_ns(str(document["worker_id"]), value)
                for name in _TIMES
                if is_integer(value := document.get(name))
            }
            for document in map(dict, documents)
        ]

    def corrected_ends(self, last_ns: Mapping[str, int]) -> dict[str, int]:
        """The end of each worker's latest row, corrected."""
        return {worker_id: instant - self.ahead_ns(worker_id, instant) for worker_id, instant in last_ns.items()}

    def notes(self) -> tuple[str, ...]:
        """One sentence for each clock that is off."""
        clocks = () if self.found is None else self.found.clocks.hosts
        return tuple(_note(each) for each in clocks if each.estimate.is_off)

    def _agrees(self, found: Found, at_ns: int) -> bool:
        """Whether a new estimate gives no reason to leave the last one: it is no more exact, or about the same."""
        assert self.found is not None
        new = {each.host: each for each in found.clocks.hosts}
        if any(each.is_corrected and host not in self._corrected for host, each in new.items()):
            return False
        return all(
            (each := new.get(host)) is None
            or each.uncertainty_ns is None
            or abs(_ahead_ns(each, at_ns) - _ahead_ns(old, at_ns)) <= each.uncertainty_ns
            for host, old in self._corrected.items()
        )


def _ahead_ns(clock: HostClock, instant_ns: int) -> int:
    return int(offsets_ns(np.array([instant_ns], np.int64), clock.estimate.stretches)[0])


def _note(clock: HostClock) -> str:
    offset_ns = clock.estimate.stretches[0].offset_ns
    if not clock.is_corrected:
        known_ns = [each for each in (clock.estimate.least_ns, clock.estimate.most_ns) if each is not None]
        least = duration(min(map(abs, known_ns)) / 1e9) if known_ns else "an unknown time"
        return f"clock of {clock.host}: off by at least {least} against {clock.against}; not corrected, too uncertain"
    side = "ahead of" if offset_ns > 0 else "behind"
    uncertain = duration((clock.uncertainty_ns or 0) / 1e9)
    return (
        f"clock of {clock.host}: {duration(abs(offset_ns) / 1e9)} {side} {clock.against} (uncertainty {uncertain}); "
        "its times are corrected"
    )
