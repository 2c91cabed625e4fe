"""Choose the layout to start a run with, from what device and model promise.

The closed forms choose the limit on running requests that suits each split; the splits are then predicted and compared
like the layouts of a run. A limit is chosen by its median rate over some draws, not by the rate at the medians: a limit
that is just sufficient when all guesses are right leaves no room if the trainers turn out faster. Not covered: several
engine sizes at once (make one plan for each), links between nodes, stragglers, and lengths that change as the run
learns.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

import numpy as np

from rlscope.document import computed_field
from rlscope.model.analytic.bound import most_tokens_per_s
from rlscope.model.analytic.engine_time import sampling_of
from rlscope.model.analytic.synchronous import SynchronousStep, colocated_step
from rlscope.model.calibration import Calibration
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.layouts import SECONDS_PER_HOUR, Forecast, Forecasts
from rlscope.model.forecast.plan_prior import (
    UNKNOWNS,
    PlanInputs,
    Unknown,
    UnplannableError,
    assumed_calibration,
    drawn_alone,
    is_unsure,
    planned_system,
)
from rlscope.model.forecast.predict import closed_forecasts, closed_rates, predict_layouts, without_stale
from rlscope.model.forecast.recommend import (
    TIE_RATIO,
    Grounds,
    Recommendation,
    best_of,
    fastest_probabilities,
    recommend,
)
from rlscope.model.system import Granularity, Layout, possible_layouts

_LIMITS_PER_DOUBLING: Final = 4
"""Limits on running requests that are tried: under a staleness cap, the rate follows the limit."""
_MOST_SPLITS: Final = 48
"""Maximum number of splits: one step is then 1/50 of the GPUs, and no layout in between is 1% better."""
_DRAWS_OF_A_LIMIT: Final = 40
"""Draws per limit: enough for a median that distinguishes limits."""
_DRAWS_OF_ONE: Final = 25
"""Draws of one unknown alone, at even quantiles: the first and last are the 2% and 98% ones."""


@dataclass(frozen=True, slots=True)
class UnknownCost:
    """Cost of not knowing one quantity."""

    unknown: Unknown
    """The unknown quantity."""
    rate_ratio: Estimate
    """Rate of the best layout over its rate with all unknowns at their medians, minus 1, if only this one is
    unknown."""
    regret_ratio: float
    """Mean gain forgone, 0 or more, by the split that is best for most values, relative to the best split for each."""


@dataclass(frozen=True, slots=True)
class PoorScaling:
    """Share of the GPUs that would train nearly as fast as all of them, with the same batch."""

    fewer_gpus: int
    """Number of GPUs in the subset."""
    gain_ratio: float
    """Rate of all GPUs over that of the share, minus 1."""
    larger_batch: int
    """Samples of a step with a batch larger than the plan's by the ratio of all GPUs to the share."""
    larger_batch_gain_ratio: float
    """Rate of all GPUs with the larger batch over that with the plan's, minus 1."""

    @computed_field
    @property
    def batch_is_too_small(self) -> bool:
        """Whether a larger batch would put the GPUs to use."""
        return self.larger_batch_gain_ratio > self.gain_ratio


@dataclass(frozen=True, slots=True, eq=False)
class PlanResult:
    """Everything that the model says about a plan. All of it is assumed: nothing was measured."""

    plan: PlanInputs
    calibration: Calibration
    candidates: tuple[Forecast, ...]
    """The fastest splits of the GPUs and the current layout: the fastest first, then the splits that are excluded."""
    best: Forecast | None
    """None if no layout can be used."""
    best_probability: Mapping[Layout, float]
    """Share of the draws in which each drawn layout is the fastest."""
    present: Forecast | None
    advice: Recommendation | None
    """Whether to leave the current layout; None if there is none, or no layout to compare it with."""
    bound_tokens_per_s: float
    """Trained response tokens per second that no layout exceeds."""
    synchronous: SynchronousStep | None
    """Synchronous alternative in which every GPU alternates between sampling and training; None if no engine fits."""
    kv_running: float
    """Requests that the KV cache of an engine holds safely."""
    unknown_costs: tuple[UnknownCost, ...]
    """Unknowns in the order in which to measure them."""
    scaling: PoorScaling | None = None
    """Set if a share of the GPUs would train nearly as fast; None if all are put to use, or no layout can be used."""


