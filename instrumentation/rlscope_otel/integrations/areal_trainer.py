"""AReaL's trainer by its own timing scopes, `stats_tracker.record_timing(name)`.

The scope is a context manager that a module attribute gives, so it is wrapped rather than watched: AReaL's own timing
runs inside ours. A scope of an unknown name is an activity `other`.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType, TracebackType
from typing import Any

from rlscope_otel.integrations.areal_workers import WORKERS
from rlscope_otel.recorder import Run

_ACTIVITIES = {
    "critic_train_step": "train",
    "recompute_logp": "logprobs",
    "ref_logp": "logprobs",
    "teacher_logp": "logprobs",
    "critic_values": "logprobs",
    "save": "checkpoint",
    "checkpoint_for_recover": "checkpoint",
    "eval": "eval",
}


def watch_scopes(module: ModuleType) -> None:
    """Have every scope that is opened through AReaL's `stats_tracker` module recorded."""
    host: Callable[[str], AbstractContextManager[Any]] = module.record_timing

    def record_timing(key: str) -> _Scope:
        return _Scope(host(key), key)

    module.record_timing = record_timing  # pyright: ignore[reportAttributeAccessIssue]


class _Scope:
    """AReaL's scope, and how long it took as the state that it is."""

    def __init__(self, host: AbstractContextManager[Any], name: str) -> None:
        self._host = host
        self._name = name
        self._start_ns: int | None = None
        self._version = 0

    def __enter__(self) -> Any:
        try:
            self._start_ns, self._version = WORKERS.trainer.now_ns(), WORKERS.version
        except Exception as error:  # Nothing of ours reaches the trainer.
            WORKERS.faults.note("scope", repr(error))
        return self._host.__enter__()

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        try:
            return self._host.__exit__(error_type, error, traceback)
        finally:
            try:
                if self._start_ns is not None and error is None:
                    _record(WORKERS.trainer, self._name, self._version, self._start_ns)
            except Exception as fault:  # Nothing of ours reaches the trainer.
                WORKERS.faults.note("scope", repr(fault))


def _record(run: Run, name: str, version: int, start_ns: int) -> None:
    now_ns = run.now_ns()
    if name == "rollout":
        run.wait("samples").between(start_ns, now_ns)
    elif name == "train_step":
        samples, tokens = WORKERS.take_batch()
        step = run.train_step(version, version_in=version, samples=samples, tokens=tokens)
        step.record(version_out=version + 1)
        step.between(start_ns, now_ns)
    elif name == "update_weights":
        run.publish_weights(WORKERS.version, str(WORKERS.version)).between(start_ns, now_ns)
    else:
        run.activity(_ACTIVITIES.get(name, "other")).between(start_ns, now_ns)
