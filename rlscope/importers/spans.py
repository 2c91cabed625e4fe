"""Merge the time spans of a sampler, which come in any order: those of its requests, or those without any."""

from typing import Final

from rlscope.frameworks.table import PhaseKind
from rlscope.importers.target import ImportTarget
from rlscope.trace.imported import Certainty
from rlscope.trace.ranges import joined

_REQUESTS: Final = "samplers generate while a request is running and wait for requests otherwise"
_HELD: Final = 100_000
"""Spans kept before adjacent ones are merged, so that memory grows with the number of idle gaps, not of requests."""


class Spans:
    """Union of time spans of one worker: those of its requests, unless said otherwise."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int]] = []
        self._merge_at = _HELD

    def add(self, start_ns: int | None, end_ns: int) -> None:
        """Add a span; one without a start is ignored."""
        if start_ns is None or end_ns <= start_ns:
            return
        self._spans.append((start_ns, end_ns))
        if len(self._spans) >= self._merge_at:
            self._spans = self.spans()
            self._merge_at = max(_HELD, 2 * len(self._spans))

    def spans(self) -> list[tuple[int, int]]:
        """Return the spans in order and merged."""
        return joined(sorted(self._spans))

    def write_idle(self, worker_id: str, target: ImportTarget) -> None:
        """Add the spans as the worker's times without requests."""
        for span in self.spans():
            target.add_phase(worker_id, PhaseKind.WAIT_REQUESTS, *span)

    def write(self, worker_id: str, target: ImportTarget, rule: str = _REQUESTS) -> None:
        """Add the worker's activities: it generated in the spans, and had no requests between them."""
        spans = self.spans()
        end_ns: int | None = None
        for span in spans:
            if end_ns is not None:
                target.add_phase(worker_id, PhaseKind.WAIT_REQUESTS, end_ns, span[0])
            target.add_phase(worker_id, PhaseKind.GENERATE, *span)
            end_ns = span[1]
        if spans:
            target.extend_worker(worker_id, spans[0][0], spans[-1][1])
            target.say_origin("activities", Certainty.INFERRED, rule)
