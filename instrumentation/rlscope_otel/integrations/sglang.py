"""SGLang as a sampler: forward passes, requests with the version of every token, weight updates, idle and paused time.

SGLang calls `register` (entry point `sglang.srt.plugins`) in each of its processes; without RLSCOPE_RUN_DIR it does
nothing. Everything is recorded in the scheduler's process: the first rank of each data-parallel engine is one worker,
which owns the GPUs of its tensor- and pipeline-parallel ranks; the other ranks record nothing.

Recorded: a row for each batch, from its launch, or from the end of the batch before it where they overlap, until its
result was processed, so `busy_ns` includes the host's work on the result; samples, weight updates, pauses as waits for
weights, idle time as waits for requests. Pass the number of the publication (1, 2, ...) as the `weight_version` of an
update, or to `/update_weight_version`. Versions of SGLang without sessions of weight loads do not mark the end of an
update: it is then the next forward pass.

Not recorded: the tokenizer's process, embedding requests, LoRA adapters, start-up, waits for a prefill worker or for a
KV cache transfer. A token whose pass ran before an update and whose result was processed after it has the newer label,
as in SGLang's own `weight_versions`.

NOT run with a live SGLang, which does not install on a machine without a GPU. Names, signatures and the order of calls
are from the source of 0.5.23; the tests watch objects of the same shape. Implemented but never tried: overlapped
scheduling, sessions of weight loads, data-parallel attention. Not supported: pipeline parallelism with several batches
in flight, draft passes of speculative decoding, prefill and decode on different engines, the scheduler in Rust.
"""

import importlib
import weakref
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from rlscope_otel.faults import Faults, or_none
from rlscope_otel.integrations.host import engine_samples_wanted, host_run, now_ns, recording_wanted, version_of
from rlscope_otel.integrations.loading import WatchedModules, watch_modules
from rlscope_otel.integrations.request_ids import name_of
from rlscope_otel.integrations.seams import Call, Seams, Watch, of_recorder
from rlscope_otel.integrations.weights import Weights
from rlscope_otel.recorder import Run
from rlscope_otel.samples import Sample

# The requests of one SGLang scheduler: which tokens of each were sampled under which version.
#
# Tokens are counted when the scheduler processes a pass's result, under the label at that moment. SGLang labels them
# in the same way, so a row holds the ranges of `meta_info["weight_versions"]`, also in versions of SGLang that have
# only the scalar `weight_version`.


_REASONS: Final = ("stop", "length", "abort")
_HEALTH_CHECK: Final = "HEALTH_CHECK"
# Requests that are aborted while they wait are never scheduled; their times are forgotten, oldest first.
_MOST_WAITING: Final = 100_000


@dataclass(slots=True)
class _Request:
    """A request that has been scheduled; without a sample its tokens are counted for the pass alone."""

    sample: Sample | None
    counted: int = 0


class Requests:
    """All requests of one scheduler that have not ended."""

    def __init__(self, run: Run, weights: Weights) -> None:
        self._run, self._weights = run, weights
        self._wanted = engine_samples_wanted()
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
        wanted = self._wanted and not str(req.rid).startswith(_HEALTH_CHECK)
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
        sample = self._run.sample(
            *name_of(str(req.rid)),
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
        self._weights = Weights(run)
        self._requests = Requests(run, self._weights)
        self._scheduler = weakref.ref(scheduler)
        self._launched: deque[tuple[int, bool]] = deque(maxlen=_MOST_LAUNCHED)
        self._last_end_ns: int | None = None
        self._idle_from_ns: int | None = None
        self._pause_mode: str | None = None

    def queued(self, call: Call) -> None:
        """A request joins the waiting queue."""
        self._requests.queued(call.argument(1, "req"), call.started_ns)

    def aborted(self, call: Call) -> None:
        """A request was aborted outside a batch."""
        self._requests.ended(call.argument(2, "req"))

    def launches(self, call: Call) -> None:
        """A batch is about to be launched."""
        self._end_idle(call.started_ns)
        self._launched.append((call.started_ns, self._weights.pass_begins()))
        for req in call.argument(1, "batch").reqs:
            self._requests.scheduled(req, call.started_ns)

    def took_in(self, call: Call) -> None:
        """The result of the oldest batch under way was taken in."""
        if not self._launched:
            return
        launched_ns, is_torn = self._launched.popleft()
        batch = call.argument(1, "batch")
        tokens = sum(self._requests.taken_in(req, is_torn=is_torn) for req in batch.reqs)
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
        """Generation was paused."""
        self._end_idle(call.started_ns)
        self._pause_mode = str(getattr(call.argument(1, "recv_req"), "mode", None))
        self._weights.pause.began(self.run.now_ns())

    def continued(self, call: Call) -> None:
        """Generation goes on."""
        self._pause_mode = None
        paused_from_ns = self._weights.pause.ended(call.started_ns)
        if paused_from_ns is not None:
            self.run.wait("weights").between(paused_from_ns, call.started_ns)
            self._last_end_ns = None

    def session_began(self, call: Call) -> None:
        """A session of weight loads was opened."""
        if getattr(call.result, "success", False):
            self._end_idle(call.started_ns)
            self._weights.begin(call.started_ns)

    def session_ended(self, call: Call) -> None:
        """The session was closed."""
        if getattr(call.result, "success", False):
            self._weights.end(self.run.now_ns())

    def loaded(self, call: Call) -> None:
        """Weights were loaded into the model, or were not."""
        self._end_idle(call.started_ns)
        # An older version returns a pair.
        result = call.result
        success = result[0] if isinstance(result, tuple) else getattr(result, "success", False)
        if not success:
            self._weights.failed()
            return
        flushed = bool(getattr(call.argument(1, "recv_req"), "flush_cache", False))
        self._weights.loaded(call.started_ns, self.run.now_ns(), kv_recomputed=flushed and not self._runs_on())

    def labeled(self, call: Call) -> None:
        """The scheduler got a label for its weights."""
        label = call.argument(1, "new_version")
        if label is not None:
            self._weights.labeled(label, call.started_ns)

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
            prefill_tokens=int(getattr(batch, "extend_num_tokens", None) or 0) if batch.forward_mode.is_extend() else 0,
            kv_used_tokens=or_none(lambda: _kv_used_tokens(scheduler)),
        )


