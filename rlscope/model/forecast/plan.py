"""Choose the layout to start a run with, from what device and model promise.

The closed forms solve every split, at the limit on running requests that suits it, and the leading splits are
predicted. A limit is chosen by its median rate over some draws, not by the rate at the medians: a limit that is just
sufficient when all guesses are right leaves no room if the trainers turn out faster. Not covered: several engine sizes
at once (make one plan for each), links between nodes, stragglers, and lengths that change as the run learns.
"""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from rlscope.model.forecast.predict import closed_forecasts, closed_rates, predict, without_stale
from rlscope.model.forecast.recommend import (
    TIE_RATIO,
    Grounds,
    Recommendation,
    fastest_probabilities,
    recommend,
)
from rlscope.model.system import Granularity, Layout, possible_layouts

_LIMITS_PER_DOUBLING: Final = 4
"""Limits on running requests that are tried: under a staleness cap, the rate follows the limit."""
_MOST_SPLITS: Final = 48
"""Maximum number of splits: one step is then 1/50 of the GPUs, and no layout in between is 1% better."""
_MOST_PREDICTED: Final = 8
"""Maximum number of layouts that are predicted: up to a second each."""
_LEADERS: Final = 5
"""Number of fastest splits that are predicted, within the maximum above."""
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
    swept = Sweep(calibration, plan, layouts)
    swept.predict_leaders()
    candidates = swept.candidates()
    present = next((each for each in candidates if each.layout == plan.present), None)
    drawn = [each for each in candidates if each.drawn_tokens_per_s is not None]
    best = _freshest(drawn, lambda each: each.median_rate) if drawn else None
    advice = None
    if present is not None and best is not None and present.drawn_tokens_per_s is not None:
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
    swept = Sweep(assumed_calibration(plan, layouts[0]), plan, layouts)
    return swept.typical_tokens_per_s.get(swept.by_split()[0].layout)


def hours_of(planned: PlanResult, steps: int) -> Estimate | None:
    """Hours that `steps` steps take in the best layout; None if there is none."""
    best = planned.best
    if best is None or best.drawn_tokens_per_s is None or best.timing is None:
        return None
    tokens = steps * best.timing.step_tokens / planned.calibration.steps_per_version
    return Estimate.of(tokens / best.drawn_tokens_per_s / SECONDS_PER_HOUR)


def layouts_of(plan: PlanInputs) -> tuple[Layout, ...]:
    """Return every split with every limit on running requests, and the current layout. Raises UnplannableError."""
    layouts = possible_layouts(plan.gpus, coarse_granularity(plan), limits_of(plan))
    if not layouts:
        raise UnplannableError(f"{plan.gpus} GPUs make no trainer replica and engine")
    return layouts if plan.present is None or plan.present in layouts else (*layouts, plan.present)


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


