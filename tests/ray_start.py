"""Ray on this machine for a test, started again if a busy machine did not bring it up in time."""

from collections.abc import Callable
from typing import Any

STARTS = 3
NODE_TIMED_OUT = "timed out during startup"
"""Ray waits 30 s for a node, which nothing can set. What it started by then ends with the process that started it."""


def started(start: Callable[[], Any]) -> Any:
    """Start a cluster, up to three times if its node times out."""
    for _ in range(STARTS - 1):
        try:
            return start()
        except Exception as error:  # Ray raises no class of its own here
            if NODE_TIMED_OUT not in str(error):
                raise
    return start()


def start_ray(**given: Any) -> None:
    """Start a cluster of 4 CPUs: "local" never joins what another test left behind or a developer runs."""
    import ray

    started(
        lambda: ray.init(
            "local",
            num_cpus=4,
            include_dashboard=False,
            object_store_memory=100 * 2**20,
            logging_level="ERROR",
            **given,
        )
    )
