"""From the most that the GPUs could do to what the run did, cause by cause.

Each step puts one more of the run's limits on and solves the model again; what the rate loses is charged to that
limit. So the steps add up exactly, and a cause that another one hides is charged nothing. The order is fixed: what the
hardware and the split allow first, what the run's rules take next, what the model does not explain last. Not covered:
what would be gained by lifting one limit alone, which the forecasts say.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from rlscope.model.asynchronous import steady_states
from rlscope.model.calibration import Calibration
from rlscope.model.layout_limits import Refused
from rlscope.model.observed import Observed
from rlscope.model.system import Admission, Layout, System, Trainer, WeightUpdate
from rlscope.model.work_conservation import work_conservation_bound

Cause = Literal[
    "layout_imbalance",
    "kv_cache",
    "trainer_phases",
    "weight_updates",
    "environment",
    "admission",
    "staleness_cap",
    "synchronous_steps",
    "underfilled_batches",
    "unexplained",
]
"""layout_imbalance: the split of GPUs, at the batch size that is allowed. kv_cache: batches that it cannot hold.
trainer_phases: checkpoints, evaluation and what is between steps. synchronous_steps: the sides take turns, and a step
ends with its longest sample. underfilled_batches: fewer requests ran than were allowed. unexplained: what the model
predicts beyond what was achieved, or, below 0, short of it."""

_FREE: Final = Admission(queue_capacity_samples=None, max_in_flight_samples=None)


@dataclass(frozen=True, slots=True)
class GapStep:
    """One cause."""

    cause: Cause
    lost_tokens_per_s: float
    """Trained response tokens per second; below 0 where the run does better than the model says."""
    left_tokens_per_s: float
    """What is left after this and all before it."""


@dataclass(frozen=True, slots=True)
class Gap:
    """bound - sum(lost) = achieved, exactly."""

    bound_tokens_per_s: float
    steps: tuple[GapStep, ...]
    achieved_tokens_per_s: float


def explain_gap(calibration: Calibration, observed: Observed, predicted_tokens_per_s: float) -> Gap:
    """Walk from the bound to what was achieved; predicted_tokens_per_s: the model's last word on the run's layout.

    That is the event simulator's where a cap binds, and the synchronous step's where the run is synchronous.
    """
    gpus = calibration.layout.trainer_gpus + calibration.layout.sampler_gpus
    free = _freed(calibration.system)
    bound = work_conservation_bound(free, gpus, float(calibration.layout.running_per_engine)).trained_tokens_per_s
    left, steps = bound, list[GapStep]()
    for cause, rate in _rates(calibration, observed, free, predicted_tokens_per_s):
        # A limit never helps: where the closed forms differ by rounding, nothing is charged.
        reached = rate if cause == "unexplained" else min(left, rate)
        steps.append(GapStep(cause, left - reached, reached))
        left = reached
    return Gap(bound, tuple(steps), left)


def _freed(system: System) -> System:
    """The system without any limit that is not the hardware's speed."""
    trainer = replace(system.trainer, phases=tuple(phase for phase in system.trainer.phases if phase.shrinks_with_gpus))
    return System(
        workload=replace(system.workload, environment_s=0.0),
        engine=replace(system.engine, kv_capacity_tokens=None),
        trainer=trainer,
        update=WeightUpdate(),
        admission=_FREE,
    )


def _rates(
    calibration: Calibration, observed: Observed, free: System, predicted_tokens_per_s: float
) -> Iterator[tuple[Cause, float]]:
    """Each cause, and the rate under it and all before it."""
    whole, layout = calibration.system, calibration.layout
    trainer: Trainer = whole.trainer
    system = free
    yield "layout_imbalance", _rate(system, layout)
    system = replace(system, engine=whole.engine)
    yield "kv_cache", _rate(system, layout)
    system = replace(system, trainer=trainer)
    yield "trainer_phases", _rate(system, layout)
    system = replace(system, update=whole.update)
    yield "weight_updates", _rate(system, layout)
    system = replace(system, workload=whole.workload)
    yield "environment", _rate(system, layout)
    unaged = replace(whole.admission, max_staleness=None, queue_policy="wait")
    system = replace(system, admission=unaged)
    yield "admission", _rate(system, layout)
    if calibration.synchronous:
        yield "synchronous_steps", predicted_tokens_per_s
    else:
        yield "staleness_cap", predicted_tokens_per_s
        ran = replace(layout, running_per_engine=max(1, round(mean_running(observed))))
        yield "underfilled_batches", _rate(whole, ran)
    yield "unexplained", observed.trained_tokens_per_s


def mean_running(observed: Observed) -> float:
    """Requests in a batch, mean over the time in passes."""
    passes = observed.passes
    return float(np.average(passes.running, weights=passes.busy_s))


def _rate(system: System, layout: Layout) -> float:
    """Trained response tokens per second; 0 where the layout cannot run at all."""
    state = steady_states(system, (layout,))[0]
    return 0.0 if isinstance(state, Refused) else state.trained_tokens_per_s