def plan_layouts(plan: PlanInputs) -> PlanResult:
    """Solve all layouts of a plan.

    If no layout can be used, nothing is raised: `best` is None, and every candidate says why. Raises UnplannableError
    if the model's shape is incomplete, or if the GPUs make no split.
    """
    layouts = layouts_of(plan)
    calibration = assumed_calibration(plan, plan.present or layouts[0])
    candidates = _candidates(calibration, plan, layouts)
    present = next((each for each in candidates if each.layout == plan.present), None)
    drawn = [each for each in candidates if each.drawn_tokens_per_s is not None]
    best, advice = best_of(drawn, drawn[0]) if drawn else None, None
    if present in drawn:
        others = tuple(each for each in candidates if each is not present)
        advice = recommend(calibration, Forecasts(present, others), Grounds(capped=True))
        best = advice.best if advice.changes else present
    system = calibration.system
    return PlanResult(
        plan=plan,
        calibration=calibration,
        candidates=candidates,
        best=best,
        best_probability=fastest_probabilities(candidates),
        present=present,
        advice=advice,
        bound_tokens_per_s=most_tokens_per_s(system, plan.gpus),
        synchronous=colocated_step(system, plan.gpus),
        kv_running=sampling_of(system).kv_running,
        unknown_costs=() if best is None else _unknown_costs(calibration, plan, drawn, best),
    )


def fastest_tokens_per_s(plan: PlanInputs) -> float | None:
    """Rate of the fastest layout that can be used, by the closed forms: its median over some draws. None without one.

    Raises UnplannableError if the GPUs make no split.
    """
    layouts = layouts_of(plan)
    return by_split(assumed_calibration(plan, layouts[0]), plan, layouts)[0][1] or None


def hours_of(planned: PlanResult, steps: int) -> Estimate | None:
    """Hours that `steps` steps take in the best layout; None if there is none."""
    best = planned.best
    if best is None or best.drawn_tokens_per_s is None or best.timing is None:
        return None
    tokens = steps * best.timing.step_tokens / planned.calibration.steps_per_version
    return Estimate.of(tokens / best.drawn_tokens_per_s / SECONDS_PER_HOUR)


def layouts_of(plan: PlanInputs) -> tuple[Layout, ...]:
    """Return every split with every limit on running requests. Raises UnplannableError."""
    layouts = possible_layouts(plan.gpus, coarse_granularity(plan), limits_of(plan))
    if not layouts:
        raise UnplannableError(f"{plan.gpus} GPUs make no trainer replica and engine")
    return layouts


def limits_of(plan: PlanInputs) -> tuple[int, ...]:
    """Return the limits on running requests to try: from what the KV cache holds safely down to one."""
    most = max(1, int(min(plan.max_running, sampling_of(planned_system(plan, {})).kv_running)))
    steps = math.ceil(_LIMITS_PER_DOUBLING * math.log2(most)) + 1
    return tuple(sorted({max(1, round(most * 2.0 ** (-step / _LIMITS_PER_DOUBLING))) for step in range(steps)}))


def coarse_granularity(plan: PlanInputs) -> Granularity:
    """Return the plan's granularity with trainer GPUs in steps large enough to bound the number of splits."""
    given = plan.granularity
    splits = len(possible_layouts(plan.gpus, given, (1,)))
    step = math.ceil(splits / _MOST_SPLITS) * math.lcm(given.gpus_per_trainer_replica, given.gpus_per_node)
    return replace(given, gpus_per_trainer_replica=step) if splits > _MOST_SPLITS else given


