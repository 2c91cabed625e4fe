"""When at least one request ran, from the times of requests that come in any order: what a sampler did, inferred."""

from typing import Final

from rlscope.importers.target import ImportTarget
from rlscope.trace.imported import Certainty

_HELD: Final = 100_000
"""Spans held before those that touch are merged, so that memory grows with the idle stretches and not the requests."""


class InFlight:
    """The union of the times of one worker's requests."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int]] = []
        self._merge_at = _HELD

    def add(self, start_ns: int | None, end_ns: int) -> None:
        """A request that ran from start to end; one without a start is left out."""
        if start_ns is None or end_ns <= start_ns:
            return
        self._spans.append((start_ns, end_ns))
        if len(self._spans) >= self._merge_at:
            self._spans = self.spans()
            self._merge_at = max(_HELD, 2 * len(self._spans))

    def spans(self) -> list[tuple[int, int]]:
        """The stretches with a request, in order and without any that touch."""
        merged: list[tuple[int, int]] = []
        for start_ns, end_ns in sorted(self._spans):
            if merged and start_ns <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end_ns, merged[-1][1]))
            else:
                merged.append((start_ns, end_ns))
        return merged

    def write(self, worker_id: str, target: ImportTarget) -> None:
        """Add what the worker did: it generated while a request ran, and had none between."""
        spans = self.spans()
        end_ns: int | None = None
        for span in spans:
            if end_ns is not None:
                wait = {"activity": "wait", "reason": "requests", "start_ns": end_ns, "end_ns": span[0]}
                target.add("activities", {"worker_id": worker_id, **wait})
            target.add(
                "activities",
                {"worker_id": worker_id, "activity": "generate", "start_ns": span[0], "end_ns": span[1]},
            )
            end_ns = span[1]
        if spans:
            target.extend_worker(worker_id, spans[0][0], spans[-1][1])
            target.say_origin(
                "activities",
                Certainty.INFERRED,
                "samplers generate while a request is running and wait for requests otherwise",
            )
