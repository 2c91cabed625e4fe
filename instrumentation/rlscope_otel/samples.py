"""A sample while it is generated: its tokens, stored as ranges sampled by one policy version.

Extending the current range is one comparison and one addition, cheap enough for every request at every decode step.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from rlscope_otel import schema
from rlscope_otel.buffers import RowBuffer
from rlscope_otel.faults import Faults

_REASONS = schema.FINISH_REASONS
VersionRun = tuple[int, int, int]
"""A policy version and the half-open range [start, end) of output tokens that it sampled."""


@dataclass(slots=True)
class SampleSink:
    """Collects finished samples, and knows which are still running, so that a stop can write those as unfinished."""

    buffer: RowBuffer
    now_ns: Callable[[], int]
    faults: Faults
    limit: int
    running: "dict[int, Sample]" = field(default_factory=dict[int, "Sample"])

    def finish_running(self) -> None:
        """Write every running sample with the finish reason `unfinished`; its length is a lower bound."""
        for sample in list(self.running.values()):
            sample.finish("unfinished")


@dataclass(slots=True, eq=False, repr=False)
class Sample:
    """One segment of a sample on one engine. Its methods never raise; after `finish` they do nothing."""

    _sink: SampleSink
    _sample_id: str
    _group_id: str | None
    _segment: int
    _prompt_tokens: int
    _submitted_ns: int | None
    _version_source: str
    _started_ns: int | None = None
    _torn_tokens: int | None = None
    _version: int | None = None
    """Version of the tokens since `_start`. None before the first token."""
    _start: int = 0
    _end: int = 0
    _runs: list[VersionRun] = field(init=False)
    _finished: bool = False

    def __post_init__(self) -> None:
        self._runs = []
        if len(self._sink.running) < self._sink.limit:
            self._sink.running[id(self)] = self

    @property
    def versions(self) -> tuple[VersionRun, ...]:
        """The completed ranges of tokens; after `finish`, all of them."""
        return tuple(self._runs)

    def started(self, at_ns: int | None = None) -> None:
        """Record that it was first scheduled, now or at `at_ns`."""
        if self._started_ns is None:
            self._started_ns = self._sink.now_ns() if at_ns is None else at_ns

    def tokens(self, count: int, version: int) -> None:
        """Record `count` more output tokens, sampled by a policy version."""
        try:
            if count > 0 and not self._finished:
                end, before = self._end, self._version
                if version != before:
                    if before is not None and end > self._start:
                        self._runs.append((before, self._start, end))
                    self._start, self._version = end, version
                self._end = end + count
        except Exception as error:  # A host's own number type may fail in any way.
            self._sink.faults.note("sample tokens", error)

    def torn(self, count: int) -> None:
        """Record that `count` of the tokens were sampled while weights were loaded without pausing generation."""
        try:
            self._torn_tokens = (self._torn_tokens or 0) + count
        except Exception as error:  # A host's own number type may fail in any way.
            self._sink.faults.note("sample torn", error)

    def finish(
        self,
        reason: str | None = "stop",
        at_ns: int | None = None,
        *,
        preemptions: int | None = None,
        cached_tokens: int | None = None,
        env_wait_ns: int | None = None,
    ) -> None:
        """Record the end of the segment, now or at `at_ns`; only the first call counts."""
        if self._finished:
            return
        self._finished = True
        sink = self._sink
        sink.running.pop(id(self), None)
        if reason is not None and not sink.faults.knows(
            "sample finish", "reason", reason, _REASONS, "recorded as NULL"
        ):
            reason = None
        if self._version is not None and self._end > self._start:
            self._runs.append((self._version, self._start, self._end))
        sink.buffer.add(
            (
                self._sample_id,
                self._segment,
                self._group_id,
                self._submitted_ns,
                self._started_ns,
                sink.now_ns() if at_ns is None else at_ns,
                self._prompt_tokens,
                self._end,
                self._runs,
                self._version_source,
                self._torn_tokens,
                reason,
                preemptions,
                cached_tokens,
                env_wait_ns,
            )
        )
