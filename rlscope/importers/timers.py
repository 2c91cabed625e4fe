"""Named timers whose start and end a console prints with timestamps, and the spans of a worker that they give."""

import re
from dataclasses import dataclass
from itertools import chain
from typing import Final

from rlscope.frameworks.table import Framework
from rlscope.importers.quantities import SECOND_NS, factors_in, to_ns

_FITS_WITHIN_NS: Final = 1_100_000_000
"""Maximum difference between two timestamps in whole seconds and a duration printed to a tenth of a second."""


class PrintedSettings:
    """Settings that a console prints somewhere, by the last part of their paths in the framework's table."""

    def __init__(self, framework: Framework) -> None:
        self._values: dict[str, int | bool] = {}
        paths = factors_in(chain(*framework.settings.values())) | {
            *framework.placement.separate_settings,
            *framework.placement.colocated_settings,
        }
        self._leaves = {path: path.rpartition(".")[2] for path in paths}
        names = set(self._leaves.values())
        self._missing = {name: re.compile(rf"\b{name}['\"]?[ .=:]+(\d{{1,9}}|[Tt]rue|[Ff]alse)\b") for name in names}

    def read(self, text: str) -> None:
        """Read a line; the first value of a setting counts."""
        for name, pattern in [*self._missing.items()]:
            if name in text and (found := pattern.search(text)):
                self._values[name] = int(found[1]) if found[1].isdecimal() else found[1].lower() == "true"
                del self._missing[name]

    @property
    def config(self) -> dict[str, int | bool]:
        """The settings that were printed, by path."""
        return {path: self._values[name] for path, name in self._leaves.items() if name in self._values}


@dataclass(slots=True, eq=False)
class _Started:
    """A running timer."""

    start_ns: int
    inner_ns: int | None = None
    """Start of the first timer that began since."""


class Timers:
    """The timers of one process, which follow each other or are nested.

    Timestamps in whole seconds give a time to within a second, but durations are printed with more digits. A start is
    placed as early in its second as the previous timers and the timestamp of its end allow, and the end one duration
    later.
    """

    def __init__(self, worker_id: str) -> None:
        self.worker_id = worker_id
        self.first_ns: int | None = None
        self.last_ns = 0
        self.unpaired = 0
        """Number of timer ends whose start is not in the file."""
        self._open: dict[str, list[_Started]] = {}

    def start(self, name: str, stamp_ns: int) -> None:
        """Start a timer. If tasks overlap, so do their timers of the same name."""
        start_ns = self._move(stamp_ns)
        for each in chain.from_iterable(self._open.values()):
            each.inner_ns = start_ns if each.inner_ns is None else each.inner_ns
        self._open.setdefault(name, []).append(_Started(start_ns))

    def end(self, name: str, stamp_ns: int, elapsed_s: float | None = None) -> tuple[int, int]:
        """End a timer and return its start and end. If its start is not in the file, it began one duration before."""
        length_ns = to_ns(elapsed_s or 0.0)
        started = self._take_start(name, stamp_ns, None if elapsed_s is None else length_ns)
        if started is None:
            self.unpaired += 1
            end_ns = self._move(stamp_ns)
            self.first_ns = min(self.first_ns or end_ns, end_ns - length_ns)
            return end_ns - length_ns, end_ns
        started_ns, end_ns = started.start_ns, stamp_ns
        if elapsed_s is not None and stamp_ns % SECOND_NS == 0:
            end_ns = min(max(started_ns + length_ns, stamp_ns), stamp_ns + SECOND_NS)
            # The timer began later in its second, because the printed duration is finer than the timestamps.
            latest_ns = end_ns - length_ns if started.inner_ns is None else min(started.inner_ns, end_ns - length_ns)
            started_ns = max(started_ns, latest_ns)
        return started_ns, self._move(max(end_ns, started_ns))

    def _take_start(self, name: str, stamp_ns: int, length_ns: int | None) -> _Started | None:
        """Remove and return the start of this name that fits the duration best; None if none fits."""
        starts = self._open.get(name)
        if not starts:
            return None
        if length_ns is None:
            return starts.pop()
        best = min(starts, key=lambda each: abs(stamp_ns - length_ns - each.start_ns))
        if abs(stamp_ns - length_ns - best.start_ns) > _FITS_WITHIN_NS:
            return None
        starts.remove(best)
        return best

    def _move(self, time_ns: int) -> int:
        """Return the time, moved forward to the last known time if it is less than a second earlier."""
        moved_ns = max(time_ns, self.last_ns) if self.last_ns - time_ns < SECOND_NS else time_ns
        self.first_ns = moved_ns if self.first_ns is None else min(self.first_ns, moved_ns)
        self.last_ns = max(self.last_ns, moved_ns)
        return moved_ns