class Sweep:
    """Every layout of a plan: all by the closed forms, and the leading splits predicted."""

    def __init__(self, calibration: Calibration, plan: PlanInputs, layouts: Sequence[Layout]) -> None:
        """Solve every layout by the closed forms."""
        self._calibration, self._plan = calibration, plan
        self.forecasts = {
            each.layout: without_stale(each, self._cap(each.layout))
            if each.layout.trainer_gpus * plan.device.memory_bytes >= plan.training.state_bytes
            else Forecast(each.layout, "trainer_memory")
            for each in closed_forecasts(calibration.system, layouts)
        }
        """Forecasts at the medians of the guesses; those that are predicted have a rate for every draw."""
        usable = [layout for layout, each in self.forecasts.items() if each.excluded is None]
        rates = closed_rates(calibration, calibration.draws[:_DRAWS_OF_A_LIMIT], usable)
        self.typical_tokens_per_s = dict(zip(usable, np.median(rates, axis=0).tolist(), strict=True))
        """Median over draws by the closed form, for layouts that can be used."""

    def predict_leaders(self) -> None:
        """Predict the leading splits. One that falls back makes room for the next, which is then considered."""
        asked, present = set[Layout](), self._plan.present
        while len(asked) < _MOST_PREDICTED:
            leaders = [*self.by_split()[:_LEADERS], *([self.forecasts[present]] if present is not None else [])]
            left = [each.layout for each in leaders if each.excluded is None and each.layout not in asked]
            if not left:
                break
            asked.add(left[0])
            self.forecasts[left[0]] = without_stale(predict(self._calibration, left[0]), self._cap(left[0]))

    def by_split(self, *, but: Layout | None = None) -> list[Forecast]:
        """Return one forecast per split, at the limit that suits it: the fastest first, excluded ones last.

        but: a layout to leave out.
        """
        splits: dict[tuple[int, int], list[Forecast]] = {}
        for layout, each in self.forecasts.items():
            if layout != but:
                splits.setdefault((layout.trainer_gpus, layout.sampler_gpus), []).append(each)
        chosen = map(self._of_split, splits.values())
        return sorted(chosen, key=lambda each: (each.excluded is not None, -self._typical_rate(each)))

    def candidates(self) -> tuple[Forecast, ...]:
        """Return the splits that were predicted, the fastest by median first, then those that cannot be used."""
        present = self._plan.present
        listed = [*self.by_split(but=present), *([self.forecasts[present]] if present is not None else [])]
        usable = [each for each in listed if each.excluded is None and each.tokens_per_s is not None]
        return (*sorted(usable, key=lambda each: -each.median_rate), *(each for each in listed if each.excluded))

    def _of_split(self, forecasts: Sequence[Forecast]) -> Forecast:
        """Return the one that was predicted, else the least stale of the fastest; if none can be used, the nearest.

        Limits of a split are not compared by simulations: there would be too many.
        """
        usable = [each for each in forecasts if each.excluded is None]
        if not usable:
            return min(forecasts, key=staleness_rank)
        return _freshest([each for each in usable if each.tokens_per_s is not None] or usable, self._typical_rate)

    def _typical_rate(self, forecast: Forecast) -> float:
        return self.typical_tokens_per_s.get(forecast.layout, 0.0) * _form_ratio(forecast)

    def _cap(self, layout: Layout) -> int | None:
        """The other layouts are compared with the current one, so its staleness does not matter."""
        return None if layout == self._plan.present else self._plan.most_staleness


def staleness_rank(forecast: Forecast) -> tuple[int, int]:
    """Rank equally fast layouts: the least stale first, then the smallest."""
    staleness = sys.maxsize if forecast.staleness is None else forecast.staleness.sample_p95
    return (staleness, forecast.layout.max_running)


def _form_ratio(forecast: Forecast) -> float:
    """Predicted rate over the closed form's; 1 if the layout was not predicted."""
    if forecast.state is None or forecast.tokens_per_s is None:
        return 1.0
    return forecast.tokens_per_s / forecast.state.trained_tokens_per_s


def _freshest(forecasts: Sequence[Forecast], rate: Callable[[Forecast], float]) -> Forecast:
    """Return the least stale of those that are as fast as the fastest."""
    most = max(map(rate, forecasts))
    return min((each for each in forecasts if rate(each) >= (1.0 - TIE_RATIO) * most), key=staleness_rank)


def _unknown_costs(
    calibration: Calibration, plan: PlanInputs, drawn: Sequence[Forecast], best: Forecast
) -> tuple[UnknownCost, ...]:
    """Return the cost of each unknown alone, with the others at their medians."""
    layouts, at_best = [each.layout for each in drawn], [each.layout for each in drawn].index(best.layout)
    ratios = np.array([_form_ratio(each) for each in drawn])

    def of(unknown: Unknown) -> UnknownCost:
        systems = drawn_alone(plan, unknown, _DRAWS_OF_ONE)
        rates = closed_rates(calibration, systems, layouts) * ratios
        usual = rates[:, int(np.argmax(np.median(rates, axis=0)))]
        regret_ratio = float((rates.max(axis=1) / usual).mean() - 1.0)
        return UnknownCost(unknown, Estimate.of(rates[:, at_best] / (best.tokens_per_s or 1.0) - 1.0), regret_ratio)

    costs = [of(unknown) for unknown in UNKNOWNS if is_unsure(plan, unknown)]
    return tuple(sorted(costs, key=lambda each: (-each.regret_ratio, each.rate_ratio.low - each.rate_ratio.high)))
