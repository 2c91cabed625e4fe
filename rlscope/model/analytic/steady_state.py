"""Steady state of an asynchronous run: the side that limits it, the losses of both sides, and the staleness of tokens.

Two facts determine it: the trainers consume what the engines produce, and the concurrency sets the staleness of tokens
(the idea is from Applied Compute's talk on asynchronous RL, 2025; weight updates, prefill, the KV cache, limits and
waits are own additions). It is a fluid model: mean lengths, mean loads, a constant period. It errs by up to 8% of the
period and half a version where a cap binds, samples age out, or engines run few requests: what is shown is simulated.

The losses of both sides are measured against the same sequence of limits, so the causes of a side and its work add up
to 1 exactly. A sampler loses capacity: an engine with a smaller batch than it could have loses some, although it is
never idle. Not covered: engines that differ or drain before they take new weights, tails, stragglers and noise, queues
that hand out the newest samples first, and trainers that prefetch only what is ready.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

import numpy as np

from rlscope.model.analytic.engine_time import alike, first_running, sampling_of, sampling_of_each
from rlscope.model.analytic.limits import Levels, Refused, SamplerFleet, refused, sampler_levels
from rlscope.model.analytic.staleness import StalenessTerms, clipped_mean, maximum, oldest_token_law
from rlscope.model.arrays import Flags, Reals
from rlscope.model.causes import Cause
from rlscope.model.numerics.rootfind import bisect_condition
from rlscope.model.system import Admission, Layout, System
from rlscope.model.training.step_time import TrainerStep, trainer_step

LimitCause: TypeAlias = Literal[
    Cause.SAMPLERS,
    Cause.TRAINERS,
    Cause.WEIGHT_UPDATES,
    Cause.ENVIRONMENT,
    Cause.IN_FLIGHT_LIMIT,
    Cause.STALENESS_CAP,
]
"""Causes that the closed forms tell apart."""
Regime: TypeAlias = Literal[LimitCause, Cause.BALANCED]
"""Reasons why a layout is no faster."""
Surplus = Literal["held", "dropped", "aged", "grows"]
"""Fate of the surplus of samplers that are faster than the trainers: held back, its oldest samples dropped by a full
queue or as stale, or piled up in a growing queue."""

BALANCED_LOSS_RATIO: Final = 0.10
"""Loss up to which a side counts as balanced, as in the verdict of a run: below 10%, no change of layout pays off."""
_LINES_AT_A_TIME: Final = 512
"""Layouts of draws solved at once: with more, the arrays of a search no longer fit into the processor's cache."""


Losses = Mapping[LimitCause, Reals]
"""Shares of one side's GPU time, 0..1, by the cause of waiting; one entry per layout.

`SAMPLERS`: loss of the trainers, which would wait even if only the engines' speed limited the samplers. `TRAINERS`:
loss of the samplers, which could make more than is trained on.
"""


def trainer_losses(levels: Levels, train_s: Reals, blocked_s: float, step_s: Reals) -> Losses:
    """Waits for samples, charged to the limits that cause them, and the time in which publishing blocks the trainers.

    In seconds of one step; train_s includes blocked_s.
    """
    reached = [np.maximum(level, train_s) for level in _limits(levels)]
    samplers, updates, in_flight, environment, staleness = np.diff(np.stack([train_s, *reached]), axis=0) / step_s
    return {
        Cause.SAMPLERS: samplers,
        Cause.WEIGHT_UPDATES: updates + blocked_s / step_s,
        Cause.ENVIRONMENT: environment,
        Cause.IN_FLIGHT_LIMIT: in_flight,
        Cause.STALENESS_CAP: staleness,
    }


def sampler_losses(levels: Levels, train_s: Reals, step_s: Reals) -> Losses:
    """Capacity that is surplus or lost to a limit, in shares of the samplers' time.

    Up to the trainers' own rate, a surplus waits for the trainers, whatever else also limits it: without that limit the
    step would be no shorter. Engines that take new weights lose that time in any case.
    """
    hardware, updates, *limits = _limits(levels)
    stages = np.stack([hardware, updates, *(np.maximum(level, train_s) for level in (updates, *limits))])
    weight_updates, trainers, in_flight, environment, staleness = np.diff(stages, axis=0) / step_s
    return {
        Cause.TRAINERS: trainers,
        Cause.WEIGHT_UPDATES: weight_updates,
        Cause.ENVIRONMENT: environment,
        Cause.IN_FLIGHT_LIMIT: in_flight,
        Cause.STALENESS_CAP: staleness,
    }


