"""What keeps a layout from running at all, by name."""

import math
from dataclasses import dataclass
from typing import Literal

from rlscope.model.sampler_period import Sampling
from rlscope.model.system import Layout, System

Refusal = Literal["no_trainer", "no_engine", "engine_granularity", "no_request", "kv_memory", "synchronous"]
"""no_trainer: no GPU trains. no_engine: too few GPUs for one engine. engine_granularity: GPUs that make no whole
engine. no_request: the limit on running requests is below 1. kv_memory: the KV cache holds no prompt with the longest
response, or not one request safely. synchronous: a staleness cap that only a synchronous run keeps: 0, or one that the
batches taken ahead leave no version of."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A layout that cannot run, and why."""

    layout: Layout
    reason: Refusal


def refused(system: System, sampling: Sampling, layout: Layout) -> Refused | None:
    """The layout with the first reason for which it cannot run; None when it can."""
    reason = _reason(system, sampling, layout)
    return None if reason is None else Refused(layout, reason)


def _reason(system: System, sampling: Sampling, layout: Layout) -> Refusal | None:
    engine, lengths = system.engine, system.workload.lengths
    if layout.trainer_gpus < 1:
        return "no_trainer"
    if layout.sampler_gpus < engine.gpus:
        return "no_engine"
    if layout.sampler_gpus % engine.gpus:
        return "engine_granularity"
    if min(layout.running_per_engine, engine.max_running) < 1:
        return "no_request"
    longest_tokens = system.workload.prompt_tokens + lengths.max_tokens
    if longest_tokens > (engine.kv_capacity_tokens or math.inf) or sampling.kv_running < 1.0:
        return "kv_memory"
    return "synchronous" if _leaves_no_version(system) else None


def _leaves_no_version(system: System) -> bool:
    """Whether samples would have to be of the newest version when they are taken; a drop asks it of no later age."""
    cap = system.admission.max_staleness
    ahead = 0.0 if system.admission.queue_policy == "drop_by_age" else system.workload.batches_ahead
    return cap is not None and cap <= ahead
