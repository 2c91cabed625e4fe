"""The step of a synchronous run: generate all samples, then train on them.

Either all GPUs do both, or each side has its own GPUs and idles while the other works. If they fit, all requests of an
engine start together, so batch and resident tokens follow from the length distribution; the rest start as others
finish. The number of running requests is its mean at every pass. Not covered: differences between engines, by luck or
by hardware, which make a real step a little longer; aborting stragglers; and moving weights between the phases of one
GPU (give it as a trainer phase).
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from rlscope.model.analytic.engine_time import sampling_of
from rlscope.model.arrays import Reals
from rlscope.model.decode.curves import RooflineCurve
from rlscope.model.lengths import LengthLaw, independent_members
from rlscope.model.system import Layout, System
from rlscope.model.training.step_time import trainer_step

_SLICES: Final = 256
"""Slices of the longest length for generation in waves; the error of its time is below 1%."""
_MOST_FILTERED_GROUPS: Final = 0.1
"""Mean filtered groups of a step above which replacing them matters: each may take nearly as long as the others did."""


@dataclass(frozen=True, slots=True)
class SynchronousStep:
    """One synchronous step; its parts add up."""

    step_s: float
    generation_s: float
    """Decode passes of the engines, from the first to the last."""
    prefill_s: float
    environment_s: float
    """Counted once: the wait of the sample that ends the step."""
    train_s: float
    update_s: float
    trained_tokens_per_s: float
    """Response tokens per second."""
    running: float
    """Requests in an engine's batch at the start."""


def colocated_step(system: System, gpus: int, max_running: int | None = None) -> SynchronousStep | None:
    """Step in which all GPUs generate and then all train. No limit: the engine's own.

    None if no engine fits, or if groups are filtered: whether a synchronous run replaces them one by one, in rounds or
    by generating more than it needs is unknown, and changes its rate by a third or more.
    """
    workload = system.workload
    if (1.0 - workload.kept_ratio) * workload.samples_per_step > _MOST_FILTERED_GROUPS * workload.group_size:
        return None
    limit = system.engine.max_running if max_running is None else max_running
    return split_step(system, Layout(gpus, gpus, limit))


def split_step(system: System, layout: Layout) -> SynchronousStep | None:
    """Step in which each side has its own GPUs; None if the layout has no trainer, no engine or no place.

    Generation is a sum over passes; all requests of an engine start at once if they fit.
    """
    engines = layout.sampler_gpus // system.engine.gpus
    limit = _running_limit(system, layout)
    if engines < 1 or layout.trainer_gpus < 1 or limit < 1.0:
        return None
    workload, update, sampling = system.workload, system.update, sampling_of(system)
    samples = sampling.samples_per_step / engines
    # The longest of a step is shorter if the samples of a group are alike.
    alike_ratio = independent_members(workload.lengths, workload.group_size) / workload.group_size
    independent = sampling.samples_per_step * alike_ratio
    curve, prompt_tokens = system.engine.curve, workload.prompt_tokens
    trainers = trainer_step(system.trainer, workload, update, float(layout.trainer_gpus))
    parts_s = (
        decode_batch_s(curve, workload.lengths, samples, limit, independent, prompt_tokens),
        samples * float(sampling.prefill_s(min(samples, limit))),
        workload.environment_s,
        float(trainers.work_s),
        update.seconds,
    )
    step_s = sum(parts_s)
    tokens_per_s = workload.samples_per_step * sampling.mean_tokens / step_s
    return SynchronousStep(step_s, *parts_s, tokens_per_s, min(samples, limit))


def _running_limit(system: System, layout: Layout) -> float:
    engine, workload = system.engine, system.workload
    limit = float(min(layout.max_running, engine.max_running))
    if engine.kv_capacity_tokens is None:
        return limit
    return min(limit, largest_batch(workload.lengths, workload.prompt_tokens, engine.kv_capacity_tokens))


def decode_batch_s(
    curve: RooflineCurve,
    lengths: LengthLaw,
    samples: float,
    running_limit: float,
    independent: float,
    prompt_tokens: float,
) -> float:
    """Seconds from the first pass of an engine to the last, excluding prefill.

    samples: mean responses of the engine. running_limit: maximum that runs at once. independent: independent responses
    of the whole step; it ends with the slowest one. Sum over passes k of t(n S(k - 1)) with n S(k - 1) (P + k - 1)
    resident tokens (the synchronous step of Applied Compute's talk, 2025; the KV term is our own), each weighted with
    the probability that a sample of the step still runs. In waves, the requests that start are computed slice by slice
    from those that finish.
    """
    if samples <= running_limit:
        passes = np.arange(np.ceil(lengths.max_tokens))
        slice_tokens, running = 1.0, samples * lengths.survival(passes)
        resident = running * (prompt_tokens + passes)
    else:
        slice_tokens = max(lengths.max_tokens / _SLICES, 1.0)
        running, resident = _waves(lengths, samples, running_limit, prompt_tokens, slice_tokens)
    needed = 1.0 - (1.0 - np.minimum(running / samples, 1.0)) ** independent
    # An engine that still runs has a request; the mean over all engines, some of them done, may be below one.
    alone = np.maximum(1.0 / np.maximum(running, 1e-300), 1.0)
    running, resident = running * alone, resident * alone
    seconds = curve.pass_s(running) + curve.kv_s_per_token * resident
    return float((needed * seconds).sum()) * slice_tokens


def _waves(
    lengths: LengthLaw, samples: float, running_limit: float, prompt_tokens: float, slice_tokens: float
) -> tuple[Reals, Reals]:
    """Running requests and their resident tokens, slice by slice: as many start as keep the batch full.

    A request that starts with a slice runs for a share of every later one, the mean of S over it; so tokens are
    conserved, whatever the slices.
    """
    edges = np.arange(np.ceil(lengths.max_tokens / slice_tokens) + 1.0) * slice_tokens
    alive = -np.diff(lengths.excess_tokens(edges)) / slice_tokens
    most_slices = int(samples / running_limit * lengths.mean_tokens / slice_tokens) + 2 * alive.size
    starts = np.zeros(most_slices)
    waiting, now = samples, 0
    while waiting > 0.0:
        window = min(now, alive.size - 1)
        running = float((starts[now - window : now][::-1] * alive[1 : window + 1]).sum())
        starts[now] = min(max(running_limit - running, 0.0) / alive[0], waiting)
        waiting, now = waiting - starts[now], now + 1
    ages = prompt_tokens + (edges[:-1] + edges[1:]) / 2.0
    running = np.convolve(starts[:now], alive).astype(np.float64)
    return running, np.convolve(starts[:now], alive * ages).astype(np.float64)


def largest_batch(lengths: LengthLaw, prompt_tokens: float, capacity_tokens: float) -> float:
    """Mean number of requests that can start together without overflowing the KV cache at any age."""
    ages = lengths.support
    alive = np.append(1.0, lengths.survival(ages)[:-1])
    return capacity_tokens / float((alive * (prompt_tokens + ages)).max())
