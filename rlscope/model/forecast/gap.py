"""Explain the gap between the upper bound of the GPUs and the achieved throughput, cause by cause.

Each cause adds one more limit of the run and solves the model again; the rate lost is charged to that limit. The causes
therefore add up exactly, and a cause hidden by an earlier one is charged nothing. The order is fixed: hardware and
split first, then the run's limits, then what the model does not explain. Two causes are measured on the passes
themselves: engines slower than the others, by the time of their passes over the fitted curve; and batches too small to
be efficient. Not covered: the gain from lifting one limit alone (see the forecasts), why an engine is slow, and GPUs
that differ within one engine.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from rlscope.model.analytic.bound import most_tokens_per_s
from rlscope.model.analytic.engine_time import sampling_of
from rlscope.model.analytic.steady_state import trained_rates
from rlscope.model.analytic.synchronous import split_step
from rlscope.model.arrays import Reals
from rlscope.model.calibration import Calibration
from rlscope.model.causes import Cause
from rlscope.model.engine_speeds import speed_without_stragglers
from rlscope.model.forecast.change import with_engine_speed, with_limits
from rlscope.model.forecast.layouts import Forecasts
from rlscope.model.observed import Observed
from rlscope.model.system import Admission, Layout, System, WeightUpdateCost

GapCause: TypeAlias = Literal[
    Cause.RUNNING_LIMIT,
    Cause.WHOLE_GPUS,
    Cause.LAYOUT_IMBALANCE,
    Cause.SLOW_ENGINES,
    Cause.KV_CACHE,
    Cause.BETWEEN_STEPS,
    Cause.WEIGHT_UPDATES,
    Cause.ENVIRONMENT,
    Cause.IN_FLIGHT_LIMIT,
    Cause.STALENESS_CAP,
    Cause.LOCKSTEP,
    Cause.TAIL,
    Cause.UNDERFILLED_BATCHES,
    Cause.UNEXPLAINED,
]
"""Causes of the gap, in the order in which they are charged."""

EFFICIENT_RATIO: Final = 0.90
"""Share of the full rate beyond which filling a batch further gains less than 10%: not worth the staleness and KV
cache."""
_FREE: Final = Admission(queue_capacity_samples=None, max_in_flight_samples=None)


@dataclass(frozen=True, slots=True)
class GapStep:
    """The part of the gap that one cause accounts for."""

    cause: GapCause
    """The cause."""
    lost_tokens_per_s: float
    """Trained response tokens per second lost to this cause; below 0 if the run does better than the model predicts."""
    left_tokens_per_s: float
    """Rate that remains after this cause and all causes before it."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Gap between bound and achieved rate: bound - sum(lost) = achieved, exactly."""

    bound_tokens_per_s: float
    steps: tuple[GapStep, ...]
    achieved_tokens_per_s: float


def explain_gap(
    calibration: Calibration,
    observed: Observed,
    forecasts: Forecasts,
    predicted_tokens_per_s: float,
    reached: Iterable[float] = (),
) -> Gap:
    """Walk from the bound to the achieved rate.

    predicted_tokens_per_s: the model's best prediction for the run's layout: from the event simulator if a cap binds,
    from the synchronous step if the run is synchronous. reached: trained tokens per second that settings are predicted
    to reach. The bound is the best over the tried limits on running requests. A forecast may err upwards, and a run may
    do better than modeled, so the bound is raised to at least those rates.
    """
    free, own, every = _freed(calibration.system, observed), calibration.layout, (forecasts.today, *forecasts.others)
    limits = {each.layout.max_running for each in every}
    bounds = {limit: most_tokens_per_s(free, own.gpus, float(limit)) for limit in limits}
    medians = (each.median_rate for each in every if each.drawn_tokens_per_s is not None)
    best_estimates = (each.tokens_per_s or 0.0 for each in every)
    bound = max(*bounds.values(), *best_estimates, *medians, *reached, observed.trained_tokens_per_s)
    left, steps = bound, list[GapStep]()
    own_bound = bounds[own.max_running]
    alike = {each.layout for each in forecasts.others if each.layout.max_running == own.max_running}
    whole = max(_rate(free, layout) for layout in (own, *alike))
    for cause, rate in _rates(calibration, observed, free, (own_bound, whole), predicted_tokens_per_s):
        # A limit never helps: if the closed forms differ by rounding, nothing is charged.
        kept = rate if cause == Cause.UNEXPLAINED else min(left, rate)
        steps.append(GapStep(cause, left - kept, kept))
        left = kept
    return Gap(bound, tuple(steps), left)


