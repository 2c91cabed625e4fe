"""Age of the samples in a layout: the interval of its p95 staleness, and the limit that holds a growing queue.

Both come from the closed forms. The best estimate of a p95 is the simulator's; every draw moves it by as much as it
moves that of the closed forms. If nothing limits the queue and a draw's samplers are ahead, it grows with every step
(own derivation): by their surplus, in batches.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from rlscope.model.analytic.limits import Refused
from rlscope.model.analytic.staleness import maximum, oldest_token_law, percentile
from rlscope.model.analytic.steady_state import SteadyState, steady_states, steady_states_of_each, surplus_of
from rlscope.model.arrays import Reals
from rlscope.model.calibration import Calibration
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.price import DRAWS, STALE_QUANTILE, Price, generator_of, uneven_systems
from rlscope.model.numerics.stratified import normals
from rlscope.model.system import Admission, Layout, System

_STEPS: Final = 60
"""Steps for which a queue grows that does so in some draws only: those of a simulation."""
_AGE_ERROR: Final = 0.15
"""Log error of the closed form's ages if every parameter is known."""
_ROOM_RATIO: Final = 1.25
"""Requests that a limit leaves running, over those that keep up with the trainers: loads vary."""


def with_staleness_interval(price: Price, calibration: Calibration, layout: Layout) -> Price:
    """Add the interval of the p95 staleness of a layout of the calibrated system."""
    staleness = price.staleness
    if staleness is None:
        return price
    rng = generator_of(layout)
    draws = uneven_systems(calibration.draws[:DRAWS], rng)
    errors = np.exp(_AGE_ERROR * normals(rng, len(draws)))
    best, *drawn = _drawn_p95(calibration.system, draws, errors, layout, staleness.horizon_steps or _STEPS)
    if math.isnan(best):
        return price
    moved = Estimate.of(np.maximum(staleness.sample_p95 + np.array(drawn) - best, 0.0))
    low, high = min(math.floor(moved.low), staleness.sample_p95), max(math.ceil(moved.high), staleness.sample_p95)
    return replace(price, staleness=replace(staleness, sample_p95_low=low, sample_p95_high=high))


def _drawn_p95(system: System, draws: Sequence[System], errors: Reals, layout: Layout, steps: int) -> Reals:
    """p95 staleness by the best estimate, NaN if it cannot run, and in every draw that can; in versions."""
    grows = surplus_of(system.admission) == "grows"
    asked = [_with_short_queue(each) if grows else each for each in (system, *draws)]
    workload = system.workload
    oldest = oldest_token_law(workload.lengths, workload.unit_samples)

    def p95(state: SteadyState | Refused, error: float) -> float:
        if isinstance(state, Refused) or state.staleness is None or state.staleness_max is None:
            return math.nan
        is_capped = state.staleness_max < maximum(state.staleness, workload.lengths)
        steady = percentile(state.staleness.scaled(error), oldest, STALE_QUANTILE)
        steady = min(steady, state.staleness_max) if is_capped else steady
        surplus = state.dropped_ratio / max(1.0 - state.dropped_ratio, np.finfo(np.float64).tiny) if grows else 0.0
        return steady + STALE_QUANTILE * steps * surplus

    states = steady_states_of_each(asked, layout)
    found = np.array([p95(*each) for each in zip(states, (1.0, *errors), strict=True)])
    return np.concatenate([found[:1], found[1:][~np.isnan(found[1:])]])


def _with_short_queue(system: System) -> System:
    """Drop the surplus of an unlimited queue: the dropped share then says by how much it would grow."""
    batch = system.workload.samples_per_step
    limits = replace(system.admission, queue_capacity_samples=batch, queue_policy="drop_oldest")
    return replace(system, admission=limits)


def held(calibration: Calibration, layout: Layout) -> Calibration:
    """Limit the samples in flight so that the queue stops growing and the trainers do not have to wait.

    The limit leaves room for the requests that keep up with the trainers, for the finished members of their groups, and
    for a whole batch in the queue.
    """
    system = calibration.system
    limit = _holding_limit(system, layout)

    def limited(each: System) -> System:
        return replace(each, admission=replace(each.admission, max_in_flight_samples=limit))

    return replace(calibration, system=limited(system), draws=tuple(map(limited, calibration.draws)))


def _holding_limit(system: System, layout: Layout) -> int:
    workload, engines = system.workload, layout.sampler_gpus // system.engine.gpus
    roomy = Admission(queue_capacity_samples=2 * workload.samples_per_step)
    state = steady_states(replace(system, admission=roomy), (layout,))[0]
    running = float(layout.max_running)
    if not isinstance(state, Refused):
        running = min(_ROOM_RATIO * state.running, state.running_limit)
    tail = oldest_token_law(workload.lengths, workload.unit_samples).mean_tokens / workload.lengths.mean_tokens
    outside = workload.environment_s / state.step_s if not isinstance(state, Refused) else 0.0
    needed = engines * running * tail + (1.0 + outside) * workload.samples_per_step
    return math.ceil(needed / workload.unit_samples) * workload.unit_samples
