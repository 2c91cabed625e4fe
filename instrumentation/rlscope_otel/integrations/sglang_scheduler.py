"""Records one SGLang scheduler, from the calls of its hooked methods, which `sglang.py` lists."""

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from rlscope_otel.integrations.host import engine_samples_wanted
from rlscope_otel.integrations.seams import Call
from rlscope_otel.integrations.sglang_requests import Requests
from rlscope_otel.integrations.sglang_weights import Weights
from rlscope_otel.recorder import Run

# Maximum length of a row in the format. A longer interval between two batches is not time between passes.
_LONGEST_BETWEEN_NS: Final = 1_000_000_000
# Idle time is written at least this often, so that a kill loses no more than this.
_LONGEST_IDLE_NS: Final = 1_000_000_000
# Batches under way: more than two would mean that results are taken in elsewhere.
_MOST_LAUNCHED: Final = 8


class Recorder:
    """Records one scheduler. Keeps none alive."""

    def __init__(self, scheduler: Any, run: Run) -> None:
        self.run = run
        self.weights = Weights(run)
        self.requests = Requests(run, self.weights, are_recorded=engine_samples_wanted())
        self._scheduler = weakref.ref(scheduler)
        self._launched: deque[tuple[int, bool]] = deque(maxlen=_MOST_LAUNCHED)
        self._last_end_ns: int | None = None
        self._idle_from_ns: int | None = None
        self._paused_from_ns: int | None = None
        self._pause_mode: str | None = None

    def queued(self, call: Call) -> None:
        """A request joins the waiting queue."""
        self.requests.queued(_argument(call, 1, "req"), call.started_ns)

    def aborted(self, call: Call) -> None:
        """A request was aborted outside a batch."""
        self.requests.ended(_argument(call, 2, "req"))

    def launches(self, call: Call) -> None:
        """A batch is about to be launched."""
        self._end_idle(call.started_ns)
        self._launched.append((call.started_ns, self.weights.pass_begins()))
        for req in _argument(call, 1, "batch").reqs:
            self.requests.scheduled(req, call.started_ns)

    def took_in(self, call: Call) -> None:
        """The result of the oldest batch under way was taken in."""
        if not self._launched:
            return
        launched_ns, is_torn = self._launched.popleft()
        batch = _argument(call, 1, "batch")
        tokens = sum(self.requests.taken_in(req, is_torn=is_torn) for req in batch.reqs)
        if batch.reqs:
            self._record_pass(batch, launched_ns, tokens)

    def idles(self, call: Call) -> None:
        """The scheduler found no batch to run."""
        scheduler = call.args[0]
        if scheduler.waiting_queue or scheduler.running_batch.reqs:
            self._end_idle(call.started_ns)
            return
        if self._idle_from_ns is None:
            self._idle_from_ns = call.started_ns
        elif call.started_ns - self._idle_from_ns >= _LONGEST_IDLE_NS:
            self._end_idle(call.started_ns)
            self._idle_from_ns = call.started_ns

    def paused(self, call: Call) -> None:
        """Generation was paused; a pause within a pause is the same one."""
        self._end_idle(call.started_ns)
        self._pause_mode = str(getattr(_argument(call, 1, "recv_req"), "mode", None))
        if self._paused_from_ns is None:
            self._paused_from_ns = self.run.now_ns()

    def continued(self, call: Call) -> None:
        """Generation goes on."""
        paused_from_ns, self._paused_from_ns, self._pause_mode = self._paused_from_ns, None, None
        if paused_from_ns is not None:
            self.run.wait("weights").between(paused_from_ns, call.started_ns)
            self._last_end_ns = None

    def session_began(self, call: Call) -> None:
        """A session of weight loads was opened."""
        if getattr(call.result, "success", False):
            self._end_idle(call.started_ns)
            self.weights.began(call.started_ns)

    def session_ended(self, call: Call) -> None:
        """The session was closed."""
        if getattr(call.result, "success", False):
            self.weights.ended(self.run.now_ns())

    def loaded(self, call: Call) -> None:
        """Weights were loaded into the model, or were not."""
        self._end_idle(call.started_ns)
        # An older version returns a pair.
        result = call.result
        success = result[0] if isinstance(result, tuple) else getattr(result, "success", False)
        if not success:
            self.weights.failed()
            return
        flushed = bool(getattr(_argument(call, 1, "recv_req"), "flush_cache", False))
        self.weights.loaded(call.started_ns, self.run.now_ns(), kv_recomputed=flushed and not self._runs_on())

    def labelled(self, call: Call) -> None:
        """The scheduler got a label for its weights."""
        label = _argument(call, 1, "new_version")
        if label is not None:
            self.weights.labelled(label, call.started_ns)

    def _runs_on(self) -> bool:
        """Whether requests will go on with keys and values that the weights before computed."""
        scheduler = self._scheduler()
        return scheduler is not None and self._pause_mode != "retract" and bool(scheduler.running_batch.reqs)

    def _end_idle(self, at_ns: int) -> None:
        idle_from_ns, self._idle_from_ns = self._idle_from_ns, None
        if idle_from_ns is not None and idle_from_ns < at_ns:
            self.run.wait("requests").between(idle_from_ns, at_ns)
            self._last_end_ns = None

    def _record_pass(self, batch: Any, launched_ns: int, tokens: int) -> None:
        end_ns, last_ns = self.run.now_ns(), self._last_end_ns
        self._last_end_ns = end_ns
        busy_from_ns = launched_ns if last_ns is None else max(launched_ns, last_ns)
        adjoins = last_ns is not None and busy_from_ns - last_ns <= _LONGEST_BETWEEN_NS
        scheduler = self._scheduler()
        self.run.engine_step(
            last_ns if adjoins and last_ns is not None else busy_from_ns,
            end_ns,
            busy_ns=end_ns - busy_from_ns,
            running=len(batch.reqs),
            waiting=len(scheduler.waiting_queue) if scheduler is not None else 0,
            decode_tokens=tokens,
            prefill_tokens=int(getattr(batch, "extend_num_tokens", None) or 0) if _is_prefill(batch) else 0,
            kv_used_tokens=or_none(lambda: _kv_used_tokens(scheduler)),
        )


def _argument(call: Call, index: int, name: str) -> Any:
    return call.args[index] if len(call.args) > index else call.kwargs[name]


def _is_prefill(batch: Any) -> bool:
    return bool(batch.forward_mode.is_extend())


def _kv_used_tokens(scheduler: Any) -> int:
    """Tokens that running requests hold: what the prefix cache could give up is not counted."""
    free = scheduler.token_to_kv_pool_allocator.available_size() + scheduler.tree_cache.evictable_size()
    return int(scheduler.max_total_num_tokens - free)


def or_none(value: Callable[[], Any]) -> Any:
    """Return the value. None if this version of SGLang does not have it."""
    try:
        return value()
    except Exception:  # A host's attribute may fail in any way.
        return None
