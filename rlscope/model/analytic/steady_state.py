"""Steady state of an asynchronous run: its rate, the side that limits it, and roughly how stale its samples get.

Two facts determine it: the trainers consume what the engines produce, and the concurrency sets the staleness of tokens
(the idea is from Applied Compute's talk on asynchronous RL, 2025; weight updates, prefill, the KV cache, limits and
waits are own additions). It is a fluid model: mean lengths, mean loads, a constant period. It errs by up to 8% of the
period where a cap binds, samples age out, or engines run few requests: it says which layouts are worth simulating, and
how the rates of draws differ. What is shown is simulated. Not covered: engines that differ or drain before they take
new weights, tails, stragglers and noise, queues that hand out the newest samples first, and trainers that prefetch only
what is ready.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from rlscope.model.analytic.engine_time import alike, first_running, sampling_of, sampling_of_each
from rlscope.model.analytic.limits import (
    Levels,
    Refusal,
    Refused,
    SamplerFleet,
    older_ratio,
    oldest_token_law,
    refusal,
    sampler_levels,
)
from rlscope.model.arrays import Flags, Reals
from rlscope.model.numerics.rootfind import bisect_condition
from rlscope.model.system import Admission, Layout, System
from rlscope.model.training.step_time import TrainerStep, trainer_step

Surplus = Literal["held", "dropped", "aged", "grows"]
"""Fate of the surplus of samplers that are faster than the trainers: held back, its oldest samples dropped by a full
queue or as stale, or piled up in a growing queue."""

STALE_QUANTILE: Final = 0.95
"""Quantile over samples, by their oldest token: the share of samples that must keep a cap that drops nothing."""
_LINES_AT_A_TIME: Final = 512
"""Layouts of draws solved at once: with more, the arrays of a search no longer fit into the processor's cache."""


@dataclass(frozen=True, slots=True)
class SteadyState:
    """One layout in steady state."""

    layout: Layout
    step_s: float
    """Seconds from one version to the next."""
    trained_tokens_per_s: float
    """Response tokens per second."""
    train_s: float
    """Part of step_s that the trainers need themselves, including a blocking publication."""
    running: float
    """Requests in an engine's batch; below 1, the share of the time that it has one."""
    running_limit: float
    """Least of the layout's limit, the engine's own, and the KV cache's."""
    resident_tokens: float
    """KV tokens on an engine."""
    dropped_ratio: float
    """Share of the finished samples that are dropped as stale, or by a full queue."""
    sample_p95: float | None
    """p95 staleness of samples by their oldest token, in versions, if no cap were strict; infinite if only such a cap
    limits it, None if the queue grows. Rough: it only decides what to simulate, and how wide an interval is."""


def steady_states(system: System, layouts: Sequence[Layout]) -> tuple[SteadyState | Refused, ...]:
    """Solve the steady state of each layout, or return why it cannot run; one call for many layouts is much cheaper.

    A layout's max_running is the limit that is set. If the samplers are the faster side and are held back, they
    run the smallest batch that keeps up; if their surplus is dropped, they run at the limit.
    """
    return _solved((system,), layouts)


def steady_states_of_each(systems: Sequence[System], layout: Layout) -> tuple[SteadyState | Refused, ...]:
    """Solve one layout in every system: equal to solving each alone, and much cheaper for many draws."""
    return tuple(state for part in alike(systems, _LINES_AT_A_TIME) for state in _solved(part, (layout,)))


def _solved(systems: Sequence[System], layouts: Sequence[Layout]) -> tuple[SteadyState | Refused, ...]:
    """Solve all layouts in one of the alike systems after the other."""
    sampling = sampling_of(systems[0])
    verdicts: list[tuple[Layout, Refusal | None]] = [(each, refusal(systems[0], sampling, each)) for each in layouts]
    runnable = [layout for layout, reason in verdicts if reason is None]
    states = iter(_states(_fleet(systems, runnable), runnable * len(systems)) if runnable else ())
    return tuple(
        next(states) if reason is None else Refused(layout, reason) for layout, reason in verdicts * len(systems)
    )


