"""Records one SGLang scheduler, from the calls of its hooked methods, which `sglang.py` lists."""

import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from rlscope_otel.integrations.host import engine_samples_wanted, or_none
from rlscope_otel.integrations.pauses import Pause
from rlscope_otel.integrations.request_ids import name_of
from rlscope_otel.integrations.seams import Call
from rlscope_otel.integrations.versions import VersionNames
from rlscope_otel.recorder import Run
from rlscope_otel.samples import Sample

# The weights of one SGLang scheduler: which version samples, and when it was loaded.
#
# SGLang loads weights in one call, or in several between `begin_weight_update` and `end_weight_update`; versions
# without that session load them in several calls without marking the end, which is then the next forward pass. The
# label passed with an update, or to `/update_weight_version`, is the version. Updates without a label are counted,
# and the version source is `time_join`.


@dataclass(slots=True)
class _Update:
    start_ns: int
    end_ns: int
    kv_recomputed: bool = True
    label: str | None = None
    passes_meanwhile: int = 0
    loads: int = 0


@dataclass(slots=True)
class Weights:
    """Follows the calls that change a scheduler's weights, in their order. Not for use by several threads at once."""

    run: Run
    version: int = 0
    """The version that samples now."""
    source: str = "engine"
    """Where the version of a token that is sampled now comes from."""
    _names: VersionNames = field(default_factory=VersionNames)
    _update: _Update | None = None
    _session_is_open: bool = False
    _unlabelled: int = 0
    pause: Pause = field(init=False)

    def __post_init__(self) -> None:
        self.pause = Pause(self.run)

    def began(self, at_ns: int) -> None:
        """A session of loads began."""
        self._close()
        self._update = _Update(at_ns, at_ns)
        self._session_is_open = True

    def ended(self, at_ns: int) -> None:
        """The session ended."""
        self._session_is_open = False
        if self._update is not None:
            self._update.end_ns = at_ns
            # Without a label yet it may get one before the next pass.
            if self._update.label is not None:
                self._close()

    def loaded(self, start_ns: int, end_ns: int, *, kv_recomputed: bool) -> None:
        """One call put weights into the model; kv_recomputed says that no key or value of older weights is left."""
        update = self._update = self._update or _Update(start_ns, end_ns)
        # A load with a label sets the label before it returns.
        update.start_ns, update.end_ns = min(update.start_ns, start_ns), end_ns
        update.loads += 1
        update.kv_recomputed = kv_recomputed

    def failed(self) -> None:
        """A load failed: nobody knows what the weights are now, and there is no version to record."""
        self._update = None
        self._session_is_open = False

    def labelled(self, label: object, at_ns: int) -> None:
        """From now on tokens are labelled so; while a load runs, before it has returned."""
        if self._update is None and self._names.ordinal_of(label) == self.version:
            return
        update = self._update = self._update or _Update(at_ns, at_ns)
        update.label = str(label)
        self.source = "engine"
        self.version = self._names.applied(label)

    def pass_begins(self) -> bool:
        """A forward pass begins; returns whether it runs in the middle of an update, on weights of two versions."""
        if not self._session_is_open:
            self._close()
            self.pause.settle()
            return False
        if self._update is not None:
            self._update.passes_meanwhile += 1
        return True

    def _close(self) -> None:
        """Record the update that has ended, if there was one."""
        update, self._update = self._update, None
        if update is None or not (update.loads or update.label):
            return
        if update.label is None:
            self._unlabelled += 1
            self.source = "time_join"
            self.version = self._names.applied(f"update {self._unlabelled} without a label")
        self.run.apply_weights(
            self.version,
            label=update.label,
            paused=not update.passes_meanwhile,
            kv="recomputed" if update.kv_recomputed and update.loads else "kept",
        ).between(update.start_ns, update.end_ns)
        self.pause.updated(self.version, update.start_ns, update.end_ns)


# The requests of one SGLang scheduler: which tokens of each were sampled under which version.
#
# Tokens are counted when the scheduler processes a pass's result, under the label at that moment. SGLang labels them
# in the same way, so a row holds the ranges of `meta_info["weight_versions"]`, also in versions of SGLang that have
# only the scalar `weight_version`.


_REASONS: Final = ("stop", "length", "abort")
_HEALTH_CHECK: Final = "HEALTH_CHECK"
# Requests that are aborted while they wait are never scheduled; their times are forgotten, oldest first.
_MOST_WAITING: Final = 100_000


class _Request:
    """A request that has been scheduled; without a sample its tokens are counted for the pass alone."""

    __slots__ = ("counted", "sample")

    def __init__(self, sample: Sample | None) -> None:
        self.sample = sample
        self.counted = 0


