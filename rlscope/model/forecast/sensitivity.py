"""Sensitivity: throughput change per 1% of each quantity. It shows where work on a run pays.

Each quantity alone is improved slightly, and the closed forms solve the current layout again, draw by draw. The figure
is the one-sided derivative towards the improvement: if two limits balance, neither alone changes anything. Speeds and
times add up to 1%, since a run whose every second is shorter is faster in proportion (Euler's theorem on homogeneous
functions), except for time that no quantity covers, such as checkpoints. Whole numbers move by at least one, so for
small numbers the figure is a mean over a large change. Not covered: two quantities together, and effects that only the
event simulator sees (`Sensitivity.is_rough`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from rlscope.model.analytic.limits import Refused
from rlscope.model.analytic.steady_state import steady_states, trained_rates_of_each
from rlscope.model.analytic.synchronous import split_step
from rlscope.model.arrays import Reals
from rlscope.model.calibration import Calibration
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.change import scaled_update, update_seconds, with_engine_speed, with_trainer_speed
from rlscope.model.forecast.simulated import is_doubtful
from rlscope.model.lengths import LengthLaw
from rlscope.model.system import Granularity, Layout, System
from rlscope.model.warnings import ModelWarning

SensitivityQuantity = Literal[
    "trainer_speed",
    "trainer_gpus",
    "engine_speed",
    "prefill_speed",
    "sampler_gpus",
    "running_limit",
    "kv_capacity",
    "weight_update",
    "response_length",
    "environment",
    "in_flight_cap",
    "staleness_cap",
]
"""Quantities to improve: faster, more, larger or later; shorter for weight_update, environment and response_length.
prefill_speed is a part of engine_speed. GPUs are added to the existing ones, by whole engines and replicas."""
Silence = Literal["not_limiting", "not_there", "not_recorded"]
"""Reasons for a quantity to have no effect. not_limiting: something else limits the run. not_there: the run has no such
limit or cost. not_recorded: the run does not record its value."""

_DRAWS: Final = 40
"""Number of draws: two lie beyond each end of the interval. Gains hardly differ between draws."""
_PROBED_DRAWS: Final = 8
"""Draws to solve first; if none of them changes, the rest are not solved. One draw in ten may then still differ."""
_STEP_RATIO: Final = 0.02
"""Relative improvement of a quantity: far above rounding, and small beside the distance between limits."""
_NOTHING_RATIO: Final = 1e-9
"""Gain that counts as none, as a share of the rate: the resolution of the bisections in the closed forms."""
_PER_CENT: Final = 0.01
_ROUGH: Final = frozenset(
    {
        ModelWarning.IN_FLIGHT_CAP,
        ModelWarning.STALENESS_CAP,
        ModelWarning.SAMPLES_AGE_OUT,
        ModelWarning.FEW_REQUESTS,
    }
)


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Sensitivity of throughput to one quantity."""

    quantity: SensitivityQuantity
    """The quantity that is improved by 1%, by itself."""
    gain_ratio: Estimate | None
    """Gain in trained tokens per second for 1%; None if the quantity is not recorded. Below 0 if an improvement by name
    lowers the rate, as shorter responses do."""
    no_effect_reason: Silence | None
    """Why the gain is 0 or unknown; None if the quantity has an effect."""
    is_rough: bool
    """Whether the closed forms err by several percent in the rate of the current layout."""


@dataclass(frozen=True, slots=True)
class _Nudge:
    """One way to improve a quantity."""

    system: Callable[[System], System]
    layout: Callable[[Layout], Layout]
    step_ratio: float
    """Size of the improvement, relative to the quantity."""


