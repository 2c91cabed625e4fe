"""SGLang as a sampler: forward passes, requests with the version of every token, weight updates, idle and paused time.

SGLang calls `register` (entry point `sglang.srt.plugins`) in each of its processes; without RLSCOPE_RUN_DIR it does
nothing. Everything is recorded in the scheduler's process: the first rank of each data-parallel engine is one worker,
which owns the GPUs of its tensor- and pipeline-parallel ranks; the other ranks record nothing.

Recorded: a row for each batch, from its launch, or from the end of the batch before it where they overlap, until its
result was processed, so `busy_ns` includes the host's work on the result; samples (`sglang_scheduler.py`), weight
updates (`sglang_scheduler.py`), pauses as waits for weights, idle time as waits for requests. Pass the number of
the publication (1, 2, ...) as the `weight_version` of an update.

Not recorded: the tokenizer's process, embedding requests, LoRA adapters, start-up, waits for a prefill worker or for a
KV cache transfer. A token whose pass ran before an update and whose result was processed after it has the newer label,
as in SGLang's own `weight_versions`.

NOT run with a live SGLang, which does not install on a machine without a GPU. Names, signatures and the order of calls
are from the source of 0.5.23; the tests call the hooks through its hook registry's protocol, on objects of the same
shape. Implemented but never tried: overlapped scheduling, sessions of weight loads, data-parallel attention. Not
supported: pipeline parallelism with several batches in flight, draft passes of speculative decoding, prefill and decode
on different engines, the scheduler in Rust.
"""

import importlib
import pkgutil
import weakref
from collections.abc import Callable
from typing import Any, Final

from rlscope_otel.faults import Faults
from rlscope_otel.integrations.host import host_run, or_none, recording_wanted
from rlscope_otel.integrations.seams import Call
from rlscope_otel.integrations.sglang_scheduler import Recorder

_SCHEDULER: Final = "sglang.srt.managers.scheduler.Scheduler"
_UPDATER: Final = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
_LOADS: Final = ("disk", "distributed", "tensor", "ipc")

_recorders: weakref.WeakKeyDictionary[Any, Recorder | None] = weakref.WeakKeyDictionary()


def register() -> None:
    """Register the hooks with SGLang; functions that this version lacks are counted and left out.

    Does nothing without a run folder, and never raises.
    """
    if not recording_wanted():
        return
    faults = Faults()
    try:
        registry = importlib.import_module("sglang.srt.plugins.hook_registry")
        around = registry.HookType.AROUND
        for target, before, after in _HOOKS:
            if _exists(target):
                registry.HookRegistry.register(target, _hook(before, after, faults), around)
            else:
                faults.note(f"hook {target}", "not in this version of SGLang; less detail is recorded")
    except Exception as error:  # A plug-in of ours never stops the host's start.
        faults.note("sglang", repr(error))


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
        framework_version=or_none(lambda: str(importlib.import_module("sglang.version").__version__)),
        kv_capacity_tokens=or_none(lambda: int(scheduler.max_total_num_tokens)),
        max_running=or_none(lambda: int(scheduler.max_running_requests)),
    )
    _recorders[scheduler] = Recorder(scheduler, run)


def recorder_of(owner: Any) -> Recorder | None:
    """The recorder of a scheduler, or of the scheduler that a part of it names."""
    return _recorders.get(getattr(owner, "scheduler", None) or owner)


def _hook(before: str | None, after: str | Callable[[Call], None] | None, faults: Faults) -> Callable[..., Any]:
    """A hook of SGLang's AROUND form. The host's function runs as it would, whatever becomes of the recording."""

    def hook(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        call = Call(args, kwargs, 0)
        _tell(before, call, faults)
        try:
            call.result = original(*args, **kwargs)
            return call.result
        except BaseException as error:
            call.error = error
            raise
        finally:
            _tell(after, call, faults)

    return hook


def _tell(what: str | Callable[[Call], None] | None, call: Call, faults: Faults) -> None:
    try:
        if callable(what):
            what(call)
        else:
            recorder = recorder_of(call.args[0])
            if recorder is None or not recorder.run.active:
                return
            call.started_ns = call.started_ns or recorder.run.now_ns()
            if what is not None and call.error is None:
                getattr(recorder, what)(call)
    except Exception as error:  # Nothing of ours reaches the host.
        faults.note(f"sglang {what}", repr(error))


_HOOKS: Final[tuple[tuple[str, str | None, str | Callable[[Call], None] | None], ...]] = (
    (f"{_SCHEDULER}.__init__", None, _init),
    (f"{_SCHEDULER}._add_request_to_queue", "queued", None),
    (f"{_SCHEDULER}.send_abort_output", None, "aborted"),
    (f"{_SCHEDULER}.run_batch", "launches", None),
    (f"{_SCHEDULER}.process_batch_result", None, "took_in"),
    (f"{_SCHEDULER}.on_idle", "idles", None),
    (f"{_SCHEDULER}.pause_generation", None, "paused"),
    (f"{_SCHEDULER}.continue_generation", "continued", None),
    (f"{_SCHEDULER}.record_weight_version_change", "labelled", None),
    (f"{_UPDATER}.begin_weight_update", None, "session_began"),
    (f"{_UPDATER}.end_weight_update", None, "session_ended"),
    *((f"{_UPDATER}.update_weights_from_{source}", None, "loaded") for source in _LOADS),
)


def _exists(target: str) -> bool:
    try:
        return callable(pkgutil.resolve_name(target))
    except (ImportError, AttributeError, ValueError):
        return False


def _parallel_of(scheduler: Any) -> Any:
    """Where this scheduler stands among the ranks: as SGLang's context says, else as the scheduler itself does."""
    return or_none(lambda: importlib.import_module("sglang.srt.runtime_context").get_parallel()) or scheduler


def _gpus_of(parallel: Any) -> int | None:
    """GPUs of one engine; data-parallel attention runs several engines on the tensor-parallel ranks."""
    return or_none(lambda: parallel.tp_size * parallel.pp_size // max(1, getattr(parallel, "attn_dp_size", 1) or 1))
