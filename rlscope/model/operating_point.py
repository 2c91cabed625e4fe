"""Where a system runs in a layout, whichever way its run works: asynchronously, or as a synchronous one.

A run that is synchronous today is modelled as such in its own layout; every other layout is taken to be asynchronous,
since that is the choice it has. Not covered: what only the event simulator sees (`arbiter.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlscope.model.asynchronous import SteadyState, steady_states
from rlscope.model.calibration import Calibration
from rlscope.model.layout_limits import Refused
from rlscope.model.staleness_forms import token_mean
from rlscope.model.synchronous import SynchronousStep, split_step
from rlscope.model.system import Layout, Reals, System


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """What a run settles at."""

    tokens_per_s: float
    """Trained response tokens."""
    step_s: float
    """Period of the versions."""
    trainer_idle_ratio: float
    """Share of the trainers' time without work on a batch, 0..1."""
    staleness_mean: float | None
    """Of trained tokens, versions; None where the queue grows for ever."""


def rates_of(calibration: Calibration, system: System, layouts: Sequence[Layout]) -> Reals:
    """Trained response tokens per second in each layout; 0 where it cannot run."""
    states = steady_states(system, layouts, calibration.cap_rule)
    rates = np.array([_rate(state) for state in states], dtype=np.float64)
    if calibration.synchronous and calibration.layout in layouts:
        step = split_step(system, calibration.layout)
        rates[list(layouts).index(calibration.layout)] = step.trained_tokens_per_s if step else 0.0
    return rates


def operating_point(calibration: Calibration, system: System) -> OperatingPoint | None:
    """Where the run's own layout settles; None where the model says that it cannot run."""
    if calibration.synchronous:
        step = split_step(system, calibration.layout)
        return _of_step(step) if step else None
    state = steady_states(system, (calibration.layout,), calibration.cap_rule)[0]
    return None if isinstance(state, Refused) else _of_state(system, state)


def _of_step(step: SynchronousStep) -> OperatingPoint:
    return OperatingPoint(
        tokens_per_s=step.trained_tokens_per_s,
        step_s=step.step_s,
        trainer_idle_ratio=1.0 - step.train_s / step.step_s,
        staleness_mean=0.0,
    )


def _of_state(system: System, state: SteadyState) -> OperatingPoint:
    workload, terms = system.workload, state.staleness
    return OperatingPoint(
        tokens_per_s=state.trained_tokens_per_s,
        step_s=state.step_s,
        trainer_idle_ratio=state.trainer_idle_ratio,
        staleness_mean=None if terms is None else token_mean(terms, workload.lengths, workload.group_size),
    )


def _rate(state: SteadyState | Refused) -> float:
    return 0.0 if isinstance(state, Refused) else state.trained_tokens_per_s