@dataclass(frozen=True, slots=True)
class SteadyState:
    """One layout in steady state."""

    layout: Layout
    regime: Regime
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
    trainer_idle_ratio: float
    """Share of the trainers' time in which they do not work on a batch, 0..1."""
    sampler_idle_ratio: float
    """Share of the engines' time without a pass, 0..1."""
    dropped_ratio: float
    """Share of the finished samples that are dropped as stale, or by a full queue."""
    staleness: StalenessTerms | None
    """Staleness of what the queue is offered, before any is dropped as stale; None if the queue grows."""
    staleness_max: int | None
    """Staleness of the oldest token that can be trained on; None if the queue grows."""


def steady_states(system: System, layouts: Sequence[Layout]) -> tuple[SteadyState | Refused, ...]:
    """Solve the steady state of each layout, or return why it cannot run; one call for many layouts is much cheaper.

    A layout's max_running is the limit that is set. If the samplers are the faster side and are held back, they
    run the smallest batch that keeps up; if their surplus is dropped, they run at the limit. A sample that waits for
    its environment holds one of an engine's places.
    """
    return _solved((system,), layouts)


def steady_states_of_each(systems: Sequence[System], layout: Layout) -> tuple[SteadyState | Refused, ...]:
    """Solve one layout in every system: equal to solving each alone, and much cheaper for many draws."""
    return tuple(state for part in alike(systems, _LINES_AT_A_TIME) for state in _solved(part, (layout,)))


def _solved(systems: Sequence[System], layouts: Sequence[Layout]) -> tuple[SteadyState | Refused, ...]:
    """Solve all layouts in one of the alike systems after the other."""
    sampling = sampling_of(systems[0])
    verdicts = [refused(systems[0], sampling, layout) or layout for layout in layouts]
    runnable = [layout for layout in verdicts if isinstance(layout, Layout)]
    states = iter(_states(_fleet(systems, runnable), runnable * len(systems)) if runnable else ())
    return tuple(next(states) if isinstance(verdict, Layout) else verdict for verdict in verdicts * len(systems))