def _kv_used_tokens(scheduler: Any) -> int:
    """Tokens that running requests hold: what the prefix cache could give up is not counted."""
    free = scheduler.token_to_kv_pool_allocator.available_size() + scheduler.tree_cache.evictable_size()
    return int(scheduler.max_total_num_tokens - free)


_recorders: weakref.WeakKeyDictionary[Any, Recorder | None] = weakref.WeakKeyDictionary()


def register() -> None:
    """Watch SGLang's classes, whether loaded already or later. Does nothing without a run folder."""
    if recording_wanted():
        watch_modules(_WATCHED, Seams(Faults(), now_ns))


def _init(call: Call) -> None:
    """A scheduler was made: only the rank that speaks for its engine is recorded."""
    if call.error is not None:
        return
    scheduler = call.args[0]
    parallel = _parallel_of(scheduler)
    ranks = [getattr(parallel, name, 0) for name in ("pp_rank", "attn_tp_rank", "attn_cp_rank")]
    if not hasattr(parallel, "attn_tp_rank"):
        ranks.append(getattr(parallel, "tp_rank", 0))
    if any(ranks):
        _recorders[scheduler] = None
        return
    run = host_run("sampler", gpu_count=_gpus_of(parallel))
    run.describe(
        framework="sglang",
        framework_version=version_of("sglang"),
        kv_capacity_tokens=or_none(lambda: int(scheduler.max_total_num_tokens)),
        max_running=or_none(lambda: int(scheduler.max_running_requests)),
    )
    _recorders[scheduler] = Recorder(scheduler, run)


def recorder_of(call: Call) -> Recorder | None:
    """The recorder of a scheduler, or of the scheduler that a part of it names, unless the call failed."""
    owner = call.args[0]
    recorder = _recorders.get(getattr(owner, "scheduler", None) or owner)
    return recorder if recorder is not None and recorder.run.active and call.error is None else None


_of = partial(of_recorder, recorder_of)


def _parallel_of(scheduler: Any) -> Any:
    """Where this scheduler stands among the ranks: as SGLang's context says, else as the scheduler itself does."""
    return or_none(lambda: importlib.import_module("sglang.srt.runtime_context").get_parallel()) or scheduler


def _gpus_of(parallel: Any) -> int | None:
    """GPUs of one engine; data-parallel attention runs several engines on the tensor-parallel ranks."""
    return or_none(lambda: parallel.tp_size * parallel.pp_size // max(1, getattr(parallel, "attn_dp_size", 1) or 1))


_WATCHED: Final[WatchedModules] = {
    "sglang.srt.managers.scheduler": {
        "Scheduler": {
            "__init__": Watch(after=_init),
            "_add_request_to_queue": Watch(_of("queued")),
            "send_abort_output": Watch(after=_of("aborted")),
            "run_batch": Watch(_of("launches")),
            "process_batch_result": Watch(after=_of("took_in")),
            "on_idle": Watch(_of("idles")),
            "pause_generation": Watch(after=_of("paused")),
            "continue_generation": Watch(_of("continued")),
            "record_weight_version_change": Watch(_of("labeled")),
        }
    },
    "sglang.srt.managers.scheduler_components.weight_updater": {
        "SchedulerWeightUpdaterManager": {
            "begin_weight_update": Watch(after=_of("session_began")),
            "end_weight_update": Watch(after=_of("session_ended")),
            **{
                f"update_weights_from_{source}": Watch(after=_of("loaded"))
                for source in ("disk", "distributed", "tensor", "ipc")
            },
        }
    },
}
