"""The policy version that transformers' continuous batching samples with, and the duration of each weight update.

The user writes the weights in a block (`Apply`), on any thread. Only the generation loop's thread knows whether and how
long the loop is paused meanwhile, so a paused update is recorded when the loop resumes.
"""

from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from rlscope_otel.recorder import Run


@dataclass(slots=True)
class _Applied:
    """A version that was taken into use."""

    version: int
    label: str | None
    start_ns: int
    end_ns: int


class Weights:
    """The weights of one engine."""

    def __init__(self, run: Run) -> None:
        self.version = 0
        """The policy version in force."""
        self.status: Any = None
        """transformers' `BackgroundThreadStatus`; None while there is no generation loop."""
        self.is_applying = False
        """Whether weights change now under a loop that runs."""
        self.unpaused_applies = 0
        """Number of weight changes while the loop ran."""
        self.run = run
        self._pause_ns: int | None = None
        self._applied: list[_Applied] = []

    def pausing(self, at_ns: int) -> None:
        """The loop is paused from now on."""
        self._pause_ns = at_ns

    def resumed(self, at_ns: int) -> None:
        """The loop goes on: what the pause was for is known."""
        applied, self._applied = self._applied, []
        pause_ns, self._pause_ns = self._pause_ns, None
        if pause_ns is None:
            return
        if not applied:
            self.run.activity("other").between(pause_ns, at_ns)
            return
        applied[0].start_ns, applied[-1].end_ns = pause_ns, at_ns
        for one in applied:
            self._record(one, paused=True)

    def begin(self) -> bool | None:
        """Weights are about to change; returns whether the loop is paused, None when there is no loop."""
        paused = None if self.status is None else bool(getattr(self.status, "_paused", False))
        self.is_applying = paused is False
        return paused

    def end(self, version: int, label: str | None, start_ns: int, paused: bool | None) -> None:
        """All weights are of the version now."""
        self.version = version
        self.is_applying = False
        applied = _Applied(version, label, start_ns, self.run.now_ns())
        if paused:
            self._applied.append(applied)
            return
        self.unpaused_applies += 1
        self._record(applied, paused)

    def fail(self) -> None:
        """The change broke off: tokens go on counting as sampled by the version before it."""
        self.is_applying = False
        self.unpaused_applies += 1

    def _record(self, applied: _Applied, paused: bool | None) -> None:
        update = self.run.apply_weights(applied.version, applied.label, paused=paused, kv="kept")
        update.between(applied.start_ns, applied.end_ns)


class Apply:
    """The block in which weights are written."""

    def __init__(self, weights: Weights, version: int, label: str | None) -> None:
        self._weights, self._version, self._label = weights, version, label
        self._start_ns = 0
        self._paused: bool | None = None

    def __enter__(self) -> Self:
        self._start_ns, self._paused = self._weights.run.now_ns(), self._weights.begin()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self._weights.end(self._version, self._label, self._start_ns, self._paused)
        else:
            self._weights.fail()
