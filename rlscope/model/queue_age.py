"""How long finished samples lie before they are trained on, in versions: the offset of every token's staleness.

Own derivations, for a period that does not vary. Not covered: a queue out of which the newest samples are taken first,
and trainers that take batches ahead only when some lie ready.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt

from rlscope.model.crossing import begins_to_hold
from rlscope.model.sampler_limits import Fleet, Levels
from rlscope.model.staleness_forms import clipped_mean, oldest_token_law
from rlscope.model.system import Admission, Reals

Surplus = Literal["held", "dropped", "aged", "grows"]
"""What becomes of samplers that are faster than the trainers: held back, their oldest samples dropped by a full queue
or for their age, or a queue that grows for ever."""


def surplus_of(admission: Admission) -> Surplus:
    """What the limits make of a surplus; a cap on samples in flight holds it back where nothing throws it away."""
    bounded = admission.queue_capacity_samples is not None
    if admission.queue_policy == "drop_oldest" and bounded:
        return "dropped"
    if admission.queue_policy == "drop_by_age" and admission.max_staleness is not None:
        return "aged"
    waits_for_cap = admission.queue_policy == "wait" and admission.max_staleness is not None
    return "held" if bounded or waits_for_cap or admission.max_in_flight_samples is not None else "grows"


def offset_versions(fleet: Fleet, levels: Levels, running: Reals, step_s: Reals) -> Reals:
    """Mean staleness of the last token of a sample whose group is then whole; NaN where the queue grows.

    Trainers that hold d batches besides the one they train on take a batch when they start the step d before its own.
    Everything until the taking is as if they trained on it at once, and d versions are published after it.

    The lag of an update over the period, where the trainers wait for samples; then every sample lies for half a
    period on average. Where the samplers have a surplus, what lies in the queue comes on top.
    """
    lag = fleet.update_lag(running, step_s)
    if_surplus: Reals
    surplus = surplus_of(fleet.system.admission)
    if surplus == "held":
        if_surplus = lag - 0.5 + _held_batches(fleet, levels, running, step_s, lag)
    elif surplus == "dropped":
        if_surplus = lag - 0.5 + _kept_batches(fleet, levels, step_s)
    elif surplus == "aged":
        if_surplus = _aged_offset(fleet, levels, running, step_s, lag)
    else:
        if_surplus = np.full_like(step_s, np.nan)
    return np.where(levels.staleness_s < step_s, if_surplus, lag) + fleet.system.workload.batches_ahead


def _held_batches(fleet: Fleet, levels: Levels, running: Reals, step_s: Reals, lag: Reals) -> Reals:
    """Finished samples that wait, in batches: what the limits leave room for beside those running and outside."""
    samples, workload, admission = fleet.sampling.samples_per_step, fleet.system.workload, fleet.system.admission
    outside = workload.environment_s * samples / step_s
    in_flight = fleet.group_tail_ratio() * running * fleet.engines + outside
    batches = np.full_like(step_s, np.inf)
    if admission.queue_capacity_samples is not None:
        blocked = np.maximum(fleet.allowed_places() * fleet.engines - in_flight, 0.0) / samples
        full = admission.queue_capacity_samples / samples
        batches = full + blocked - _refilled_batches(blocked, step_s / levels.staleness_s)
    if admission.max_in_flight_samples is not None:
        batches = np.minimum(batches, (admission.max_in_flight_samples - in_flight) / samples)
    if admission.max_staleness is not None and admission.queue_policy == "wait":
        batches = np.minimum(batches, _allowed_batches(fleet, running, step_s, lag, admission.max_staleness))
    return np.maximum(batches, 0.5)


def _allowed_batches(fleet: Fleet, running: Reals, step_s: Reals, lag: Reals, cap: int) -> Reals:
    """Finished samples that a cap on staleness leaves room for, in batches, while the trainers never wait."""
    workload, samples = fleet.system.workload, fleet.sampling.samples_per_step
    outside = workload.environment_s / step_s
    if fleet.cap_rule == "admission":
        in_flight = fleet.group_tail_ratio() * running * fleet.engines
        return ((cap - workload.batches_ahead) * workload.samples_per_step - in_flight) / samples - outside
    longest = workload.lengths.longest_of(samples).mean_tokens * fleet.versions_per_token(running)
    return cap - workload.batches_ahead - longest - outside - lag + 0.5


def _refilled_batches(blocked: Reals, load: Reals) -> Reals:
    """How far below full the queue is on average, in batches, after one was taken.

    With nothing blocked it fills at `load` batches a period: 1 / (2 load). What is blocked fills it at once; half a
    batch blocked on average is a whole one when it is taken. Between the two a straight line is taken.
    """
    return np.maximum(1.0 - 2.0 * blocked, 0.0) / (2.0 * load)


def _kept_batches(fleet: Fleet, levels: Levels, step_s: Reals) -> Reals:
    """Mean wait, in periods, in a full queue of q batches that drops its oldest: (q - 1/2) / load.

    With the half version that any wait adds it is (2 q + load - 1) / (2 load), the in-queue form of Applied Compute
    (Dong, Goel and Yu, 2026).
    """
    capacity = fleet.system.admission.queue_capacity_samples or 0
    batches = max(capacity / fleet.sampling.samples_per_step, 1.0)
    return (batches - 0.5) * levels.staleness_s / step_s


def _aged_offset(fleet: Fleet, levels: Levels, running: Reals, step_s: Reals, lag: Reals) -> Reals:
    """The offset at which the samples older than the cap are just the surplus."""
    workload, cap = fleet.system.workload, fleet.system.admission.max_staleness or 0
    law = oldest_token_law(workload.lengths, workload.group_size)
    rate = fleet.versions_per_token(running) * levels.environment_s / step_s

    def drops_the_surplus(offset: Reals) -> npt.NDArray[np.bool_]:
        behind = cap - offset - workload.environment_s / step_s
        return clipped_mean(law, rate, behind) >= 1.0 - levels.environment_s / step_s

    return begins_to_hold(drops_the_surplus, lag, np.full_like(lag, cap + 1.0))[1]
