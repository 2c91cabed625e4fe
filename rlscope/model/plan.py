"""Which layout to start a run with, before there is a run: all splits of the GPUs, by what device and model promise.

Every split is solved with the guesses at their medians and given the limit on running requests that suits it; the
leading ones are simulated where the closed form is not to be trusted; the best of them are solved with every draw of
the guesses. Not covered: several sizes of engine at once (make one plan for each), and what no figure of a plan
states, such as links between nodes, stragglers, and lengths that change while the run learns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rlscope.model.calibration import Calibration
from rlscope.model.forecast import Forecast, Forecasts, Spread, drawn_rates
from rlscope.model.operating_point import rates_of
from rlscope.model.plan_draws import UNKNOWNS, assumed_calibration, drawn_alone, is_unsure
from rlscope.model.plan_sweep import (
    EQUAL_RATIO,
    Sweep,
    by_split,
    judged,
    layouts_of,
    simulated_ratio,
    staleness_rank,
    sweep,
)
from rlscope.model.planned import Plan, Unknown
from rlscope.model.recommendation import Recommendation, recommend
from rlscope.model.sampler_period import sampling_of
from rlscope.model.synchronous import SynchronousStep, colocated_step
from rlscope.model.system import Layout, Reals
from rlscope.model.work_conservation import WorkBound, work_conservation_bound

_MOST_DRAWN: Final = 12
"""Splits solved with every draw: those further down are not the best in any."""
_SECONDS_PER_HOUR: Final = 3600.0
_DRAWS_OF_ONE: Final = 25
"""Draws of one unknown alone, at even quantiles: their ends are the 2 % and 98 % ones."""


@dataclass(frozen=True, slots=True)
class UnknownCost:
    """What not knowing one thing costs."""

    unknown: Unknown
    rate_ratio: Spread
    """Rate of the best layout over that with all at their medians, less 1, when this alone is unknown."""
    regret_ratio: float
    """Mean gain forgone by the split that is best for most of its values, against the best for each, 0 or more."""


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """What the model says of a plan. Everything in it is assumed: nothing was measured."""

    plan: Plan
    calibration: Calibration
    candidates: tuple[Forecast, ...]
    """One for each split of the GPUs: the fastest first, those out of the question last."""
    best: Forecast | None
    """None where no layout can be used."""
    best_probability: Mapping[Layout, float]
    """Share of the draws in which each layout that was drawn is the fastest."""
    present: Forecast | None
    advice: Recommendation | None
    """Whether to leave the present layout; None where there is none, or nothing to compare it with."""
    bound: WorkBound
    synchronous: SynchronousStep | None
    """All GPUs do both in turns; None where no engine fits."""
    kv_running: float
    """Requests that the KV cache of an engine holds safely."""
    unknown_costs: tuple[UnknownCost, ...]
    """What to measure first, first."""
    simulated: frozenset[Layout]
    """Layouts whose forecast is the event simulator's."""


def plan_layouts(plan: Plan) -> Planned:
    """Sweep all layouts of a plan. Raises UnplannableError where the model's shape does not say enough, and where the
    GPUs make no split.

    Nothing is raised where no layout can be used: `best` is None then, and every candidate says why.
    """
    layouts = layouts_of(plan)
    calibration = assumed_calibration(plan, plan.present or layouts[0])
    swept = judged(sweep(calibration, plan, layouts))
    candidates = _drawn(swept)
    present = next((each for each in candidates if each.layout == plan.present), None)
    best = _chosen([each for each in candidates if each.drawn_tokens_per_s is not None])
    advice = None
    if present is not None and best is not None and present.drawn_tokens_per_s is not None:
        others = tuple(each for each in candidates if each is not present)
        advice = recommend(calibration, Forecasts(present, others), long_enough=True)
        best = advice.best if advice.changes else present
    system = calibration.system
    return Planned(
        plan=plan,
        calibration=calibration,
        candidates=candidates,
        best=best,
        best_probability=_best_probability(candidates),
        present=present,
        advice=advice,
        bound=work_conservation_bound(system, plan.gpus),
        synchronous=colocated_step(system, plan.gpus),
        kv_running=sampling_of(system).kv_running,
        unknown_costs=() if best is None else _unknown_costs(calibration, plan, candidates, best),
        simulated=swept.simulated,
    )