def by_split(calibration: Calibration, plan: PlanInputs, layouts: Sequence[Layout]) -> list[tuple[Forecast, float]]:
    """Solve all layouts by the closed forms; return each split at the limit that suits it, with its rate.

    That limit is the least stale of those that are as fast as the fastest; if none can be used, it is the nearest.
    Rates are medians over some draws, and 0 for a split that cannot be used. The fastest split comes first.
    """
    solved = [
        without_stale(each, plan.most_staleness)
        if each.layout.trainer_gpus * plan.device.memory_bytes >= plan.training.state_bytes
        else Forecast(each.layout, "trainer_memory")
        for each in closed_forecasts(calibration.system, layouts)
    ]
    usable = [each.layout for each in solved if each.excluded is None]
    rates = closed_rates(calibration, calibration.draws[:_DRAWS_OF_A_LIMIT], usable)
    typical = dict(zip(usable, np.median(rates, axis=0).tolist(), strict=True))

    def suited(limits: Iterable[Forecast]) -> tuple[Forecast, float]:
        rated = [(each, typical.get(each.layout, 0.0)) for each in limits]
        least = (1.0 - TIE_RATIO) * max(rate for _, rate in rated)
        return min((each for each in rated if each[1] >= least), key=lambda each: _staleness_rank(each[0]))

    splits = groupby(solved, key=lambda each: (each.layout.trainer_gpus, each.layout.sampler_gpus))
    return sorted((suited(limits) for _, limits in splits), key=lambda each: -each[1])


def _staleness_rank(forecast: Forecast) -> tuple[float, int]:
    """Rank equally fast limits: the least stale first, then the smallest."""
    staleness = math.inf if forecast.staleness is None else forecast.staleness.sample_p95
    return (staleness, forecast.layout.max_running)


def _candidates(calibration: Calibration, plan: PlanInputs, layouts: Sequence[Layout]) -> tuple[Forecast, ...]:
    """Predict the current layout and the leading splits; return them, the fastest first, then what is excluded."""
    splits, present = [each for each, _ in by_split(calibration, plan, layouts)], plan.present
    excluded = [each for each in splits if each.excluded and each.layout != present]
    tried = [*filter(None, [present]), *(each.layout for each in splits if each.excluded is None)]
    if not tried:
        return tuple(excluded)
    found = predict_layouts(replace(calibration, layout=tried[0]), tried, plan.most_staleness)
    # Layouts are compared with the current one, so its staleness does not matter.
    first = found.today if present else without_stale(found.today, plan.most_staleness)
    shown = (first, *found.shown[1:])
    stale = [each for each in shown if each.excluded == "too_stale"]
    if stale:
        # Each split gets the next limit that suits it.
        layouts = [each for each in layouts if all(each != other.layout for other in stale)]
        return (*_candidates(calibration, plan, layouts), *stale)
    drawn = [each for each in shown if each.drawn_tokens_per_s is not None]
    excluded += [each for each in shown if each.excluded]
    return (*sorted(drawn, key=lambda each: -each.median_rate), *excluded)


def _unknown_costs(
    calibration: Calibration, plan: PlanInputs, drawn: Sequence[Forecast], best: Forecast
) -> tuple[UnknownCost, ...]:
    """Return the cost of each unknown alone, with the others at their medians."""
    layouts, at_best = [each.layout for each in drawn], [each.layout for each in drawn].index(best.layout)
    simulated = np.array([each.tokens_per_s for each in drawn])
    ratios = simulated / closed_rates(calibration, (calibration.system,), layouts)[0]

    def of(unknown: Unknown) -> UnknownCost:
        systems = drawn_alone(plan, unknown, _DRAWS_OF_ONE)
        rates = closed_rates(calibration, systems, layouts) * ratios
        usual = rates[:, int(np.argmax(np.median(rates, axis=0)))]
        regret_ratio = float((rates.max(axis=1) / usual).mean() - 1.0)
        return UnknownCost(unknown, Estimate.of(rates[:, at_best] / (best.tokens_per_s or 1.0) - 1.0), regret_ratio)

    costs = [of(unknown) for unknown in UNKNOWNS if is_unsure(plan, unknown)]
    return tuple(sorted(costs, key=lambda each: (-each.regret_ratio, each.rate_ratio.low - each.rate_ratio.high)))
