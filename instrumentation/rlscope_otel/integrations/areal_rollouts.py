"""The state of AReaL's rollouts: generating, waiting, or loading weights, from the calls of its StalenessManager.

While any rollout runs, they generate. With none running they wait: for weights while submission is paused, for the
staleness cap if it leaves no room, for prompts otherwise. An interval is written when the next one begins.
"""

import threading
from typing import Any

from rlscope_otel.integrations.areal_workers import WORKERS
from rlscope_otel.integrations.seams import Call, Watch
from rlscope_otel.recorder import Run


class _Rollouts:
    """Current state of the rollouts, with its start, and the weights that they are loading."""

    def __init__(self) -> None:
        self.state: str | None = None
        """`generate` or the reason of the wait. None before the first rollout."""
        self.since_ns = 0
        self.paused = False
        self.manager: Any = None
        self.applying_ns: tuple[int, int] | None = None
        # AReaL submits, finishes and pauses rollouts in three threads.
        self.lock = threading.Lock()


_rollouts = _Rollouts()


def _turn(manager: Any) -> None:
    """Start an interval of the rollouts' current state, and record the previous interval if the state changed."""
    run = WORKERS.rollout
    if run is not None:
        with _rollouts.lock:
            _begin_stretch(run, _state_of(manager))


def _begin_stretch(run: Run, state: str) -> None:
    if state == _rollouts.state:
        return
    now_ns = run.now_ns()
    if _rollouts.state == "generate":
        run.generate().between(_rollouts.since_ns, now_ns)
    elif _rollouts.state is not None:
        run.wait(_rollouts.state).between(_rollouts.since_ns, now_ns)
    _rollouts.state, _rollouts.since_ns = state, now_ns


def _state_of(manager: Any) -> str:
    if manager.get_stats().running > 0:
        return "generate"
    if _rollouts.paused:
        return "weights"
    return "requests" if manager.get_capacity() > 0 else "staleness_cap"


def _moved(call: Call) -> None:
    _rollouts.manager = call.args[0]
    _turn(call.args[0])


def _paused(call: Call) -> None:
    _rollouts.paused = True
    _turn(call.args[0].staleness_manager)


def _resumed(call: Call) -> None:
    _rollouts.paused = False
    _turn(call.args[0].staleness_manager)


def _generation_stopped(call: Call) -> None:
    _rollouts.applying_ns = (call.started_ns, call.started_ns)


def _generation_continued(call: Call) -> None:
    run = WORKERS.rollout
    if run is not None and _rollouts.applying_ns is not None:
        _rollouts.applying_ns = (_rollouts.applying_ns[0], run.now_ns())


def _version_set(call: Call) -> None:
    """The weights that were taken while generation stood still now have a number."""
    run, version = WORKERS.rollout, int(call.args[1] if len(call.args) > 1 else call.kwargs["version"])
    WORKERS.version = version
    applying_ns, _rollouts.applying_ns = _rollouts.applying_ns, None
    if run is not None and applying_ns is not None:
        run.apply_weights(version, str(version), paused=True).between(*applying_ns)
    if _rollouts.manager is not None:
        _turn(_rollouts.manager)


MANAGER = {
    "on_rollout_submitted": Watch(after=_moved),
    "on_rollout_accepted": Watch(after=_moved),
    "on_rollout_rejected": Watch(after=_moved),
}
DISPATCHER = {"pause": Watch(after=_paused), "resume": Watch(after=_resumed)}
ENGINE = {
    "pause_generation": Watch(before=_generation_stopped),
    "continue_generation": Watch(after=_generation_continued),
    "set_version": Watch(after=_version_set),
}
CONTROLLER = {"set_version": Watch(after=_version_set)}
