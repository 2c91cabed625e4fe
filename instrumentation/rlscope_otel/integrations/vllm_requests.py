"""The requests of one vLLM engine: which tokens of each were sampled by which version.

Tokens are counted in the engine core, where they are sampled. A front end that finds a stop string discards the tokens
after it and aborts the request: such a row has no finish reason, since an abort by the client looks the same here. A
session that gets more input while it runs (`resumable`) is recorded up to its first stop. With `n` above 1 the engine
runs one request per response: its sample is the named sample and `/index`, in the group of that name, or vLLM's own
`index_request` where no name was sent.
"""

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rlscope_otel import schema
from rlscope_otel.integrations.host import engine_samples_wanted
from rlscope_otel.integrations.request_ids import RequestName, name_of
from rlscope_otel.integrations.weights import Weights
from rlscope_otel.recorder import Run

_REASONS = {"stop": "stop", "length": "length", "abort": "abort", "error": "error", "repetition": "stop"}
"""vLLM's finish reasons in the words of the format; `repetition` is a stop that the engine decided on."""

_OWN_SUFFIX = re.compile(r"-[0-9a-f]{8}$")
_CHILD_PREFIX = re.compile(r"(\d+)_")
_NS_PER_S = 1_000_000_000
# A front end that says the request came longer ago than this does not mean the wall clock.
_LONGEST_ON_ITS_WAY_NS = 600 * _NS_PER_S


@dataclass(slots=True)
class Request:
    """A request between its arrival and its end."""

    host: Any
    submitted_ns: int
    source: str
    started_ns: int | None = None
    cached_tokens: int | None = None
    torn_tokens: int = 0
    counted: int = 0
    runs: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Tokens and the version that sampled them, in order, up to the last change of version."""

    def count_up_to_now(self, version: int, source: str) -> None:
        """Everything sampled since the last count was sampled by this version."""
        sampled = int(self.host.num_output_tokens)
        if sampled > self.counted:
            self.runs.append((sampled - self.counted, version))
            self.counted = sampled
            if source != self.source:
                # A sample is as certain as its least certain token.
                self.source = max(self.source, source, key=schema.VERSION_SOURCES.index)


class Requests:
    """All requests of one engine that have not ended."""

    def __init__(self, run: Run, weights: Weights, ids_have_suffix: bool) -> None:
        self._run = run
        self._weights = weights
        self._ids_have_suffix = ids_have_suffix
        self._wanted = engine_samples_wanted()
        self._running: dict[str, Request] = {}
        weights.before_change(self._count_all)

    def arrived(self, host: Any) -> None:
        """The engine took a request. One that samples no tokens, as of a reward model, is none of ours.

        Where a framework's hook records the samples, none is.
        """
        if self._wanted and host.sampling_params is not None and host.request_id not in self._running:
            self._running[host.request_id] = Request(host, self._submitted_ns(host), self._weights.source)

    def scheduled(self, scheduled: Iterable[Any], at_ns: int) -> None:
        """These went into a forward pass for the first time."""
        for new in scheduled:
            request = self._running.get(new.req_id)
            if request is not None and request.started_ns is None:
                request.started_ns = at_ns
                request.cached_tokens = int(new.num_computed_tokens)

    def sampled(self, outputs: Iterable[Any], ended: Iterable[Any], at_ns: int, torn: bool) -> None:
        """Take in the outputs of a pass. The requests in `ended` end with it."""
        if torn:
            for output in outputs:
                request = self._running.get(output.request_id)
                if request is not None:
                    request.torn_tokens += len(output.new_token_ids)
        for output in ended:
            self.ended(output.request_id, str(output.finish_reason), at_ns)

    def removed(self, hosts: Iterable[Any], by_id: bool, at_ns: int) -> None:
        """Something outside the passes ended these requests: an abort of all, or of some by their ids."""
        for host in hosts:
            reason = str(host.get_finished_reason())
            may_be_a_stop_string = by_id and reason == "abort" and bool(getattr(host.sampling_params, "stop", None))
            self.ended(host.request_id, None if may_be_a_stop_string else reason, at_ns)

    def ended(self, request_id: str, reason: str | None, at_ns: int) -> None:
        """Write the row of a request; a request that is not known, or ended before, has none."""
        request = self._running.pop(request_id, None)
        if request is not None:
            self._write(request, _REASONS.get(reason) if reason is not None else None, at_ns)

    def close(self, at_ns: int) -> None:
        """Write what is still running as unfinished."""
        running, self._running = list(self._running.values()), {}
        for request in running:
            self._write(request, "unfinished", at_ns)

    def _count_all(self) -> None:
        for request in self._running.values():
            request.count_up_to_now(self._weights.version, self._weights.source)

    def _write(self, request: Request, reason: str | None, at_ns: int) -> None:
        request.count_up_to_now(self._weights.version, self._weights.source)
        sample = self._run.sample(
            *self._name_of(request.host.request_id),
            int(request.host.num_prompt_tokens),
            request.submitted_ns,
            request.source,
        )
        if request.started_ns is not None:
            sample.started(request.started_ns)
        for tokens, version in request.runs:
            sample.tokens(tokens, version)
        if request.torn_tokens:
            sample.torn(request.torn_tokens)
        preemptions = getattr(request.host, "num_preemptions", None)
        sample.finish(reason, at_ns, preemptions=preemptions, cached_tokens=request.cached_tokens)

    def _name_of(self, request_id: str) -> RequestName:
        """The sample that a request generates; vLLM's random suffix is not part of what the client named."""
        given = _OWN_SUFFIX.sub("", request_id) if self._ids_have_suffix else request_id
        name = name_of(given)
        child = None if name.sample_id == given else _CHILD_PREFIX.match(given)
        if child is None:
            return name
        return RequestName(f"{name.sample_id}/{child[1]}", name.group_id or name.sample_id, name.segment)

    def _submitted_ns(self, host: Any) -> int:
        """When the front end got the request: its wall clock, laid on the run's clock by the time that has passed."""
        now_ns = self._run.now_ns()
        on_its_way_ns = time.time_ns() - int(host.arrival_time * _NS_PER_S)
        return now_ns - on_its_way_ns if 0 <= on_its_way_ns <= _LONGEST_ON_ITS_WAY_NS else now_ns