def gain_over(forecast: Forecast, other: Forecast | None) -> Spread | None:
    """Rate over another layout's, less 1, draw by draw; None where one of them was not drawn."""
    if other is None or forecast.drawn_tokens_per_s is None or other.drawn_tokens_per_s is None:
        return None
    return Spread.of(forecast.drawn_tokens_per_s / other.drawn_tokens_per_s - 1.0)


def hours_of(planned: Planned, steps: int) -> Spread | None:
    """Hours that so many steps take in the best layout; None where there is none."""
    if planned.best is None or planned.best.drawn_tokens_per_s is None:
        return None
    workload = planned.calibration.system.workload
    tokens = steps * workload.samples_per_step * workload.lengths.mean_tokens
    return Spread.of(tokens / planned.best.drawn_tokens_per_s / _SECONDS_PER_HOUR)


def _drawn(swept: Sweep) -> tuple[Forecast, ...]:
    """One candidate for each split, and the present layout; the leading ones with a rate for every draw."""
    present, forecasts = swept.plan.present, swept.forecasts
    others = by_split(swept, (each for each in forecasts.values() if each.layout != present))
    looked_at = [*([forecasts[present]] if present is not None else []), *others[:_MOST_DRAWN]]
    drawn = [each for each in looked_at if each.excluded is None]
    rates = drawn_rates(swept.calibration, [each.layout for each in drawn]).T if drawn else ()
    final = [
        replace(each, drawn_tokens_per_s=column * simulated_ratio(each))
        for each, column in zip(drawn, rates, strict=True)
    ]
    final += [each for each in looked_at if each.excluded is not None]
    return tuple(sorted([*final, *others[_MOST_DRAWN:]], key=_rank))


def _rank(candidate: Forecast) -> tuple[bool, bool, float]:
    rate = candidate.tokens_per_s or 0.0 if candidate.drawn_tokens_per_s is None else _median_rate(candidate)
    return (candidate.excluded is not None, candidate.drawn_tokens_per_s is None, -rate)


def _chosen(drawn: Sequence[Forecast]) -> Forecast | None:
    """The fastest by its median over the draws; of those as fast, the least stale."""
    if not drawn:
        return None
    most = max(map(_median_rate, drawn))
    return min((each for each in drawn if _median_rate(each) >= (1.0 - EQUAL_RATIO) * most), key=staleness_rank)


def _median_rate(forecast: Forecast) -> float:
    return 0.0 if forecast.drawn_tokens_per_s is None else float(np.median(forecast.drawn_tokens_per_s))


def _best_probability(candidates: Sequence[Forecast]) -> dict[Layout, float]:
    rates = {each.layout: each.drawn_tokens_per_s for each in candidates if each.drawn_tokens_per_s is not None}
    if not rates:
        return {}
    fastest = np.stack(list(rates.values())).max(axis=0)
    return {layout: float((drawn >= fastest).mean()) for layout, drawn in rates.items()}


def _unknown_costs(
    calibration: Calibration, plan: Plan, candidates: Sequence[Forecast], best: Forecast
) -> tuple[UnknownCost, ...]:
    """Each unknown alone, the others at their medians."""
    drawn = [each for each in candidates if each.drawn_tokens_per_s is not None]
    layouts, at_best = [each.layout for each in drawn], [each.layout for each in drawn].index(best.layout)
    ratios = np.array([simulated_ratio(each) for each in drawn])

    def of(unknown: Unknown) -> UnknownCost:
        systems = drawn_alone(plan, unknown, _DRAWS_OF_ONE)
        rates: Reals = np.array([rates_of(calibration, system, layouts) for system in systems]) * ratios
        usual = rates[:, int(np.argmax(np.median(rates, axis=0)))]
        regret_ratio = float((rates.max(axis=1) / usual).mean() - 1.0)
        return UnknownCost(unknown, Spread.of(rates[:, at_best] / (best.tokens_per_s or 1.0) - 1.0), regret_ratio)

    found = [of(unknown) for unknown in UNKNOWNS if is_unsure(plan, unknown)]
    return tuple(sorted(found, key=lambda each: (-each.regret_ratio, each.rate_ratio.low - each.rate_ratio.high)))
