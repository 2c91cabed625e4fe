"""verl's rollouter: whether it generates, waits at the cap or for a full queue, or evaluates.

Its states are written one by one, at the latest when new weights arrive, so that a rollouter that is killed loses only
the last one. It waits from the end of its last task (verl's `idle_start_time`) until new weights, or its monitor, let
it continue; while some tasks still run, it generates.
"""

import time
from typing import Any

from rlscope_otel.integrations.host import live_run
from rlscope_otel.integrations.seams import Call, Watch
from rlscope_otel.integrations.verl_processes import argument, begin, engines_are_recorded, gpus_of

_NS_PER_S = 1_000_000_000


class _Stretch:
    """Current state of this process's rollouter, with its start."""

    def __init__(self) -> None:
        self.began_ns: int | None = None
        """When this worker began to record; None once generation has begun."""
        self.since_ns: int | None = None
        """Up to when all is written down; None before generation and after it."""
        self.reason = "staleness_cap"
        """Why verl last decided to pause."""


_stretch = _Stretch()


def _begin_rollouter(call: Call) -> None:
    config = argument(call, 1, "config")
    if engines_are_recorded(config):
        run = begin("controller", config)
    else:
        run = begin("sampler", config, gpus_of(config, "rollout"))
    _stretch.began_ns = run.now_ns()


def _begin_generation(call: Call) -> None:
    run = live_run()
    if run is not None and _stretch.began_ns is not None:
        run.startup().between(_stretch.began_ns, call.started_ns)
    _stretch.began_ns, _stretch.since_ns = None, call.started_ns


def _judge_pause(call: Call) -> None:
    """verl asked whether to pause: remember why, or that its monitor is about to end the pause."""
    rollouter = call.args[0]
    if call.result:
        over_cap = rollouter.staleness_samples >= rollouter.max_required_samples
        _stretch.reason = "staleness_cap" if over_cap else "backpressure"
    elif call.error is None and rollouter.paused:
        _close(rollouter)


def _new_weights(call: Call) -> None:
    """The weights are new and the count of stale samples begins anew: the end of a version, and of any pause."""
    _close(call.args[0])


def _close(rollouter: Any) -> None:
    """Write down what has passed: generating, then waiting if every task had ended."""
    run = live_run()
    if run is None or _stretch.since_ns is None:
        return
    now_ns = run.now_ns()
    since_ns, _stretch.since_ns = _stretch.since_ns, now_ns
    idle_from_ns = now_ns - round((time.time() - rollouter.idle_start_time) * _NS_PER_S)
    if not rollouter.paused or idle_from_ns < since_ns:
        run.generate().between(since_ns, now_ns)
        return
    run.generate().between(since_ns, idle_from_ns)
    run.wait(_stretch.reason).between(idle_from_ns, now_ns)


def _end_generation(call: Call) -> None:
    _close(call.args[0])
    _stretch.since_ns = None


def _evaluated(call: Call) -> None:
    run = live_run()
    if run is not None:
        run.evaluation().between(call.started_ns, run.now_ns())


ROLLOUTER = {
    "__init__": Watch(before=_begin_rollouter),
    "_streaming_generation_main": Watch(before=_begin_generation, after=_end_generation),
    "_should_pause_generation": Watch(after=_judge_pause),
    "reset_staleness": Watch(before=_new_weights),
    "do_validate": Watch(after=_evaluated),
}
