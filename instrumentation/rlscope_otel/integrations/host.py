"""The run of a host process, when a plug-in starts it and not the user.

The host does not expect errors of a plug-in: unlike `start_run`, nothing here raises, and invalid settings lead to one
warning and an inactive run.
"""

import os
from contextlib import suppress
from functools import cache
from importlib import metadata
from typing import Any

from rlscope_otel import exits, settings
from rlscope_otel.errors import SetupError
from rlscope_otel.faults import Faults
from rlscope_otel.recorder import Run
from rlscope_otel.start import start_run

_SAMPLES_VARIABLE = "RLSCOPE_SAMPLES"


def recording_wanted() -> bool:
    """Return whether the environment names a run folder. Without one, a plug-in does nothing."""
    return settings.run_dir_of(None) is not None


def host_run(role: str, worker_id: str | None = None, **identity: Any) -> Run:
    """This process's run: the one that is already recording, else one started from the environment.

    RLSCOPE_ROLE takes precedence over `role`, the hook's default; `identity` are further arguments of `start_run`. Pass
    `worker_id` in a process with several workers, because each worker has its own run.
    """
    found = live_run(worker_id)
    if found is not None:
        return found
    return started_run(os.environ.get(settings.ROLE_VARIABLE) or role, worker_id, **identity)


def started_run(role: str, worker_id: str | None, **identity: Any) -> Run:
    """A new run from the environment, in this role whatever RLSCOPE_ROLE says."""
    try:
        return start_run(role=role, worker_id=worker_id, **identity)
    except SetupError as error:
        Faults().note("start", error)
        return inert_run()


def live_run(worker_id: str | None = None) -> Run | None:
    """The run that this process is recording, of that worker when one is named; None without one."""
    return next((run for run in exits.live_runs() if run.active and worker_id in (None, run.worker_id)), None)


@cache
def inert_run() -> Run:
    """A run that records nothing."""
    return start_run(run_dir="")


def own_run() -> Run:
    """The run that this process is recording; without one, a run that records nothing."""
    return live_run() or inert_run()


def now_ns() -> int:
    """The time of this process's run; the wall clock before it has one."""
    return own_run().now_ns()


def version_of(*distributions: str) -> str | None:
    """Return the version of the first of these distributions that is installed; None if none is."""
    for distribution in distributions:
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(distribution)
    return None


def leave_samples_to_framework() -> None:
    """Stop engine hooks in this process and its children from recording samples, because a framework's hook does.

    A sample recorded by both would count twice, under two names. RLSCOPE_SAMPLES=engine takes precedence.
    """
    os.environ.setdefault(_SAMPLES_VARIABLE, "framework")


def engine_samples_wanted() -> bool:
    """Return whether an engine's hook records samples. It does not with RLSCOPE_SAMPLES=framework."""
    return os.environ.get(_SAMPLES_VARIABLE) != "framework"
