"""Ray: passes a driver's run folder to the actors that it starts.

    ray.init(runtime_env=rlscope_ray.runtime_env())          # every actor records into RLSCOPE_RUN_DIR
    Sampler.options(runtime_env=rlscope_ray.runtime_env(role="sampler", worker_id="sampler-0")).remote()

Records nothing by itself: an actor records once it calls `rlscope_otel.start_run()` or loads a hook. Actors of a local
cluster inherit the driver's environment, and with it the driver's role, name and GPU count. With `runtime_env` they get
only what is passed to it, and by default a name of their own (`<role>-<host>-<pid>`).

What can be lost: `ray.kill`, `ray.shutdown` in the driver and a lost node end an actor without running its exit hooks.
The rows of its last flush interval (2 s) and open spans are lost, and the report lists the worker as not stopped. An
actor that ends normally (its last handle goes out of scope, or `ray.actor.exit_actor()`) loses nothing.

Run with ray 2.60.0 on one machine. Not run: a cluster of several nodes; there, put the run folder on a shared file
system.
"""

from collections.abc import Mapping
from typing import Any

from rlscope_otel import settings


def runtime_env(
    base: Mapping[str, Any] | None = None,
    *,
    role: str | None = None,
    worker_id: str | None = None,
    gpu_count: int | None = None,
) -> dict[str, Any]:
    """Ray's `runtime_env` with the variables that an actor needs to record; `base` and its variables take precedence.

    Without a run folder in RLSCOPE_RUN_DIR it is a copy of `base`, and the actors record nothing.
    """
    wanted = dict(base or {})
    folder = settings.run_dir_of(None)
    if folder is None:
        return wanted
    variables = {
        settings.RUN_DIR_VARIABLE: str(folder),
        settings.ROLE_VARIABLE: role or "",
        settings.WORKER_ID_VARIABLE: worker_id or "",
        settings.GPU_COUNT_VARIABLE: "" if gpu_count is None else str(gpu_count),
    }
    return {**wanted, "env_vars": {**variables, **(wanted.get("env_vars") or {})}}
