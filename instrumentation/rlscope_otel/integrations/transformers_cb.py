"""transformers' continuous batching as an engine: forward passes, samples and weight updates.

    engine = rlscope_otel.integrations.transformers_cb.instrument(manager)
    with manager.pause(), engine.apply(version):
        ...  # write the new weights into manager.model

Recorded: one engine step per generation step, with its actual batch; one sample per request, with the policy version of
each token; waits without requests; each weight update, and the pause around it.

`busy_ns` is the time inside `_generation_step`: the forward pass, sampling, and the copy of the tokens to the host.
With `use_async_batching` that call only launches the pass; a row then lasts from the launch, or from the end of the
previous pass, until its tokens have arrived, and all of it counts as busy, which is an upper bound.

`kv_used_tokens` counts whole blocks. A token sampled during an update without a pause has the version before it and is
counted as torn. Not recorded: requests in the manager's queue that the loop has not fetched yet, and how several
managers share one model.

Run with transformers 5.23.0 on CPU (sdpa): pauses, updates without one, preemption by reset, cancellation, forks,
prefix sharing. Not run: a GPU, and with it `use_async_batching` and offloading to the host; tensor parallelism.
"""

import importlib
import sys
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any, Final

from rlscope_otel.faults import Faults
from rlscope_otel.integrations.host import host_run, version_of
from rlscope_otel.integrations.loading import WatchedClasses, watch_module
from rlscope_otel.integrations.seams import Call, Seams, Watch, end_phase, of_recorder
from rlscope_otel.integrations.transformers_requests import Pass, Requests
from rlscope_otel.integrations.weights import Pause
from rlscope_otel.recorder import Run
from rlscope_otel.samples import VersionRun

_API = "transformers.generation.continuous_batching.continuous_api"
_HARD_STOP = 2  # BackgroundThreadStatus.HARD_STOP