@dataclass(frozen=True, slots=True, eq=False)
class BatchEfficiency:
    """Efficiency of the decode batches in the steady state."""

    efficient_running: int
    """Requests in the smallest batch that reaches EFFICIENT_RATIO of the rate at the limit."""
    efficient_time_ratio: float
    """Share of the decode time, 0..1, that the same tokens would have taken in efficient batches."""
    used_ratios: Reals
    """Equivalent share for a single pass over 1, 2, ... efficient_running requests."""

    def time_ratio(self, running: npt.ArrayLike, busy_s: npt.ArrayLike) -> float:
        """Share of the passes' time, 0..1, that efficient batches would have taken.

        running: requests of each pass. busy_s: seconds of each pass, at least one above 0.
        """
        at = np.clip(np.asarray(running, dtype=np.int64), 1, self.efficient_running) - 1
        return float(np.average(self.used_ratios[at], weights=np.asarray(busy_s, dtype=np.float64)))


def batch_efficiency(calibration: Calibration, observed: Observed) -> BatchEfficiency | None:
    """Compare the decode time of the steady state with that of efficient batches, by the fitted curve.

    None if nothing decoded, or if the run does not show which batches are efficient: it had a single batch size, or the
    smallest efficient batch lies beyond what its passes cover.
    """
    visited = calibration.curve.visited
    if visited is None or visited.one_batch_size:
        return None
    limit = calibration.layout.max_running
    context_tokens = _context_tokens(observed)
    batches = np.arange(1, limit + 1, dtype=np.float64)
    curve = calibration.system.engine.curve
    rates = batches / (curve.pass_s(batches) + curve.kv_s_per_token * context_tokens * batches)
    efficient = int(np.argmax(rates >= EFFICIENT_RATIO * rates.max())) + 1
    if visited.grade(efficient, None) not in ("measured", "interpolated"):
        return None
    passes = observed.passes
    decodes = (passes.decode_tokens > 0) & (passes.busy_s > 0.0)
    if not decodes.any():
        return None
    used_ratios = np.minimum(rates[:efficient] / rates[efficient - 1], 1.0)
    whole = BatchEfficiency(efficient, 1.0, used_ratios)
    return replace(whole, efficient_time_ratio=whole.time_ratio(passes.running[decodes], passes.busy_s[decodes]))


def _context_tokens(observed: Observed) -> float:
    """Resident tokens per running request, mean over passes; 0 if not recorded."""
    passes = observed.passes
    recorded = np.isfinite(passes.kv_tokens) & (passes.running > 0)
    if not recorded.any():
        return 0.0
    return float(np.average(passes.kv_tokens[recorded] / passes.running[recorded], weights=passes.passes[recorded]))


def _freed(system: System, observed: Observed) -> System:
    """Remove every limit that is not hardware speed, and make every engine as fast as the median one."""
    trainer = replace(system.trainer, phases=tuple(phase for phase in system.trainer.phases if phase.shrinks_with_gpus))
    speed = speed_without_stragglers(observed.passes, system.engine.curve)
    return System(
        workload=replace(system.workload, environment_s=0.0),
        engine=replace(with_engine_speed(system, speed).engine, kv_capacity_tokens=None),
        trainer=trainer,
        update=WeightUpdateCost(),
        admission=_FREE,
    )