def trained_rates(systems: Sequence[System], layouts: Sequence[Layout]) -> Reals:
    """Trained response tokens per second, one row per system and one column per layout; 0 if a layout cannot run.

    Same numbers as `steady_states`, without the rest of the steady state: most draws need no more.
    """
    parts = alike(systems, max(1, _LINES_AT_A_TIME // max(1, len(layouts))))
    return np.concatenate([np.zeros((0, len(layouts))), *(_rates(part, layouts) for part in parts)])


def _rates(systems: Sequence[System], layouts: Sequence[Layout]) -> Reals:
    first, sampling = systems[0], sampling_of(systems[0])
    runs = np.array([refusal(first, sampling, layout) is None for layout in layouts], dtype=np.bool_)
    rates = np.zeros((len(systems), len(layouts)))
    if runs.any():
        fleet = _fleet(systems, [layout for layout, can in zip(layouts, runs, strict=True) if can])
        step_s = _step_s(fleet, sampler_levels(fleet))
        rates[:, runs] = _trained_tokens_per_s(fleet, step_s).reshape(len(systems), -1)
    return rates


def _step_s(fleet: SamplerFleet, levels: Levels) -> Reals:
    return np.maximum(levels.step_s, fleet.trainers.total_s)


def _trained_tokens_per_s(fleet: SamplerFleet, step_s: Reals) -> Reals:
    return fleet.system.workload.samples_per_step * fleet.sampling.mean_tokens / step_s


def _fleet(systems: Sequence[System], layouts: Sequence[Layout]) -> SamplerFleet:
    """Combine the layouts of one alike system after another as if they belonged to one system."""
    first, gpus = systems[0], np.array([layout.trainer_gpus for layout in layouts], dtype=np.float64)
    steps = [trainer_step(each.trainer, each.workload, each.update, gpus) for each in systems]
    engines = np.array([layout.sampler_gpus // first.engine.gpus for layout in layouts], dtype=np.float64)
    places = np.array([layout.max_running for layout in layouts], dtype=np.float64)
    return SamplerFleet(
        first,
        sampling_of_each(systems, len(layouts)),
        engines=np.tile(engines, len(systems)),
        places=np.tile(places, len(systems)),
        trainers=TrainerStep(
            compute_s=np.concatenate([step.compute_s for step in steps]),
            phases_s=np.concatenate([step.phases_s for step in steps]),
            blocked_s=steps[0].blocked_s,
        ),
    )


def _states(fleet: SamplerFleet, layouts: Sequence[Layout]) -> list[SteadyState]:
    levels = sampler_levels(fleet)
    train_s = fleet.trainers.total_s
    step_s = _step_s(fleet, levels)
    running = levels.running
    if surplus_of(fleet.system.admission) == "held":
        # The smallest batch that makes a step's samples in the trainers' time; NaN if there is none.
        running = first_running(lambda batch: fleet.period_s(batch) <= train_s, levels.running)
        running = np.fmin(running, levels.running)
    made_in_s = fleet.period_s(running)
    columns: dict[str, Reals] = {
        "step_s": step_s,
        "trained_tokens_per_s": _trained_tokens_per_s(fleet, step_s),
        "train_s": train_s,
        "running": running,
        "running_limit": levels.hardware_running,
        "resident_tokens": running * fleet.sampling.resident_tokens,
        "dropped_ratio": _dropped_ratio(fleet, made_in_s, step_s),
    }
    numbers = np.stack([*columns.values()]).T.tolist()
    ages = _sample_p95(fleet, levels, running, step_s).tolist()
    return [
        SteadyState(layout, **dict(zip(columns, row, strict=True)), sample_p95=None if math.isnan(age) else age)
        for layout, age, row in zip(layouts, ages, numbers, strict=True)
    ]


def _dropped_ratio(fleet: SamplerFleet, made_in_s: Reals, step_s: Reals) -> Reals:
    if surplus_of(fleet.system.admission) not in ("dropped", "aged"):
        return np.zeros_like(step_s)
    return np.maximum(1.0 - made_in_s / step_s, 0.0)


def surplus_of(admission: Admission) -> Surplus:
    """Fate of a surplus under the limits; a cap on samples in flight holds it back unless something drops it."""
    bounded = admission.queue_capacity_samples is not None
    if admission.queue_policy == "drop_oldest" and bounded:
        return "dropped"
    if admission.drops_stale:
        return "aged"
    in_flight_cap = admission.max_in_flight_samples is not None
    return "held" if bounded or admission.bounds_queue_age or in_flight_cap else "grows"


def strict_cap(system: System) -> float:
    """Return the largest staleness that the rules let a trained sample have, in versions; infinite if they allow any.

    A cap that drops, or that publications wait for, is never exceeded; samples age further after the drop while they
    are prefetched.
    """
    admission = system.admission
    if admission.max_staleness is None:
        return math.inf
    if admission.drops_stale:
        return admission.max_staleness + math.ceil(system.workload.prefetched_batches)
    is_strict = admission.bounds_queue_age and admission.staleness_policy == "publication_waits"
    return float(admission.max_staleness) if is_strict else math.inf


def _sample_p95(fleet: SamplerFleet, levels: Levels, running: Reals, step_s: Reals) -> Reals:
    """p95 staleness of samples by their oldest token, in versions; infinite up to a strict cap, NaN if the queue grows.

    A sample ages until its group is complete, in the queue if the samplers have a surplus, and from then until the
    first token of the version that it is trained into. Little's law gives each part (own derivation).
    """
    workload = fleet.system.workload
    per_token = fleet.versions_per_token(running) * fleet.period_s(running) / step_s
    law = oldest_token_law(workload.lengths, workload.unit_samples)

    def is_rare(versions: Reals) -> Flags:
        return older_ratio(law, per_token, versions) <= 1.0 - STALE_QUANTILE

    group_end = bisect_condition(is_rare, np.full_like(step_s, -1.0), law.max_tokens * per_token)[1]
    lag = fleet.update_lag(running, step_s) + workload.environment_s / step_s + workload.prefetched_batches
    queued = np.where(levels.step_s < step_s, _queued_versions(fleet, levels, running, step_s), 0.0)
    return group_end + lag + queued


def _queued_versions(fleet: SamplerFleet, levels: Levels, running: Reals, step_s: Reals) -> Reals:
    """Versions that pass while a sample waits in the queue, if the samplers have a surplus; NaN if the queue grows."""
    surplus, workload = surplus_of(fleet.system.admission), fleet.system.workload
    half = 0.5 / workload.batches_per_version
    if surplus == "held":
        return _waiting_samples(fleet, running, step_s) / fleet.sampling.samples_per_step - half
    if surplus == "dropped":
        capacity = (fleet.system.admission.queue_capacity_samples or 0) / fleet.sampling.samples_per_step
        return (max(capacity, 2.0 * half) - half) * levels.step_s / step_s - half
    # Samples age up to the cap that drops them, or for ever.
    return np.full_like(step_s, np.inf if surplus == "aged" else np.nan)


def _waiting_samples(fleet: SamplerFleet, running: Reals, step_s: Reals) -> Reals:
    """Finished samples that wait: the limits leave room for them beside those running and outside."""
    workload, admission = fleet.system.workload, fleet.system.admission
    outside = workload.environment_s * fleet.sampling.samples_per_step / step_s
    in_flight = fleet.group_tail_ratio() * running * fleet.engines + outside
    waiting = np.full_like(step_s, np.inf)
    if admission.queue_capacity_samples is not None:
        blocked = np.maximum(fleet.allowed_places() * fleet.engines - in_flight, 0.0)
        waiting = admission.queue_capacity_samples + blocked
    if admission.max_in_flight_samples is not None:
        waiting = np.minimum(waiting, admission.max_in_flight_samples - fleet.untrained(running) - in_flight)
    if admission.max_staleness is not None and admission.waits_for_cap and admission.staleness_policy == "admission":
        versions = admission.max_staleness - workload.prefetched_batches + 0.5 - 0.5 / workload.batches_per_version
        waiting = np.minimum(waiting, versions * workload.samples_per_step - in_flight)
    return np.maximum(waiting, 0.5 * workload.samples_per_batch)
