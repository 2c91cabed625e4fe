"""The requests of one vLLM engine: which tokens of each were sampled by which version.

Tokens are counted in the engine core, where they are sampled. A front end that finds a stop string discards the tokens
after it and aborts the request: such a row has no finish reason, since an abort by the client looks the same here. A
session that gets more input while it runs (`resumable`) is recorded up to its first stop. With `n` above 1 the engine
runs one request per response: its sample is the named sample and `/index`, in the group of that name, or vLLM's own
`index_request` where no name was sent.
"""

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from rlscope_otel import schema
from rlscope_otel.integrations.host import engine_samples_wanted
from rlscope_otel.integrations.pauses import Pause
from rlscope_otel.integrations.request_ids import RequestName, name_of
from rlscope_otel.integrations.versions import VersionNames
from rlscope_otel.recorder import Run

# The weights of one vLLM engine: which version samples, and when it was loaded.
#
# The version of a token is vLLM's own label when its pass ends, as in vLLM's `weight_versions`. Updates without a
# label are counted, and the version source is `time_join`. An update is `paused` if no forward pass ran between its
# first and its last call. Tokens of passes that did run are torn; so are, in an engine with labels, those sampled
# between the end of an update and its label.


_DRAFT_BEGINNING = "start_draft_weight_update"
_BEGINNING = ("start_weight_update", _DRAFT_BEGINNING)
_ENDING = "finish_weight_update"

WEIGHT_CALLS = frozenset((*_BEGINNING, "update_weights", "reload_weights", _ENDING))
"""Calls that change weights. Those that load are part of an update that was begun, or an update of their own."""


def least_certain(*sources: str) -> str:
    """Return the least reliable of several version sources."""
    return max(sources, key=schema.VERSION_SOURCES.index)


@dataclass(slots=True)
class Update:
    """New weights on their way into the engine."""

    start_ns: int
    end_ns: int
    kv_recomputed: bool
    is_open: bool
    is_of_draft: bool = False
    """A draft model proposes tokens and samples none: its weights are no policy version."""
    label: str | None = None
    passes_meanwhile: int = 0
    calls_ns: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """When the engine was paused for a call of the update."""


class Weights:
    """Follows the calls that change an engine's weights."""

    def __init__(self, run: Run, label: object, source: str) -> None:
        self._run = run
        self._names = VersionNames()
        self.version = self._names.applied(label)
        """The version that samples now."""
        self.source = source
        self.updates_begun = 0
        self._has_labels = bool(self.version)
        self._update: Update | None = None
        self._kv_was_reset = False
        self.is_changing = False
        """Whether the next pass has to be told of, by `pass_begins`."""
        self._counted = 0
        self._before_change: Callable[[], None] = lambda: None
        self.pause = Pause(run)

    def before_change(self, action: Callable[[], None]) -> None:
        """Set the function to call before the version changes."""
        self._before_change = action

    def called(self, method: str, start_ns: int, end_ns: int) -> None:
        """The engine ran one of WEIGHT_CALLS on its workers."""
        update = self._update
        if update is None or method in _BEGINNING or (update.label is not None and not update.is_open):
            update = self._begin(start_ns, is_open=method in _BEGINNING)
            update.is_of_draft = method == _DRAFT_BEGINNING
        update.end_ns = end_ns
        update.calls_ns.append((start_ns, end_ns))
        if method == _ENDING:
            update.is_open = False

    def failed(self) -> None:
        """A call raised: nobody knows what the weights are now, and there is no version to record."""
        self._update = None

    def labelled(self, label: object, at_ns: int) -> None:
        """The engine got a new label for its weights."""
        version = self._names.ordinal_of(label)
        if self._update is None and version == self.version:
            return
        update = self._update or self._begin(at_ns, is_open=False)
        update.label = str(label)
        self._has_labels = True
        self._change_to(self._names.applied(label), "engine")

    def kv_reset(self) -> None:
        """The KV cache was thrown away, running requests included."""
        self._kv_was_reset = self.is_changing = True
        if self._update is not None:
            self._update.kv_recomputed = True

    def pass_begins(self) -> bool:
        """A forward pass begins; returns whether what it samples is torn."""
        self._kv_was_reset = False
        update = self._update
        if update is None:
            self.is_changing = False
            return False
        if not update.is_open and (update.label is not None or update.is_of_draft or not self._has_labels):
            self.close()
            self.pause.settle()
            self.is_changing = False
            return False
        update.passes_meanwhile += 1
        return not update.is_of_draft

    def close(self) -> None:
        """Record an update that has ended; one that has no label yet gets the next version."""
        update, self._update = self._update, None
        if update is None or update.is_open:
            return
        if update.is_of_draft:
            self._record_calls(update)
            return
        if update.label is None:
            self._counted += 1
            self._change_to(self._names.applied(f"update {self._counted} without a label"), "time_join")
        paused = not update.passes_meanwhile
        kv = "recomputed" if update.kv_recomputed else "kept"
        self._run.apply_weights(self.version, update.label, paused=paused, kv=kv).between(
            update.start_ns, update.end_ns
        )
        self.pause.updated(self.version, update.start_ns, update.end_ns)
        if not paused:
            self._record_calls(update)

    def _begin(self, start_ns: int, is_open: bool) -> Update:
        self.close()
        self._update = Update(start_ns, start_ns, self._kv_was_reset, is_open)
        self.is_changing = True
        self.updates_begun += 1
        return self._update

    def _record_calls(self, update: Update) -> None:
        """The engine generates between the calls of an update, and is idle during each."""
        for start_ns, end_ns in update.calls_ns:
            self._run.activity("weight_update").between(start_ns, end_ns)

    def _change_to(self, version: int, source: str) -> None:
        if version != self.version or source != self.source:
            self._before_change()
        self.version = version
        self.source = source


_REASONS = {"stop": "stop", "length": "length", "abort": "abort", "error": "error", "repetition": "stop"}
"""vLLM's finish reasons in the words of the format; `repetition` is a stop that the engine decided on."""

_OWN_SUFFIX = re.compile(r"-[0-9a-f]{8}$")
_CHILD_PREFIX = re.compile(r"(\d+)_")
_NS_PER_S = 1_000_000_000
# A front end that says the request came longer ago than this does not mean the wall clock.
_LONGEST_ON_ITS_WAY_NS = 600 * _NS_PER_S


class Request:
    """A request between its arrival and its end."""

    __slots__ = ("cached_tokens", "counted", "host", "runs", "source", "started_ns", "submitted_ns", "torn_tokens")

    def __init__(self, host: Any, submitted_ns: int, source: str) -> None:
        self.host = host
        self.submitted_ns = submitted_ns
        self.source = source
        self.started_ns: int | None = None
        self.cached_tokens: int | None = None
        self.torn_tokens = 0
        self.counted = 0
        self.runs: list[tuple[int, int]] = []
        """Tokens and the version that sampled them, in order, up to the last change of version."""

    def count_up_to_now(self, version: int, source: str) -> None:
        """Everything sampled since the last count was sampled by this version."""
        sampled = int(self.host.num_output_tokens)
        if sampled > self.counted:
            self.runs.append((sampled - self.counted, version))
            self.counted = sampled
            if source != self.source:
                self.source = least_certain(self.source, source)


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
        name = self._name_of(request.host.request_id)
        sample = self._run.sample(
            name.sample_id,
            name.group_id,
            name.segment,
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
