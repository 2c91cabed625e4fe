"""Places for requests that stand empty, and engines that stand idle, integrated over time by what keeps them so."""

from dataclasses import dataclass, field
from typing import Literal

HoldCause = Literal["backpressure", "staleness_cap", "weight_updates", "environment"]
"""backpressure: the queue is full, or the trainer is behind. staleness_cap: a limit on what is in flight.
weight_updates: the engine finishes what it has before it takes weights. environment: samples outside hold places."""


def _nothing() -> dict[HoldCause, float]:
    return {"backpressure": 0.0, "staleness_cap": 0.0, "weight_updates": 0.0, "environment": 0.0}


@dataclass(frozen=True, slots=True)
class PlaceTotals:
    """Sums since the start, by cause."""

    idle_s: dict[HoldCause, float] = field(default_factory=_nothing)
    """Engine-seconds without a request."""
    empty_s: dict[HoldCause, float] = field(default_factory=_nothing)
    """Place-seconds without a request."""


class PlaceAccount:
    """One cause at a time, for all engines: the limits are the run's, not an engine's."""

    def __init__(self) -> None:
        self._totals = PlaceTotals()
        self._since_s = 0.0
        self._idle_engines = self._empty = self._outside = 0
        self._cause: HoldCause = "backpressure"
        self.is_full = True
        """Whether, by the last note, nothing was idle, empty or outside."""

    def note(self, now_s: float, idle_engines: int, empty: int, outside: int, cause: HoldCause) -> None:
        """From now on so many engines are idle, so many places empty, and so many held by samples outside."""
        self._book(now_s)
        self._idle_engines, self._empty, self._outside, self._cause = idle_engines, empty, outside, cause
        self.is_full = not (idle_engines or empty or outside)

    def totals_at(self, now_s: float) -> PlaceTotals:
        """The totals at a moment that is not before the last note."""
        self._book(now_s)
        return PlaceTotals(dict(self._totals.idle_s), dict(self._totals.empty_s))

    def _book(self, now_s: float) -> None:
        span_s, cause = now_s - self._since_s, self._cause
        self._since_s = now_s
        self._totals.idle_s[cause] += self._idle_engines * span_s
        self._totals.empty_s[cause] += self._empty * span_s
        self._totals.empty_s["environment"] += self._outside * span_s
