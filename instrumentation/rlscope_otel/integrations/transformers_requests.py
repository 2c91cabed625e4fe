"""The requests of transformers' continuous batching as samples.

A request that was preempted (offloaded, or reset and recomputed) remains one sample. A fork of a request is another
sample of its group. Forward passes and their times are in `transformers_cb.py`.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rlscope_otel.integrations.host import engine_samples_wanted, inert_run
from rlscope_otel.integrations.request_ids import RequestName, name_of
from rlscope_otel.recorder import Run
from rlscope_otel.samples import Sample, VersionRun

_FINISHED = 3
"""`RequestStatus.FINISHED`; FAILED is above it."""
_MOST_REMEMBERED = 4096
_CHILD_MARK = "__child#"
"""Stands between a request's id and a fork's number."""


@dataclass(slots=True)
class Request:
    """One request that is not finished, and what of it is recorded already."""

    sample: Sample
    state: Any
    """transformers' `RequestState`: another object after a reset."""
    seen_tokens: int = 0
    is_started: bool = False
    is_prefilled: bool = False
    preemptions: int = 0
    cached_tokens: int | None = None


@dataclass(slots=True)
class Pass:
    """One generation step, from its preparation on."""

    start_ns: int
    batch: list[Any]
    """transformers' `FutureRequestState` of each request in it."""
    prefill_tokens: int
    waiting: int
    kv_used_tokens: int | None
    preemptions: int
    version: int = 0
    launched_ns: int = 0
    computed_ns: int = 0
    torn: bool = False
    tokens: int | None = None


class Requests:
    """The unfinished requests of one engine. Used by the generation loop's thread only."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._samples_run = run if engine_samples_wanted() else inert_run()
        self._open: dict[str, Request] = {}
        self._finished: dict[str, tuple[VersionRun, ...]] = {}

    def versions_of(self, request_id: str) -> tuple[VersionRun, ...] | None:
        """The versions of a finished request's tokens: once, and of the last few thousand. Of any thread."""
        return self._finished.pop(request_id, None)

    def submit(self, state: Any) -> bool:
        """A request comes into the scheduler; returns whether it comes back because it was preempted."""
        request = self._open.get(state.request_id)
        if request is None:
            self.of(state)
            return False
        request.preemptions += 1
        if request.state is not state:
            request.state, request.seen_tokens, request.is_prefilled = state, 0, False
        return True

    def of(self, state: Any) -> Request:
        """The request of a state, seen now for the first time or not."""
        request = self._open.get(state.request_id)
        if request is None:
            sample = self._samples_run.sample(
                *_name_of(state),
                prompt_tokens=len(state.initial_tokens),
                submitted_ns=self._run.now_ns() - int((time.perf_counter() - state.created_time) * 1e9),
            )
            # Tokens from before the watch have no version: such a sample has only those that follow.
            request = self._open[state.request_id] = Request(sample, state, len(state.generated_tokens))
        return request

    def schedule(self, batch: Iterable[Any]) -> int:
        """A pass is prepared for a batch; returns how many prompt tokens it computes."""
        prefill_tokens = 0
        for future in batch:
            request = self._open.get(future.state.request_id)
            if request is None or not request.is_prefilled:
                prefill_tokens += _prefill(self.of(future.state), future.state, future.query_length)
        return prefill_tokens

    def give_tokens(self, done: Pass) -> int:
        """A pass has ended: its new tokens go to their samples; returns how many there were."""
        total = 0
        for future in done.batch:
            state = future.state
            request = self._open.get(state.request_id)
            if request is None or state is not request.state:
                continue  # It was reset or ended after the pass began: the token is thrown away.
            count = len(state.generated_tokens) - request.seen_tokens
            if not request.is_started:
                request.is_started = True
                request.sample.started(done.launched_ns)
            if count > 0:
                total += count
                request.seen_tokens += count
                request.sample.tokens(count, done.version)
                if done.torn:
                    request.sample.torn(count)
            if state.status >= _FINISHED:
                self.finish(state, _reason_of(state), done.computed_ns)
        return total

    def finish(self, state: Any, reason: str, at_ns: int | None = None) -> None:
        """A request is over, now unless a time is given."""
        request = self.of(state)
        del self._open[state.request_id]
        request.sample.finish(reason, at_ns, preemptions=request.preemptions, cached_tokens=request.cached_tokens)
        self._finished[state.request_id] = request.sample.versions
        if len(self._finished) > _MOST_REMEMBERED:
            self._finished.pop(next(iter(self._finished)), None)


def _prefill(request: Request, state: Any, query_tokens: int) -> int:
    """Prompt tokens among those that a pass computes; what lies before them was cached or computed before."""
    prompt_tokens, end = len(state.initial_tokens), state.position_offset
    begin = end - query_tokens
    if request.cached_tokens is None:
        request.cached_tokens = begin
    request.is_prefilled = end >= prompt_tokens
    return max(0, min(end, prompt_tokens) - begin)


def _name_of(state: Any) -> RequestName:
    request_id, mark, child = state.request_id.partition(_CHILD_MARK)
    name = name_of(request_id)
    if mark:
        return RequestName(f"{name.sample_id}.{child}", name.group_id or name.sample_id, name.segment)
    if state.num_children and name.group_id is None:
        return RequestName(name.sample_id, name.sample_id, name.segment)
    return name


def _reason_of(state: Any) -> str:
    ended = state.generated_tokens and state.generated_tokens[-1] in state._eos_token_ids
    return "stop" if ended else "length"