def _rates(
    calibration: Calibration, observed: Observed, free: System, best: tuple[float, float], predicted_tokens_per_s: float
) -> Iterator[tuple[GapCause, float]]:
    """Yield each cause with the rate under it and all causes before it.

    best: the bounds of any split at the current limit on running requests, and of any split of whole GPUs.
    """
    whole, layout = calibration.system, calibration.layout
    yield Cause.RUNNING_LIMIT, best[0]
    yield Cause.WHOLE_GPUS, best[1]
    for cause, system in _ever_less_free(whole, free):
        yield cause, _rate(system, layout)
    if calibration.synchronous:
        yield Cause.LOCKSTEP, _synchronous_rate(whole, layout)
        yield Cause.TAIL, predicted_tokens_per_s
    else:
        if whole.admission.max_staleness is not None or whole.admission.queue_policy != "wait":
            yield Cause.TAIL, _rate(replace(whole, admission=_uncapped(whole.admission)), layout)
            yield Cause.STALENESS_CAP, predicted_tokens_per_s
        else:
            yield Cause.TAIL, predicted_tokens_per_s
        ran = replace(layout, max_running=max(1, round(mean_running(observed))))
        # Use the closed form of admission whoever enforces the cap: the running requests already reflect the cap.
        policy = whole.admission.staleness_policy
        by_admission = with_limits(whole, staleness_policy="admission" if policy == "publication_waits" else policy)
        underfilled = _rate(by_admission, ran)
        # Batches that ran achieved the measured rate, so they cost no more, whatever the closed form predicts.
        yield Cause.UNDERFILLED_BATCHES, max(underfilled, observed.trained_tokens_per_s)
    yield Cause.UNEXPLAINED, observed.trained_tokens_per_s


def _ever_less_free(whole: System, free: System) -> Iterator[tuple[GapCause, System]]:
    """Yield the causes that the closed forms cover: hardware first, then the run's rules."""
    added: Mapping[GapCause, Mapping[str, object]] = {
        Cause.LAYOUT_IMBALANCE: {},
        Cause.SLOW_ENGINES: {"engine": replace(whole.engine, kv_capacity_tokens=None)},
        Cause.KV_CACHE: {"engine": whole.engine},
        Cause.BETWEEN_STEPS: {"trainer": whole.trainer},
        Cause.WEIGHT_UPDATES: {"update": whole.update},
        Cause.ENVIRONMENT: {"workload": replace(whole.workload, group_size=1)},
        Cause.IN_FLIGHT_LIMIT: {"admission": _uncapped(whole.admission)},
    }
    system = free
    for cause, parts in added.items():
        system = replace(system, **parts)
        yield cause, system


def _uncapped(admission: Admission) -> Admission:
    """Remove the staleness cap, so that nothing is dropped."""
    return replace(admission, max_staleness=None, queue_policy="wait", staleness_policy="admission")


def _synchronous_rate(system: System, layout: Layout) -> float:
    """Trained response tokens per second of a synchronous step in which all samples are equally long.

    Every engine then generates in full batches to the end, so generation takes as long as in the step, minus its tail.
    """
    step = split_step(system, layout)
    if step is None:
        return 0.0
    engines = np.array([layout.sampler_gpus / system.engine.gpus])
    sampling = replace(
        sampling_of(system), pause_s=0.0, recompute_s=0.0, recompute_pass_s=0.0, prompt_s=0.0, prefill_pass_s=0.0
    )
    packed_s = float(sampling.period_s(np.array([step.running]), engines)[0])
    tokens = step.trained_tokens_per_s * step.step_s
    return tokens / (step.step_s - max(step.generation_s - packed_s, 0.0))


def mean_running(observed: Observed) -> float:
    """Mean number of requests in a batch, weighted by time in passes."""
    passes = observed.passes
    return float(np.average(passes.running, weights=passes.busy_s))


def _rate(system: System, layout: Layout) -> float:
    """Trained response tokens per second; 0 if the layout cannot run."""
    return float(trained_rates((system,), (layout,))[0, 0])
