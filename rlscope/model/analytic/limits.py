"""Limits that hold the samplers back, one by one, and layouts that cannot run at all.

The limits are applied in a fixed order: hardware, the cap on samples in flight, the environment, the staleness cap. Not
covered: limits that bind only now and then because the load varies, and the shorter lengths left after drops for
staleness; only the event simulator models those.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

import numpy as np

from rlscope.model.analytic.engine_time import Sampling, first_running
from rlscope.model.arrays import Flags, Reals
from rlscope.model.lengths import LengthLaw, independent_members
from rlscope.model.numerics.rootfind import Condition, bisect_condition
from rlscope.model.system import Layout, System
from rlscope.model.training.step_time import TrainerStep

Refusal = Literal["no_trainer", "no_engine", "engine_granularity", "no_request", "kv_memory", "synchronous"]
"""no_trainer: no GPU trains. no_engine: too few GPUs for one engine. engine_granularity: the GPUs make no whole number
of engines. no_request: the limit on running requests is below 1. kv_memory: the KV cache does not hold a prompt with
the longest response, or not one request safely. synchronous: only a synchronous run keeps the staleness cap, which is 0
or no larger than the prefetched batches."""

_MEAN_QUEUED: Final = 0.5
"""Mean queue length as a share of a batch, if the trainers wait for samples and the queue fills evenly from empty."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A layout that cannot run, and why."""

    layout: Layout
    reason: Refusal


def refusal(system: System, sampling: Sampling, layout: Layout) -> Refusal | None:
    """Return the first reason why a layout cannot run; None if it can."""
    engine, lengths = system.engine, system.workload.lengths
    if layout.trainer_gpus < 1:
        return "no_trainer"
    if layout.sampler_gpus < engine.gpus:
        return "no_engine"
    if layout.sampler_gpus % engine.gpus:
        return "engine_granularity"
    if min(layout.max_running, engine.max_running) < 1:
        return "no_request"
    longest_tokens = system.workload.prompt_tokens + lengths.max_tokens
    if longest_tokens > (engine.kv_capacity_tokens or math.inf) or sampling.kv_running < 1.0:
        return "kv_memory"
    return "synchronous" if _leaves_no_version(system) else None


def _leaves_no_version(system: System) -> bool:
    """Whether samples would have to be of the newest version when taken; a drop does not check them later."""
    cap = system.admission.max_staleness
    prefetched = 0.0 if system.admission.staleness_policy == "drop" else system.workload.prefetched_batches
    return cap is not None and cap <= prefetched


@dataclass(frozen=True, slots=True, eq=False)
class SamplerFleet:
    """A system laid out in several ways at once; the arrays have one entry per layout, and all layouts can run."""

    system: System
    sampling: Sampling
    engines: Reals
    places: Reals
    """Limit on the requests of an engine, as set."""
    trainers: TrainerStep

    def allowed_places(self) -> Reals:
        """Limit on the requests of an engine, including its share of the cap on running samples over all engines."""
        most = self.system.admission.max_running_samples
        return self.places if most is None else np.minimum(self.places, most / self.engines)

    def period_s(self, running: Reals) -> Reals:
        """Seconds of a step if the engines, with this running batch, are the slower side."""
        return self.sampling.period_s(running, self.engines)

    def step_s(self, running: Reals) -> Reals:
        """Seconds of a step: those of the slower side."""
        return np.maximum(self.period_s(running), self.trainers.total_s)

    def versions_per_token(self, running: Reals) -> Reals:
        """Versions per generated token by Little's law: C / (samples per step * mean length).

        Every sample that finishes is assumed to be used.
        """
        return running * self.engines / (self.sampling.samples_per_step * self.sampling.mean_tokens)

    def update_lag(self, running: Reals, step_s: Reals) -> Reals:
        """Periods from taking a batch to the first token of the version that its step makes.

        The lag counts time in which engines generate: during a pause for new weights no token ages. It spans as many
        pauses of earlier versions as it has whole periods. If trainers take several batches for a version, it is the
        lag of the last.
        """
        lag_s = self.trainers.work_s / self.system.workload.batches_per_version + self.system.update.delay_s
        stall_s = self.sampling.stall_s(running)
        return (lag_s - np.floor(lag_s / step_s) * stall_s) / (step_s - stall_s)

    def group_tail_ratio(self) -> float:
        """Samples running or waiting for their group, over those running."""
        return self.system.workload.lengths.group_tail_ratio(self.system.workload.unit_samples)

    def untrained(self, running: Reals) -> Reals:
        """Mean number of samples taken by the trainers that still count against the cap in flight."""
        workload = self.system.workload
        if not self.system.admission.in_flight_until_trained:
            return np.zeros_like(running)
        batches = self.trainers.work_s / self.step_s(running) + workload.prefetched_batches
        return workload.samples_per_step * batches

    def mean_queued(self) -> float:
        """Mean number of queued samples if the trainers wait for samples."""
        admission, batches = self.system.admission, self.system.workload.batches_per_version
        most = (
            self.sampling.samples_per_step / batches,
            admission.queue_capacity_samples,
            admission.max_in_flight_samples,
        )
        return _MEAN_QUEUED * min(samples for samples in most if samples is not None)


