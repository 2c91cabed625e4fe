"""Time that the engines need for the samples of one step, by their running batch, and the batch for a given time.

The batch is a mean and need not be whole; below one request it is the share of the time in which an engine has one. Not
covered: engines that differ, batches that vary over time, and prompts cached between the members of a group.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

import numpy as np

from rlscope.model.arrays import Reals
from rlscope.model.decode.curves import RooflineCurve, curve_per_line
from rlscope.model.hardware.kv_cache import KvLoad, safe_batch, steady_kv_load
from rlscope.model.numerics.rootfind import Condition, bisect_condition, first_bracket
from rlscope.model.system import Engine, System, WeightUpdateCost, Workload

LEAST_RUNNING: Final = 1e-3
"""Lower end of searches for a running batch: an engine that has a request 0.1% of the time."""
_SCAN_POINTS: Final = 33
"""Points, evenly spaced in log, between which a condition is assumed to change at most once."""


@dataclass(frozen=True, slots=True, eq=False)
class Sampling:
    """The engines' side of a system, reduced to the numbers that its equations need.

    It can hold several systems at once: numbers that differ have one entry per entry of the last axis of the arguments.
    """

    engine: Engine
    curve: RooflineCurve
    mean_tokens: float
    samples_per_step: float
    """Samples that must finish for one step: those trained and those filtered."""
    resident_tokens: float
    """Mean KV tokens of a running request."""
    kv_running: float
    """Requests that fit in the KV cache safely; infinite if the capacity is unknown."""
    prompt_s: Reals | float
    """Engine seconds for the tokens of one prompt."""
    prefill_pass_s: Reals | float
    """Engine seconds of a pass that computes prompts, excluding their tokens."""
    pause_s: float
    """Engine seconds per publication in which nothing is generated."""
    recompute_s: Reals | float
    """Engine seconds per publication and running request to recompute its KV."""
    recompute_pass_s: Reals | float
    """Engine seconds of the pass that recomputes the KV after a publication, excluding its tokens."""

    def pass_s(self, running: Reals) -> Reals:
        """Seconds of a decode pass over `running` requests of average age, at least one."""
        batch = np.maximum(running, 1.0)
        return self.curve.pass_s(batch) + self.curve.kv_s_per_token * self.resident_tokens * batch

    def prefill_s(self, running: Reals | float) -> Reals:
        """Engine seconds to prefill one prompt, which shares its pass with prompts that join at the same time."""
        return self.prompt_s + self.prefill_pass_s * passes_per_sample(self.mean_tokens, running)

    def busy_s(self, running: Reals) -> Reals:
        """Engine seconds in passes per sample, mu t(b) / b + P / r + u.

        That is the time of its passes, shared by the batch, and its prefill, during which the batch waits.
        """
        return self.mean_tokens * self.pass_s(running) / np.maximum(running, 1.0) + self.prefill_s(running)

    def sample_s(self, running: Reals) -> Reals:
        """Engine seconds per sample including, below one request, the engine's idle time."""
        return self.busy_s(running) / np.minimum(running, 1.0)

    def stall_s(self, running: Reals) -> Reals:
        """Engine seconds lost to a publication."""
        return self.pause_s + self.recompute_pass_s * np.minimum(running, 1.0) + self.recompute_s * running

    def period_s(self, running: Reals, engines: Reals) -> Reals:
        """Seconds in which `engines` engines generate the samples of a step, including a publication."""
        return self.stall_s(running) + self.samples_per_step / engines * self.sample_s(running)


def sampling_of(system: System) -> Sampling:
    """Reduce a system to the numbers that the engines' equations need."""
    workload, engine, update = system.workload, system.engine, system.update
    load = steady_kv_load(workload.prompt_tokens, workload.lengths)
    return Sampling(
        engine=engine,
        curve=engine.curve,
        mean_tokens=workload.lengths.mean_tokens,
        samples_per_step=workload.samples_per_step / workload.kept_ratio,
        resident_tokens=load.mean_tokens,
        kv_running=_kv_running(workload, engine, load),
        pause_s=update.engine_pause_s,
        **_prefill_costs(workload, update, engine, load.mean_tokens),
    )


def alike(systems: Sequence[System], most: int) -> Iterator[Sequence[System]]:
    """Split systems into parts of up to `most`, in order, whose systems differ only in what a draw of a fit varies.

    That is the time of the engines' passes and prompts, and the trainers.
    """
    for _, group in groupby(systems, key=_shared):
        members = tuple(group)
        yield from (members[first : first + most] for first in range(0, len(members), most))


def sampling_of_each(systems: Sequence[System], lines: int) -> Sampling:
    """Reduce many alike systems, each for `lines` lines in a row."""
    first, engines, sampling = systems[0], [system.engine for system in systems], sampling_of(systems[0])
    if len(systems) == 1:
        return sampling
    costs = [_prefill_costs(first.workload, first.update, engine, sampling.resident_tokens) for engine in engines]
    return replace(
        sampling,
        curve=curve_per_line([engine.curve for engine in engines], lines),
        **{name: np.repeat([each[name] for each in costs], lines) for name in costs[0]},
    )


def _shared(system: System) -> tuple[object, ...]:
    engine = system.engine
    limits = (engine.gpus, engine.max_running, engine.kv_capacity_tokens)
    return (system.workload, system.update, system.admission, *limits)


def _prefill_costs(
    workload: Workload, update: WeightUpdateCost, engine: Engine, resident_tokens: float
) -> dict[str, float]:
    """Costs of prompts and of what is recomputed after a publication, by their name in `Sampling`."""
    rate, recomputes = engine.prefill_tokens_per_s, not update.kv_kept
    return {
        "prompt_s": workload.prompt_tokens / rate if rate else 0.0,
        "prefill_pass_s": engine.prefill_pass_s,
        "recompute_s": resident_tokens / rate if rate and recomputes else 0.0,
        "recompute_pass_s": engine.prefill_pass_s if recomputes else 0.0,
    }


def passes_per_sample(mean_tokens: float, running: Reals | float) -> Reals:
    """Passes that compute prompts, per sample: 1 if every request joins alone, mu / b if some join before every pass.

    Each of b requests ends with a pass with probability 1 / mu, and the ones that follow join together: (1 - (1 -
    1/mu)^b) mu / b. Own derivation, for engines that always have requests waiting.
    """
    batch = np.maximum(running, 1.0)
    ends_ratio = 1.0 / max(mean_tokens, 1.0)
    with np.errstate(divide="ignore"):
        some_end = -np.expm1(batch * np.log1p(-ends_ratio))
    return some_end / (batch * ends_ratio)


def first_running(holds: Condition, highest: Reals) -> Reals:
    """Smallest batch in [LEAST_RUNNING, highest] for which a condition holds, per entry; NaN if there is none.

    A scan finds the first interval that ends where the condition holds.
    """
    steps = np.linspace(0.0, 1.0, _SCAN_POINTS)[:, None]
    scan = LEAST_RUNNING * (np.maximum(highest, LEAST_RUNNING) / LEAST_RUNNING) ** steps
    held = holds(scan)
    if not held.any():
        return np.full(highest.shape, np.nan)
    _, found = bisect_condition(holds, *first_bracket(scan, held))
    return np.where(held.any(axis=0), found, np.nan)


def _kv_running(workload: Workload, engine: Engine, load: KvLoad) -> float:
    if engine.kv_capacity_tokens is None:
        return np.inf
    groups = workload.lengths.groups
    correlation = 0.0 if groups is None else max(groups.correlation_ratio, 0.0)
    return safe_batch(load, engine.kv_capacity_tokens, workload.group_size, correlation)
