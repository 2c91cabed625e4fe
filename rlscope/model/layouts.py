"""Which layouts a run of so many GPUs could have: what the granularity of engines, replicas and nodes allows."""

import math
from dataclasses import dataclass
from typing import Final

from rlscope.model.system import Layout

RUNNING_FACTORS: Final = (0.25, 0.35, 0.5, 0.71, 1.0, 1.41, 2.0, 2.83, 4.0)
"""Running requests to try over today's limit, in half doublings: finer steps differ by less than the fit knows."""


@dataclass(frozen=True, slots=True)
class Granularity:
    """The smallest pieces that GPUs can be moved in."""

    gpus_per_engine: int
    gpus_per_trainer_replica: int = 1
    gpus_per_node: int = 1
    """Above 1: a node belongs to one side as a whole."""


def possible_layouts(gpus: int, granularity: Granularity, running: tuple[int, ...]) -> tuple[Layout, ...]:
    """Every split of `gpus` into at least one trainer replica and one engine, by each limit of running requests.

    GPUs that make no whole engine stay idle; a split that leaves a whole one idle is not listed.
    """
    nodes = granularity.gpus_per_node
    step = math.lcm(granularity.gpus_per_trainer_replica, nodes)
    layouts: list[Layout] = []
    for trainer_gpus in range(step, gpus, step):
        left = (gpus - trainer_gpus) // nodes * nodes
        sampler_gpus = left // granularity.gpus_per_engine * granularity.gpus_per_engine
        if sampler_gpus:
            layouts += [Layout(trainer_gpus, sampler_gpus, limit) for limit in running]
    return tuple(layouts)


def running_limits(today: int, safe_batch: float | None) -> tuple[int, ...]:
    """Limits of running requests to try: around today's, up to what the KV cache holds safely; today's always."""
    most = float("inf") if safe_batch is None else max(1.0, safe_batch)
    tried = {max(1, round(today * factor)) for factor in RUNNING_FACTORS}
    return tuple(sorted({limit for limit in tried if limit <= most} | {today}))