class Engine:
    """One watched manager. All but `apply`, `close` and what they call runs on the generation loop's thread."""

    def __init__(self, run: Run, target: Any) -> None:
        self.run = run
        self.target = target
        self.version = 0
        """The policy version in force."""
        self._requests = Requests(run)
        self._pause = Pause(run)
        self._status: Any = None
        """transformers' `BackgroundThreadStatus`; None while there is no generation loop."""
        self._is_applying = False
        """Whether weights change now under a loop that runs."""
        self._unpaused_applies = 0
        """Number of weight changes while the loop ran."""
        self._round_ns = 0
        """Start of the present round of the generation loop."""
        self._idle_ns: int | None = None
        """Since when the loop has no request."""
        self._row_end_ns = self._results_ns = 0
        self._preemptions = 0
        """Since the last pass was prepared."""
        self._passes: deque[Pass] = deque()
        self._processor: Any = None
        self._capacity_tokens: int | None = None

    @contextmanager
    def apply(self, version: int, label: str | None = None) -> Generator[None]:
        """A block, on any thread, that writes the weights of a version; tokens sampled after it have that version.

        If it breaks off, tokens go on counting as sampled by the version before.
        """
        start_ns = self.run.now_ns()
        paused = None if self._status is None else bool(getattr(self._status, "_paused", False))
        self._is_applying = paused is False
        try:
            yield
            self.version = version
        finally:
            self._is_applying = False
            self._unpaused_applies += not paused
        end_ns = self.run.now_ns()
        self.run.apply_weights(version, label, paused=paused, kv="kept").between(start_ns, end_ns)
        if paused:
            self._pause.updated(version, start_ns, end_ns)

    def versions_of(self, request_id: str) -> tuple[VersionRun, ...] | None:
        """Return the versions that sampled the tokens of a finished request. Works once per request."""
        return self._requests.versions_of(request_id)

    def close(self) -> None:
        """Watch no more; requests that are not finished are recorded as such when the run stops."""
        for key in [key for key, engine in _engines.items() if engine is self]:
            del _engines[key]
        if not _engines and _seams:
            _seams.pop().close()

    def bind(self, manager: Any, processor: Any) -> None:
        """Know a manager's parts, from its start to its stop."""
        self._unbind()
        self._processor, self._status = processor, manager.background_thread_status
        blocks, page_tokens = getattr(processor.cache, "num_blocks", None), getattr(processor.cb_config, "page_size", 0)
        self._capacity_tokens = blocks * page_tokens if blocks and page_tokens else None
        running = getattr(processor.scheduler, "max_requests_per_batch", None)
        self.run.describe(kv_capacity_tokens=self._capacity_tokens, max_running=running)
        shared = (processor.scheduler, processor.inputs_and_outputs, processor.output_router, self._status)
        _engines.update((id(part), self) for part in (processor, *shared))

    def _unbind(self) -> None:
        for key in [key for key, engine in _engines.items() if engine is self and key != id(self.target)]:
            del _engines[key]
        self._processor = self._status = None

    def creating(self, call: Call) -> None:
        """The manager makes its cache and its processor."""
        call.memo = self.run.activity("startup").__enter__()

    def created(self, call: Call) -> None:
        """The manager has its processor."""
        end_phase(call)
        if call.result is not None:
            self.bind(call.args[0], call.result)

    def submitted(self, call: Call) -> None:
        """A request comes into the scheduler, for the first time or again."""
        self._preemptions += self._requests.submit(call.args[1])

    def preparing(self, call: Call) -> None:
        """A round begins."""
        self._round_ns = call.started_ns

    def prepared(self, call: Call) -> None:
        """There is a batch, or nothing to do."""
        if not call.result:
            if self._idle_ns is None and call.error is None:
                self._idle_ns = self._round_ns
            return
        self._end_idle(self._round_ns)
        batch = _host_side(self._processor).requests_in_batch
        prefill_tokens = self._requests.schedule(batch)
        waiting = len(self._processor.scheduler.waiting_requests)
        kv_tokens = self._kv_used_tokens()
        self._passes.append(Pass(self._round_ns, batch, prefill_tokens, waiting, kv_tokens, self._preemptions))
        self._preemptions = 0

    def launching(self, call: Call) -> None:
        """The forward pass of the newest batch begins; of one that was prepared before the watch nothing is known."""
        if self._passes:
            newest = self._passes[-1]
            newest.launched_ns, newest.version = call.started_ns, self.version
            newest.torn, call.memo = self._is_applying, (newest, self._unpaused_applies)

    def launched(self, call: Call) -> None:
        """The forward pass has ended, or is on its way when batching is asynchronous."""
        if call.memo is not None:
            newest, applies = call.memo
            newest.computed_ns = self.run.now_ns()
            newest.torn |= self._is_applying or applies != self._unpaused_applies

    def results_came(self, call: Call) -> None:
        """The tokens of an asynchronous pass are on the host."""
        self._results_ns = self.run.now_ns()

    def delivering(self, call: Call) -> None:
        """The tokens of the oldest pass are with their requests, and some results are about to leave the engine."""
        if not self._passes:
            return
        done = self._passes[0]
        if getattr(self._processor, "use_async_batching", False):
            done.computed_ns = self._results_ns
        if done.tokens is None:
            done.tokens = self._requests.give_tokens(done)

    def updated(self, call: Call) -> None:
        """The oldest pass is done with."""
        self.delivering(call)
        if not self._passes:
            return
        done, end_ns = self._passes.popleft(), self.run.now_ns()
        busy_ns = done.computed_ns - done.launched_ns
        if getattr(self._processor, "use_async_batching", False):
            end_ns, done.start_ns = done.computed_ns, max(done.launched_ns, self._row_end_ns)
            busy_ns = end_ns - done.start_ns
        self._row_end_ns = end_ns
        self.run.engine_step(
            done.start_ns,
            end_ns,
            busy_ns=busy_ns,
            running=len(done.batch),
            waiting=done.waiting,
            decode_tokens=done.tokens or 0,
            prefill_tokens=done.prefill_tokens,
            kv_used_tokens=done.kv_used_tokens,
            preemptions=done.preemptions,
        )

    def failed(self, call: Call) -> None:
        """A request ends with an error; one that a hard stop cuts off has none of its own."""
        is_cut_off = getattr(self._status, "tp_status", None) == _HARD_STOP
        self._requests.finish(call.args[2], "unfinished" if is_cut_off else "error")

    def cancelled(self, call: Call) -> None:
        """Requests were cancelled."""
        for state in call.result or ():
            self._requests.finish(state, "abort")

    def pausing(self, call: Call) -> None:
        """The loop is paused from now on."""
        self._end_idle(call.started_ns)
        self._pause.began(call.started_ns)

    def resumed(self, call: Call) -> None:
        """The loop goes on."""
        self._round_ns = self.run.now_ns()
        paused_ns = self._pause.ended(self._round_ns)
        if paused_ns is not None:
            activity = "weight_update" if self._pause.has_update else "other"
            self.run.activity(activity).between(paused_ns, self._round_ns)
            self._pause.settle()

    def stopped(self, call: Call) -> None:
        """The loop has ended."""
        self._end_idle(self.run.now_ns())
        self._unbind()

    def _end_idle(self, at_ns: int) -> None:
        since_ns, self._idle_ns = self._idle_ns, None
        if since_ns is not None:
            self.run.wait("requests").between(since_ns, at_ns)

    def _kv_used_tokens(self) -> int | None:
        if self._capacity_tokens is None:
            return None
        return round((1 - self._processor.cache.compute_free_capacity()) * self._capacity_tokens)