@dataclass(frozen=True, slots=True, eq=False)
class Levels:
    """The engines under all limits, if the samplers are the slower side."""

    step_s: Reals
    """Seconds of a step."""
    hardware_running: Reals
    """Running batch under the set limit, the engine's own, and the KV cache's."""
    running: Reals
    """Running batch under all limits."""


def sampler_levels(fleet: SamplerFleet) -> Levels:
    """Apply the limits one after the other."""
    hardware = np.minimum(fleet.places, min(fleet.system.engine.max_running, fleet.sampling.kv_running))
    running = _under_staleness(fleet, _under_environment(fleet, _under_admission(fleet, hardware)))
    return Levels(fleet.period_s(running) / (1.0 - _aged_ratio(fleet, running)), hardware, running)


def _under_admission(fleet: SamplerFleet, most: Reals) -> Reals:
    """Keep running, waiting and queued samples within the cap in flight, and running ones within their own cap."""
    cap, allowed = fleet.system.admission.max_in_flight_samples, np.minimum(most, fleet.allowed_places())
    if cap is None:
        return allowed
    engines, room = fleet.group_tail_ratio() * fleet.engines, cap - fleet.mean_queued()
    if fleet.system.admission.in_flight_until_trained:
        return _until(lambda running: engines * running + fleet.untrained(running) > room, allowed)
    return np.minimum(allowed, room / engines)


def _under_environment(fleet: SamplerFleet, most: Reals) -> Reals:
    """Account for samples outside: they may hold one of an engine's places, and count as in flight."""
    workload, cap = fleet.system.workload, fleet.system.admission.max_in_flight_samples
    if workload.environment_s == 0.0:
        return most
    most_in_flight = np.inf if cap is None else (cap - fleet.mean_queued()) / fleet.engines
    tail_ratio, places = fleet.group_tail_ratio(), fleet.allowed_places()

    def is_full(running: Reals) -> Flags:
        finished_per_s = fleet.sampling.samples_per_step / (fleet.engines * fleet.period_s(running))
        outside, held = workload.environment_s * finished_per_s, workload.place_held_s * finished_per_s
        in_flight = tail_ratio * running + outside + fleet.untrained(running) / fleet.engines
        return (running + held > places) | (in_flight > most_in_flight)

    return _until(is_full, most)


def _under_staleness(fleet: SamplerFleet, most: Reals) -> Reals:
    """Apply a staleness cap that a side waits for, by either policy."""
    admission = fleet.system.admission
    if admission.max_staleness is None or not admission.waits_for_cap:
        return most
    passes_cap = _exceeds_admission if admission.staleness_policy == "admission" else _makes_too_stale
    return _until(passes_cap(fleet, admission.max_staleness), most)