def trained_rates(systems: Sequence[System], layouts: Sequence[Layout]) -> Reals:
    """Trained response tokens per second, one row per system and one column per layout; 0 if a layout cannot run.

    Same numbers as `steady_states`, without the rest of the steady state: most draws need no more.
    """
    parts = alike(systems, max(1, _LINES_AT_A_TIME // max(1, len(layouts))))
    return np.concatenate([np.zeros((0, len(layouts))), *(_rates(part, layouts) for part in parts)])


def _rates(systems: Sequence[System], layouts: Sequence[Layout]) -> Reals:
    first, sampling = systems[0], sampling_of(systems[0])
    runs = np.array([refused(first, sampling, layout) is None for layout in layouts], dtype=np.bool_)
    rates = np.zeros((len(systems), len(layouts)))
    if runs.any():
        fleet = _fleet(systems, [layout for layout, can in zip(layouts, runs, strict=True) if can])
        step_s = _step_s(fleet, sampler_levels(fleet))
        rates[:, runs] = _trained_tokens_per_s(fleet, step_s).reshape(len(systems), -1)
    return rates


def _step_s(fleet: SamplerFleet, levels: Levels) -> Reals:
    return np.maximum(levels.staleness_s, fleet.trainers.total_s)


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
        running = np.fmin(_keeping_up(fleet, levels.running), levels.running)
    made_in_s = fleet.period_s(running)
    by_trainers = trainer_losses(levels, train_s, fleet.trainers.blocked_s, step_s)
    columns: dict[str, Reals] = {
        "step_s": step_s,
        "trained_tokens_per_s": _trained_tokens_per_s(fleet, step_s),
        "train_s": train_s,
        "running": running,
        "running_limit": levels.hardware_running,
        "resident_tokens": running * fleet.sampling.resident_tokens,
        "trainer_idle_ratio": np.sum([*by_trainers.values()], axis=0),
        "sampler_idle_ratio": 1.0 - _busy_ratio(fleet, running, made_in_s),
        "dropped_ratio": _dropped_ratio(fleet, made_in_s, step_s),
    }
    numbers = np.stack([*columns.values()]).T.tolist()
    regimes = regimes_of(layouts, by_trainers, sampler_losses(levels, train_s, step_s))
    terms = _terms(fleet, levels, running, step_s)
    return [
        SteadyState(
            layout=layout,
            regime=regime,
            staleness=aging,
            staleness_max=None if aging is None else _staleness_max(fleet, aging),
            **dict(zip(columns, row, strict=True)),
        )
        for layout, regime, aging, row in zip(layouts, regimes, terms, numbers, strict=True)
    ]


def _keeping_up(fleet: SamplerFleet, most: Reals) -> Reals:
    """Smallest batch up to `most` that makes a step's samples in the trainers' time; NaN if there is none."""
    return first_running(lambda running: fleet.period_s(running) <= fleet.trainers.total_s, most)


def _terms(fleet: SamplerFleet, levels: Levels, running: Reals, step_s: Reals) -> list[StalenessTerms | None]:
    """Return what determines the staleness of each layout; None if its queue grows."""
    per_token = fleet.versions_per_token(running) * fleet.period_s(running) / step_s
    offsets, environment = offset_versions(fleet, levels, running, step_s), fleet.system.workload.environment_s / step_s
    rows = np.stack([per_token, offsets, environment]).T.tolist()
    return [None if math.isnan(row[1]) else StalenessTerms(*row) for row in rows]


def _busy_ratio(fleet: SamplerFleet, running: Reals, made_in_s: Reals) -> Reals:
    """Share of the engines' time in passes and prefill."""
    sampling = fleet.sampling
    return sampling.samples_per_step / fleet.engines * sampling.busy_s(running) / made_in_s


def _dropped_ratio(fleet: SamplerFleet, made_in_s: Reals, step_s: Reals) -> Reals:
    if surplus_of(fleet.system.admission) not in ("dropped", "aged"):
        return np.zeros_like(step_s)
    return np.maximum(1.0 - made_in_s / step_s, 0.0)


def _staleness_max(fleet: SamplerFleet, terms: StalenessTerms) -> int:
    """Maximum staleness of trained samples.

    A cap that drops, or that publications wait for, is never exceeded; samples age further after the drop while they
    are prefetched.
    """
    workload, admission = fleet.system.workload, fleet.system.admission
    most = maximum(terms, workload.lengths)
    drops = admission.staleness_policy == "drop"
    is_strict = drops or (admission.bounds_queue_age and admission.staleness_policy == "publication_waits")
    if not is_strict or admission.max_staleness is None:
        return most
    aged = math.ceil(workload.prefetched_batches) if drops else 0
    return min(most, admission.max_staleness + aged)


def regimes_of(layouts: Sequence[Layout], trainers: Losses, samplers: Losses) -> list[Regime]:
    """Return balanced if neither side loses more than BALANCED_LOSS_RATIO, else the most expensive cause."""
    causes: tuple[LimitCause, ...] = get_args(LimitCause)
    gpus = np.array([(layout.trainer_gpus, layout.sampler_gpus) for layout in layouts]).T
    lost = [gpus[0] * trainers.get(cause, 0.0) + gpus[1] * samplers.get(cause, 0.0) for cause in causes]
    most, lost_ratio = np.argmax(lost, axis=0), np.maximum(sum(trainers.values()), sum(samplers.values()))
    balanced = (lost_ratio <= BALANCED_LOSS_RATIO).tolist()
    return [Cause.BALANCED if even else causes[cause] for even, cause in zip(balanced, most.tolist(), strict=True)]


def _limits(levels: Levels) -> tuple[Reals, Reals, Reals, Reals, Reals]:
    return (levels.hardware_s, levels.updates_s, levels.admission_s, levels.environment_s, levels.staleness_s)


def surplus_of(admission: Admission) -> Surplus:
    """Fate of a surplus under the limits; a cap on samples in flight holds it back unless something drops it."""
    bounded = admission.queue_capacity_samples is not None
    if admission.queue_policy == "drop_oldest" and bounded:
        return "dropped"
    if admission.staleness_policy == "drop" and admission.max_staleness is not None:
        return "aged"
    in_flight_cap = admission.max_in_flight_samples is not None
    return "held" if bounded or admission.bounds_queue_age or in_flight_cap else "grows"


def offset_versions(fleet: SamplerFleet, levels: Levels, running: Reals, step_s: Reals) -> Reals:
    """Mean staleness of the last token of a sample whose group is then complete; NaN if the queue grows.

    Trainers with d prefetched batches take a batch when they start the step d before its own. Until then everything is
    as if they trained on it at once, and d versions are published after it.

    The result is the lag of an update over the period if the trainers wait for samples; every sample then waits half a
    period on average. If the samplers have a surplus, the wait in the queue comes on top. With k batches per version
    every "half a period" is half of a k-th of it: versions pass while trainers work on a batch only after the last of
    them (own derivation; exact for uniform arrivals).
    """
    half = 0.5 / fleet.system.workload.batches_per_version
    lag = fleet.update_lag(running, step_s)
    if_surplus: Reals
    surplus = surplus_of(fleet.system.admission)
    if surplus == "held":
        if_surplus = lag - half + _waiting_batches(fleet, levels, running, step_s, lag)
    elif surplus == "dropped":
        if_surplus = lag - half + _full_queue_batches(fleet, levels, step_s)
    elif surplus == "aged":
        if_surplus = _aged_offset(fleet, levels, running, step_s, lag)
    else:
        if_surplus = np.full_like(step_s, np.nan)
    return np.where(levels.staleness_s < step_s, if_surplus, lag) + fleet.system.workload.prefetched_batches


def _waiting_batches(fleet: SamplerFleet, levels: Levels, running: Reals, step_s: Reals, lag: Reals) -> Reals:
    """Finished samples that wait, in batches of a version.

    The limits leave room for them beside those running and outside.
    """
    samples, workload, admission = fleet.sampling.samples_per_step, fleet.system.workload, fleet.system.admission
    outside = workload.environment_s * samples / step_s
    in_flight = fleet.group_tail_ratio() * running * fleet.engines + outside
    batches = np.full_like(step_s, np.inf)
    if admission.queue_capacity_samples is not None:
        blocked = np.maximum(fleet.allowed_places() * fleet.engines - in_flight, 0.0) / samples
        full, taken = admission.queue_capacity_samples / samples, workload.batches_per_version
        refilled = _refilled_batches(blocked * taken, step_s / levels.staleness_s) / taken
        batches = full + blocked - refilled
    if admission.max_in_flight_samples is not None:
        left = admission.max_in_flight_samples - in_flight - fleet.untrained(running)
        batches = np.minimum(batches, left / samples)
    if admission.max_staleness is not None and admission.bounds_queue_age:
        batches = np.minimum(batches, _allowed_batches(fleet, running, step_s, lag, admission.max_staleness))
    return np.maximum(batches, 0.5 / workload.batches_per_version)


def _allowed_batches(fleet: SamplerFleet, running: Reals, step_s: Reals, lag: Reals, cap: int) -> Reals:
    """Finished samples that a staleness cap leaves room for, in batches, while the trainers never wait."""
    workload, samples = fleet.system.workload, fleet.sampling.samples_per_step
    outside = workload.environment_s / step_s
    if fleet.system.admission.staleness_policy == "admission":
        in_flight = fleet.group_tail_ratio() * running * fleet.engines
        spare_versions = cap - workload.prefetched_batches + 0.5 - 0.5 / workload.batches_per_version
        return (spare_versions * workload.samples_per_step - in_flight) / samples - outside
    longest = workload.lengths.longest_of(samples).mean_tokens * fleet.versions_per_token(running)
    return cap - workload.prefetched_batches - longest - outside - lag + 0.5 / workload.batches_per_version


def _refilled_batches(blocked: Reals, load: Reals) -> Reals:
    """Mean distance of the queue from full, in batches, after one was taken.

    If nothing is blocked, the queue fills at `load` batches a period: 1 / (2 load). Blocked samples fill it at once;
    half a batch blocked on average is a whole one when it is taken. A straight line is assumed in between.
    """
    return np.maximum(1.0 - 2.0 * blocked, 0.0) / (2.0 * load)


def _full_queue_batches(fleet: SamplerFleet, levels: Levels, step_s: Reals) -> Reals:
    """Mean wait, in periods, in a full queue of q batches that drops its oldest: (q - 1/2) / load.

    With the half version that any wait adds it is (2 q + load - 1) / (2 load), the in-queue form of Applied Compute
    (Dong, Goel and Yu, 2026).
    """
    capacity = fleet.system.admission.queue_capacity_samples or 0
    half = 0.5 / fleet.system.workload.batches_per_version
    batches = max(capacity / fleet.sampling.samples_per_step, 2.0 * half)
    return (batches - half) * levels.staleness_s / step_s


def _aged_offset(fleet: SamplerFleet, levels: Levels, running: Reals, step_s: Reals, lag: Reals) -> Reals:
    """Offset at which the samples older than the cap are exactly the surplus."""
    workload, cap = fleet.system.workload, fleet.system.admission.max_staleness or 0
    law = oldest_token_law(workload.lengths, workload.unit_samples)
    rate = fleet.versions_per_token(running) * levels.environment_s / step_s

    def drops_the_surplus(offset: Reals) -> Flags:
        behind = cap - offset - workload.environment_s / step_s
        return clipped_mean(law, rate, behind) >= 1.0 - levels.environment_s / step_s

    return bisect_condition(drops_the_surplus, lag, np.full_like(lag, cap + 1.0))[1]