def sensitivities(calibration: Calibration, granularity: Granularity) -> tuple[Sensitivity, ...]:
    """Return the sensitivity to every quantity, the largest effect first."""
    rough = not calibration.synchronous and _is_rough(calibration)
    draws = calibration.draws[:_DRAWS]
    base = _rates(calibration, draws, calibration.layout)
    results = [
        _sensitivity(calibration, quantity, nudge, draws, base, rough)
        for quantity, nudge in _nudges(calibration, granularity).items()
    ]
    return tuple(sorted(results, key=lambda each: -abs(each.gain_ratio.value if each.gain_ratio else 0.0)))


def _is_rough(calibration: Calibration) -> bool:
    """If samplers have a surplus, the trainers set the rate whatever becomes of the surplus, so it is not in doubt."""
    admission = calibration.system.admission
    if admission.max_staleness is not None and is_doubtful(calibration, calibration.layout):
        return True
    state = steady_states(calibration.system, (calibration.layout,))[0]
    if isinstance(state, Refused):
        return False
    fills_cache = state.running >= state.running_limit < calibration.layout.max_running
    return fills_cache or not _ROUGH.isdisjoint(state.warnings)


def _sensitivity(
    calibration: Calibration,
    quantity: SensitivityQuantity,
    nudge: _Nudge | Silence,
    draws: Sequence[System],
    base: Reals,
    rough: bool,
) -> Sensitivity:
    if not isinstance(nudge, _Nudge):
        return Sensitivity(quantity, None if nudge == "not_recorded" else Estimate(0.0, 0.0, 0.0), nudge, rough)
    layout = nudge.layout(calibration.layout)

    def gains(first: int, after: int) -> Reals:
        rates = _rates(calibration, [nudge.system(system) for system in draws[first:after]], layout)
        return (rates / base[first:after] - 1.0) / nudge.step_ratio * _PER_CENT

    probed = gains(0, _PROBED_DRAWS)
    if np.abs(probed).max() < _NOTHING_RATIO:
        return Sensitivity(quantity, Estimate(0.0, 0.0, 0.0), "not_limiting", rough)
    gain = Estimate.of(np.concatenate([probed, gains(_PROBED_DRAWS, len(draws))]))
    return Sensitivity(quantity, gain, None if any(gain) else "not_limiting", rough)


def _rates(calibration: Calibration, systems: Sequence[System], layout: Layout) -> Reals:
    """Trained response tokens per second, synchronous or asynchronous like the run; 0 if it cannot run."""
    if calibration.synchronous:
        steps = [split_step(system, layout) for system in systems]
        return np.array([step.trained_tokens_per_s if step else 0.0 for step in steps])
    return trained_rates_of_each(systems, (layout,))[:, 0]


def _nudges(calibration: Calibration, granularity: Granularity) -> Mapping[SensitivityQuantity, _Nudge | Silence]:
    """Improvement of each quantity, or why it cannot be improved."""
    return {**_of_trainers(calibration, granularity), **_of_samplers(calibration), **_of_limits(calibration)}


def _of_trainers(calibration: Calibration, granularity: Granularity) -> Mapping[SensitivityQuantity, _Nudge | Silence]:
    layout, update = calibration.layout, calibration.system.update
    replica, engine = granularity.gpus_per_trainer_replica, granularity.gpus_per_engine
    faster = 1.0 + _STEP_RATIO
    return {
        "trainer_speed": _of_system(
            lambda system: replace(system, trainer=with_trainer_speed(system.trainer, faster)), _STEP_RATIO
        ),
        "trainer_gpus": _of_layout(
            lambda now: replace(now, trainer_gpus=now.trainer_gpus + replica), replica / layout.trainer_gpus
        ),
        "sampler_gpus": _of_layout(
            lambda now: replace(now, sampler_gpus=now.sampler_gpus + engine), engine / layout.sampler_gpus
        ),
        "weight_update": _of_system(
            lambda system: replace(system, update=scaled_update(system.update, 1.0 - _STEP_RATIO)), _STEP_RATIO
        )
        if update_seconds(update)
        else "not_there",
    }