def _exceeds_admission(fleet: SamplerFleet, cap: int) -> Condition:
    """Condition that a batch exceeds the cap by admission.

    Started samples are at most cap + 1 steps ahead of those trained on, so cap steps' worth are in flight while the
    trainers work, and one more while they wait (the rule of AReaL, Fu et al. 2025). Prefetched batches count. Of k
    batches that make a version, only the one that the trainers work on is gone: on average, (k - 1) / (2 k) steps'
    worth more is in flight, and 1 / k more while they wait (own derivation).
    """
    samples, tail_ratio = fleet.system.workload.samples_per_step, fleet.group_tail_ratio()
    batches = fleet.system.workload.batches_per_version
    spare_versions = cap - fleet.system.workload.prefetched_batches

    def is_over(running: Reals) -> Flags:
        step_s = fleet.step_s(running)
        waiting_ratio = (1.0 - fleet.trainers.total_s / step_s + (batches - 1) / 2) / batches
        outside = fleet.system.workload.environment_s * fleet.sampling.samples_per_step / step_s
        in_flight = tail_ratio * running * fleet.engines + outside + fleet.mean_queued()
        return in_flight > (spare_versions + waiting_ratio) * samples

    return is_over


def _makes_too_stale(fleet: SamplerFleet, cap: int) -> Condition:
    """Condition that the longest sample of a step is staler than the cap when it is trained on.

    It generates for longest * versions per token, and then lags by an update. Trainers that wait for it before they
    publish, and samplers that are held back until they publish, both settle where its staleness equals the cap.
    """
    workload = fleet.system.workload
    longest_tokens = workload.lengths.longest_of(fleet.sampling.samples_per_step).mean_tokens

    def is_over(running: Reals) -> Flags:
        step_s = fleet.step_s(running)
        constant = workload.environment_s / step_s + fleet.update_lag(running, step_s) + workload.prefetched_batches
        return longest_tokens * fleet.versions_per_token(running) + constant > cap

    return is_over


def _aged_ratio(fleet: SamplerFleet, running: Reals) -> Reals:
    """Share of samples whose oldest token is beyond the cap when a batch is taken, if stale samples are dropped.

    Dropped samples are generated again, which lengthens the step and makes tokens less stale; the share is the one that
    is consistent with both.
    """
    workload, admission = fleet.system.workload, fleet.system.admission
    cap = admission.max_staleness
    if cap is None or not admission.drops_stale:
        return np.zeros_like(running)
    law = oldest_token_law(workload.lengths, workload.unit_samples)
    period_s, full_rate = fleet.period_s(running), fleet.versions_per_token(running)

    def is_enough(dropped_ratio: Reals) -> Flags:
        step_s = np.maximum(period_s / (1.0 - dropped_ratio), fleet.trainers.total_s)
        constant = workload.environment_s / step_s + fleet.update_lag(running, step_s)
        return older_ratio(law, full_rate * period_s / step_s, cap - constant) <= dropped_ratio

    return bisect_condition(is_enough, np.zeros_like(running), np.ones_like(running))[0]


def older_ratio(law: LengthLaw, versions_per_token: Reals, cap: Reals) -> Reals:
    """Share of samples that are staler than the cap, in versions, when their group is complete.

    Staleness counts the versions from the first token on. With a constant period it is floor(L v - U) + 1 after L
    tokens of v versions each, where U is uniform in 0..1, so the share is E[clip(L v - cap, 0, 1)] (own derivation).
    """
    rate = np.maximum(versions_per_token, np.finfo(np.float64).tiny)

    def excess(versions: Reals) -> Reals:
        """E[max(L * rate - versions, 0)]; below 0 nothing is cut off."""
        inside = rate * law.excess_tokens(np.minimum(np.maximum(versions, 0.0) / rate, law.max_tokens))
        return np.where(versions < 0.0, law.mean_tokens * rate - versions, inside)

    return np.clip(excess(cap) - excess(cap + 1.0), 0.0, 1.0)


@lru_cache(maxsize=8)
def oldest_token_law(lengths: LengthLaw, group_size: int) -> LengthLaw:
    """Tokens from the start of a sample until its group is complete: the distribution of the longest member.

    Cached: it is the same for every layout and every draw.
    """
    return lengths.longest_of(independent_members(lengths, group_size))


def _until(is_over: Condition, most: Reals) -> Reals:
    """Largest batch, up to `most`, before a limit is passed."""
    return np.fmin(first_running(is_over, most), most)