_engines: dict[int, Engine] = {}
"""By identity, whose engine a manager, a model, or a running manager's part is."""
_seams: list[Seams] = []
"""The watched functions of transformers, while there is an engine."""


def instrument(target: Any, run: Run | None = None) -> Engine:
    """Record a `ContinuousBatchingManager`, or every manager that a model creates; once each. A no-op without a run.

    The run is `run`, else this process's run, else one started from the environment, as a sampler.
    """
    if id(target) in _engines:
        return _engines[id(target)]
    if run is None:
        run = host_run("sampler", framework="transformers", framework_version=version_of("transformers"))
    engine = Engine(run, target)
    if not run.active:
        return engine
    try:
        if not _seams:
            _seams.append(Seams(Faults(), run.now_ns))
            watch_module(_WATCHED, _seams[0], _api_of(target))
        _engines[id(target)] = engine
        if getattr(target, "batch_processor", None) is not None:
            engine.bind(target, target.batch_processor)
    except Exception as error:  # Another version's parts may be anything.
        run.faults.note("continuous batching", repr(error))
    return engine


def _engine_of(call: Call) -> Engine | None:
    """The recorded engine that the called object belongs to."""
    host = call.args[0]
    return _engines.get(id(host)) or _engines.get(id(getattr(host, "model", None)))


_of = partial(of_recorder, _engine_of)
_WATCHED: Final[WatchedClasses] = {
    "ContinuousBatchingManager": {"_create_batch_processor": Watch(_of("creating"), after=_of("created"))},
    "ContinuousBatchProcessor": {
        "prepare_next_batch": Watch(_of("preparing"), after=_of("prepared")),
        "_generation_step": Watch(_of("launching"), after=_of("launched")),
        "update_batch": Watch(after=_of("updated")),
        "_handle_request_error": Watch(_of("failed")),
    },
    "Scheduler": {
        "add_waiting_request": Watch(_of("submitted")),
        "clear_cancelled_requests": Watch(after=_of("cancelled")),
    },
    "OutputRouter": {"deliver_batch": Watch(_of("delivering"))},
    "BackgroundThreadStatus": {
        "pause_and_wait": Watch(_of("pausing"), after=_of("resumed")),
        "mark_as_stopped": Watch(after=_of("stopped")),
    },
    "ContinuousBatchingAsyncIOs": {"prepare_batch_update": Watch(after=_of("results_came"))},
}


def _api_of(target: Any) -> ModuleType:
    is_manager = hasattr(target, "batch_processor")
    return sys.modules[type(target).__module__] if is_manager else importlib.import_module(_API)


def _host_side(processor: Any) -> Any:
    """The half of the inputs and outputs that the next pass is prepared in."""
    both = processor.inputs_and_outputs
    pairs = getattr(both, "io_pairs", None)
    return both if pairs is None else pairs[both.current_pair].host_io
