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
from rlscope.model.change import with_forward_speed
from rlscope.model.layout_limits import Refused
from rlscope.model.observed import Observed
from rlscope.model.sampler_period import sampling_of
from rlscope.model.stragglers import speed_without_stragglers
from rlscope.model.synchronous import split_step
from rlscope.model.system import Admission, Layout, System, WeightUpdate
from rlscope.model.work_conservation import work_conservation_bound

Cause = Literal[
    "layout_imbalance",
    "stragglers",
    "kv_cache",
    "trainer_phases",
    "weight_updates",
    "environment",
    "admission",
    "staleness_cap",
    "synchronous_steps",
    "tail",
    "underfilled_batches",
    "unexplained",
]
"""layout_imbalance: the split of GPUs, at the batch size that is allowed. stragglers: engines slower than the others.
kv_cache: batches that it cannot hold. trainer_phases: checkpoints, evaluation and what is between steps.
synchronous_steps: the sides take turns. tail: they wait for the longest sample, of a step where they take turns, else
of a group where samples in flight are capped. underfilled_batches: fewer requests ran than were allowed. unexplained:
what the model predicts beyond what was achieved, or, below 0, short of it."""

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
    layout = calibration.layout
    free = _freed(calibration, observed)
    gpus = layout.trainer_gpus + layout.sampler_gpus
    bound = work_conservation_bound(free, gpus, float(layout.running_per_engine)).trained_tokens_per_s
    left, steps = bound, list[GapStep]()
    for cause, rate in _rates(calibration, observed, free, predicted_tokens_per_s):
        # A limit never helps: where the closed forms differ by rounding, nothing is charged.
        reached = rate if cause == "unexplained" else min(left, rate)
        steps.append(GapStep(cause, left - reached, reached))
        left = reached
    return Gap(bound, tuple(steps), left)


def _freed(calibration: Calibration, observed: Observed) -> System:
    """The system without any limit that is not the hardware's speed, every engine as fast as the median one."""
    system = calibration.system
    trainer = replace(system.trainer, phases=tuple(phase for phase in system.trainer.phases if phase.shrinks_with_gpus))
    speed = speed_without_stragglers(observed.passes, system.engine.curve)
    return System(
        workload=replace(system.workload, environment_s=0.0),
        engine=replace(with_forward_speed(system, speed).engine, kv_capacity_tokens=None),
        trainer=trainer,
        update=WeightUpdate(),
        admission=_FREE,
    )


def _rates(
    calibration: Calibration, observed: Observed, free: System, predicted_tokens_per_s: float
) -> Iterator[tuple[Cause, float]]:
    """Each cause, and the rate under it and all before it."""
    whole, layout = calibration.system, calibration.layout
    for cause, system in _ever_less_free(whole, free):
        yield cause, _rate(system, layout)
    if calibration.synchronous:
        yield "synchronous_steps", _rate_by_turns(whole, layout)
        yield "tail", predicted_tokens_per_s
    else:
        uncapped = replace(whole, admission=replace(whole.admission, max_staleness=None, queue_policy="wait"))
        yield "tail", _rate(uncapped, layout)
        yield "staleness_cap", predicted_tokens_per_s
        ran = replace(layout, running_per_engine=max(1, round(mean_running(observed))))
        yield "underfilled_batches", _rate(whole, ran)
    yield "unexplained", observed.trained_tokens_per_s


def _ever_less_free(whole: System, free: System) -> Iterator[tuple[Cause, System]]:
    """What the closed forms know of: the hardware first, then the run's rules."""
    system = free
    yield "layout_imbalance", system
    system = replace(system, engine=replace(whole.engine, kv_capacity_tokens=None))
    yield "stragglers", system
    system = replace(system, engine=whole.engine)
    yield "kv_cache", system
    system = replace(system, trainer=whole.trainer)
    yield "trainer_phases", system
    system = replace(system, update=whole.update)
    yield "weight_updates", system
    system = replace(system, workload=replace(whole.workload, group_size=1))
    yield "environment", system
    system = replace(system, admission=replace(whole.admission, max_staleness=None, queue_policy="wait"))
    yield "admission", system


def _rate_by_turns(system: System, layout: Layout) -> float:
    """Trained response tokens per second where the sides take turns but no sample is longer than another.

    Every engine then makes its samples in full batches until the last: the drain of the step, less its tail.
    """
    step = split_step(system, layout)
    if step is None:
        return 0.0
    engines = np.array([layout.sampler_gpus / system.engine.gpus])
    sampling = replace(sampling_of(system), pause_s=0.0, recompute_s=0.0, prompt_s=0.0, prefill_pass_s=0.0)
    packed_s = float(sampling.period_s(np.array([step.running]), engines)[0])
    tokens = step.trained_tokens_per_s * step.step_s
    return tokens / (step.step_s - max(step.generation_s - packed_s, 0.0))


def mean_running(observed: Observed) -> float:
    """Requests in a batch, mean over the time in passes."""
    passes = observed.passes
    return float(np.average(passes.running, weights=passes.busy_s))


def _rate(system: System, layout: Layout) -> float:
    """Trained response tokens per second; 0 where the layout cannot run at all."""
    state = steady_states(system, (layout,))[0]
    return 0.0 if isinstance(state, Refused) else state.trained_tokens_per_s