def _of_samplers(calibration: Calibration) -> Mapping[SensitivityQuantity, _Nudge | Silence]:
    engine, workload = calibration.system.engine, calibration.system.workload
    shorter = replace(workload, lengths=_shorter(workload.lengths))
    quicker = replace(workload, environment_s=workload.environment_s * (1.0 - _STEP_RATIO))
    return {
        "engine_speed": _of_system(lambda system: with_engine_speed(system, 1.0 + _STEP_RATIO), _STEP_RATIO),
        "prefill_speed": _of_system(_with_faster_prefill, _STEP_RATIO)
        if engine.prefill_tokens_per_s or engine.prefill_pass_s
        else "not_recorded",
        "kv_capacity": _of_system(_with_larger_cache, _STEP_RATIO) if engine.kv_capacity_tokens else "not_recorded",
        # All draws share one workload.
        "response_length": _of_system(lambda system: replace(system, workload=shorter), _STEP_RATIO),
        "environment": _of_system(lambda system: replace(system, workload=quicker), _STEP_RATIO)
        if workload.environment_s
        else "not_there",
    }


def _of_limits(calibration: Calibration) -> Mapping[SensitivityQuantity, _Nudge | Silence]:
    layout, admission = calibration.layout, calibration.system.admission
    flight, cap = admission.max_in_flight_samples or admission.max_running_samples, admission.max_staleness
    running_step, flight_step = _whole_step(layout.max_running), _whole_step(flight or 1)
    later = replace(admission, max_staleness=(cap or 0) + 1)
    wider = replace(
        admission,
        max_in_flight_samples=_wider(admission.max_in_flight_samples, flight_step),
        max_running_samples=_wider(admission.max_running_samples, flight_step),
    )
    return {
        "running_limit": _of_layout(
            lambda now: replace(now, max_running=now.max_running + running_step),
            running_step / layout.max_running,
        ),
        "in_flight_cap": _Nudge(
            lambda system: replace(system, admission=wider),
            lambda now: replace(now, max_running=now.max_running + _follows(calibration, flight_step)),
            flight_step / flight,
        )
        if flight
        else "not_there",
        "staleness_cap": _of_system(lambda system: replace(system, admission=later), 1.0 / cap) if cap else "not_there",
    }


def _of_system(change: Callable[[System], System], step_ratio: float) -> _Nudge:
    return _Nudge(change, lambda layout: layout, step_ratio)


def _of_layout(change: Callable[[Layout], Layout], step_ratio: float) -> _Nudge:
    return _Nudge(lambda system: system, change, step_ratio)


def _follows(calibration: Calibration, step: int) -> int:
    """Rise of an engine's limit if the cap on all engines rises by `step`.

    If the limit is the maximum that ran, below the setting, the cap may have been what held it there.
    """
    engines = calibration.layout.sampler_gpus // calibration.system.engine.gpus
    return math.ceil(step / engines) if ModelWarning.LIMIT_BELOW_SETTING in calibration.warnings else 0


def _wider(cap: int | None, step: int) -> int | None:
    return None if cap is None else cap + step


def _whole_step(count: int) -> int:
    return max(1, round(_STEP_RATIO * count))


def _shorter(lengths: LengthLaw) -> LengthLaw:
    return lengths.scaled(1.0 - _STEP_RATIO)


def _with_faster_prefill(system: System) -> System:
    engine, speed = system.engine, 1.0 + _STEP_RATIO
    rate_per_s = None if engine.prefill_tokens_per_s is None else engine.prefill_tokens_per_s * speed
    faster = replace(engine, prefill_tokens_per_s=rate_per_s, prefill_pass_s=engine.prefill_pass_s / speed)
    return replace(system, engine=faster)


def _with_larger_cache(system: System) -> System:
    capacity = (system.engine.kv_capacity_tokens or 0.0) * (1.0 + _STEP_RATIO)
    return replace(system, engine=replace(system.engine, kv_capacity_tokens=capacity))
