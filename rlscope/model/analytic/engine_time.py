"""How long the engines need for the samples of one step, by their running batch; and which batch takes a given time.

The batch is a mean and need not be whole; below one request it is the share of the time in which an engine has one. Not
covered: engines that differ, batches that vary over time, and prompts cached between the members of a group.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from rlscope.model.arrays import Reals
from rlscope.model.hardware.kv_cache import KvLoad, safe_batch, steady_kv_load
from rlscope.model.numerics.rootfind import Condition, bisect_condition, first_bracket
from rlscope.model.system import Engine, System, WeightUpdate, Workload

LEAST_RUNNING: Final = 1e-3
"""Where searches for a running batch begin: an engine that has a request one part in a thousand of the time."""
_SCAN_POINTS: Final = 33
"""Points, evenly spaced in the logarithm, between which a condition is taken to change once."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """The engines' side of a system, reduced to the numbers that its equations need."""

    engine: Engine
    mean_tokens: float
    samples_per_step: float
    """Samples that must finish for one step: those trained and those filtered."""
    resident_tokens: float
    """KV tokens that a running request holds on average."""
    kv_running: float
    """Requests that fit in the KV cache safely; infinite where no capacity is known."""
    prompt_s: float
    """Engine seconds that the tokens of one prompt take."""
    prefill_pass_s: float
    """Engine seconds of a pass that computes prompts, besides those."""
    pause_s: float
    """Engine seconds per publication in which nothing is generated."""
    recompute_s: float
    """Engine seconds per publication and running request to compute its KV again."""

    def pass_s(self, running: Reals) -> Reals:
        """Seconds of a decode pass over `running` requests of average age, at least one."""
        batch = np.maximum(running, 1.0)
        return self.engine.curve.pass_s(batch) + self.engine.curve.kv_s_per_token * self.resident_tokens * batch

    def prefill_s(self, running: Reals | float) -> Reals:
        """Engine seconds to prefill one prompt, which shares its pass with those that join at the same time."""
        return self.prompt_s + self.prefill_pass_s * passes_per_sample(self.mean_tokens, running)

    def busy_s(self, running: Reals) -> Reals:
        """Engine seconds in passes that a sample takes, mu t(b) / b + P / r + u: the time of its passes shared by the
        batch, and its prefill, in which the batch waits.
        """
        return self.mean_tokens * self.pass_s(running) / np.maximum(running, 1.0) + self.prefill_s(running)

    def sample_s(self, running: Reals) -> Reals:
        """The same, and below one request the engine's idle time."""
        return self.busy_s(running) / np.minimum(running, 1.0)

    def stall_s(self, running: Reals) -> Reals:
        """Engine seconds that a publication takes away."""
        return self.pause_s + self.recompute_s * running

    def period_s(self, running: Reals, engines: Reals) -> Reals:
        """Seconds in which `engines` engines generate the samples of a step, a publication included."""
        return self.stall_s(running) + self.samples_per_step / engines * self.sample_s(running)


def sampling_of(system: System) -> Sampling:
    """Reduce a system to what the engines' equations need."""
    workload, engine, update = system.workload, system.engine, system.update
    lengths = workload.lengths
    load = steady_kv_load(workload.prompt_tokens, lengths.mean_tokens, lengths.second_moment, lengths.third_moment)
    rate_per_s = engine.prefill_tokens_per_s
    return Sampling(
        engine=engine,
        mean_tokens=lengths.mean_tokens,
        samples_per_step=workload.samples_per_step / workload.kept_ratio,
        resident_tokens=load.mean_tokens,
        kv_running=_kv_running(workload, engine, load),
        prompt_s=workload.prompt_tokens / rate_per_s if rate_per_s else 0.0,
        prefill_pass_s=engine.prefill_pass_s,
        pause_s=update.engine_pause_s,
        recompute_s=_recompute_s(update, load.mean_tokens, rate_per_s),
    )


def passes_per_sample(mean_tokens: float, running: Reals | float) -> Reals:
    """Passes that compute prompts, for each sample: 1 where all join alone, mu / b where some join before every pass.

    Of b requests each ends with a pass with probability 1 / mu, and the ones that follow join together:
    (1 - (1 - 1/mu)^b) mu / b. Own derivation, for engines that always have requests waiting.
    """
    batch = np.maximum(running, 1.0)
    ends_ratio = 1.0 / max(mean_tokens, 1.0)
    with np.errstate(divide="ignore"):
        some_end = -np.expm1(batch * np.log1p(-ends_ratio))
    return some_end / (batch * ends_ratio)


def first_running(holds: Condition, highest: Reals) -> Reals:
    """The smallest batch in [LEAST_RUNNING, highest] for which a condition holds, one per entry; NaN where none does.

    A scan finds the first interval at whose end the condition holds.
    """
    steps = np.linspace(0.0, 1.0, _SCAN_POINTS)[:, None]
    scan = LEAST_RUNNING * (np.maximum(highest, LEAST_RUNNING) / LEAST_RUNNING) ** steps
    held = holds(scan)
    _, found = bisect_condition(holds, *first_bracket(scan, held))
    return np.where(held.any(axis=0), found, np.nan)


def _kv_running(workload: Workload, engine: Engine, load: KvLoad) -> float:
    if engine.kv_capacity_tokens is None:
        return np.inf
    groups = workload.lengths.groups
    if groups is None:
        return safe_batch(load, engine.kv_capacity_tokens)
    correlation = max(groups.correlation_ratio, 0.0)
    return safe_batch(load, engine.kv_capacity_tokens, group_size=workload.group_size, group_correlation=correlation)


def _recompute_s(update: WeightUpdate, resident_tokens: float, prefill_tokens_per_s: float | None) -> float:
    if update.kv_kept or prefill_tokens_per_s is None:
        return 0.0
    return resident_tokens / prefill_tokens_per_s