class Requests:
    """All requests of one scheduler that have not ended."""

    def __init__(self, run: Run, weights: Weights, *, are_recorded: bool) -> None:
        self._run, self._weights, self._are_recorded = run, weights, are_recorded
        self._submitted_ns: dict[str, int] = {}
        self._running: dict[str, _Request] = {}

    def queued(self, req: Any, at_ns: int) -> None:
        """A request joined the waiting queue; the first time counts, a retracted one comes again."""
        if req.rid not in self._running and len(self._submitted_ns) < _MOST_WAITING:
            self._submitted_ns.setdefault(req.rid, at_ns)

    def scheduled(self, req: Any, at_ns: int) -> None:
        """A request is in the batch of a pass."""
        if req.rid in self._running:
            return
        submitted_ns = self._submitted_ns.pop(req.rid, None)
        wanted = self._are_recorded and not str(req.rid).startswith(_HEALTH_CHECK)
        self._running[req.rid] = _Request(self._sample(req, submitted_ns, at_ns) if wanted else None)

    def taken_in(self, req: Any, *, is_torn: bool) -> int:
        """The scheduler took in what a pass made for a request: how many tokens more that were."""
        request = self._running.get(req.rid)
        if request is None:
            return 0
        tokens = max(0, _output_tokens(req) - request.counted)
        request.counted += tokens
        if request.sample is not None and tokens:
            request.sample.tokens(tokens, self._weights.version)
            if is_torn:
                request.sample.torn(tokens)
        if req.finished():
            self.ended(req)
        return tokens

    def ended(self, req: Any) -> None:
        """A request has its last token, or was aborted."""
        request = self._running.pop(req.rid, None)
        self._submitted_ns.pop(req.rid, None)
        if request is not None and request.sample is not None:
            request.sample.finish(
                _reason_of(req),
                preemptions=getattr(req, "retraction_count", None),
                cached_tokens=getattr(req, "cached_tokens", None),
            )

    def _sample(self, req: Any, submitted_ns: int | None, at_ns: int) -> Sample:
        name = name_of(str(req.rid))
        sample = self._run.sample(
            name.sample_id,
            name.group_id,
            name.segment,
            prompt_tokens=len(req.origin_input_ids),
            submitted_ns=submitted_ns,
            version_source=self._weights.source,
        )
        sample.started(at_ns)
        return sample


def _output_tokens(req: Any) -> int:
    """Tokens up to the stop, where SGLang knows more were sampled in the pass that reached it."""
    stopped_at = getattr(req, "finished_len", None)
    return len(req.output_ids) if stopped_at is None else int(stopped_at)


def _reason_of(req: Any) -> str | None:
    finished_reason = getattr(req, "finished_reason", None)
    if finished_reason is None:
        return "abort"
    reason = finished_reason.to_json().get("type")
    return reason if reason in _REASONS else None


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
        self.requests.queued(call.argument(1, "req"), call.started_ns)

    def aborted(self, call: Call) -> None:
        """A request was aborted outside a batch."""
        self.requests.ended(call.argument(2, "req"))

    def launches(self, call: Call) -> None:
        """A batch is about to be launched."""
        self._end_idle(call.started_ns)
        self._launched.append((call.started_ns, self.weights.pass_begins()))
        for req in call.argument(1, "batch").reqs:
            self.requests.scheduled(req, call.started_ns)

    def took_in(self, call: Call) -> None:
        """The result of the oldest batch under way was taken in."""
        if not self._launched:
            return
        launched_ns, is_torn = self._launched.popleft()
        batch = call.argument(1, "batch")
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
        self._pause_mode = str(getattr(call.argument(1, "recv_req"), "mode", None))
        if self._paused_from_ns is None:
            self._paused_from_ns = self.run.now_ns()
            self.weights.pause.began(self._paused_from_ns)

    def continued(self, call: Call) -> None:
        """Generation goes on."""
        paused_from_ns, self._paused_from_ns, self._pause_mode = self._paused_from_ns, None, None
        if paused_from_ns is not None:
            self.run.wait("weights").between(paused_from_ns, call.started_ns)
            self.weights.pause.ended(call.started_ns)
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
        flushed = bool(getattr(call.argument(1, "recv_req"), "flush_cache", False))
        self.weights.loaded(call.started_ns, self.run.now_ns(), kv_recomputed=flushed and not self._runs_on())

    def labelled(self, call: Call) -> None:
        """The scheduler got a label for its weights."""
        label = call.argument(1, "new_version")
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


def _is_prefill(batch: Any) -> bool:
    return bool(batch.forward_mode.is_extend())


def _kv_used_tokens(scheduler: Any) -> int:
    """Tokens that running requests hold: what the prefix cache could give up is not counted."""
    free = scheduler.token_to_kv_pool_allocator.available_size() + scheduler.tree_cache.evictable_size()
    return int(scheduler.max_total_num_tokens - free)
