"""All splits of a plan's GPUs, each with the limit on running requests that suits it, the leading ones beyond doubt.

A limit is chosen by its median rate over some of the draws and not by the rate at the medians: a limit that is just
enough when all guesses are right leaves no room when the trainers turn out faster. Not covered: how sure the order of
the splits is, which the draws of `plan.py` say.
"""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rlscope.model.arbiter import corrected, is_doubtful
from rlscope.model.asynchronous import steady_states
from rlscope.model.calibration import Calibration
from rlscope.model.forecast import Forecast, StalenessLaws, forecast_of
from rlscope.model.layouts import Granularity, possible_layouts
from rlscope.model.operating_point import rates_of
from rlscope.model.plan_draws import UnplannableError, planned_system
from rlscope.model.planned import Plan
from rlscope.model.sampler_period import sampling_of
from rlscope.model.system import Layout

LIMIT_FACTORS: Final = tuple(2.0 ** (-step / 4.0) for step in range(17))
"""Running requests to try over the most that fit, down to a sixteenth: in quarters of a doubling, since under a cap on
staleness the rate follows the limit."""
EQUAL_RATIO: Final = 0.01
"""Layouts within a hundredth of the fastest are as fast: the less stale one is preferred."""
_MOST_SPLITS: Final = 48
"""Splits that are tried: a step is then a fiftieth of the GPUs, and no layout between two is better by a hundredth."""
_MOST_SIMULATED: Final = 6
"""Layouts that the event simulator is asked about: a second or so each."""
_LEADERS: Final = 3
"""The fastest splits that must be beyond doubt, or simulated."""
_DRAWS_OF_A_LIMIT: Final = 40
"""Enough for a median that tells limits apart."""


@dataclass(frozen=True, slots=True, eq=False)
class Sweep:
    """Every layout of a plan, solved."""

    calibration: Calibration
    plan: Plan
    forecasts: Mapping[Layout, Forecast]
    """By the guesses' medians; simulated where `judged` asked for it."""
    typical_tokens_per_s: Mapping[Layout, float]
    """Median over draws, by the closed form; of the layouts that can be used."""
    simulated: frozenset[Layout] = frozenset()
    """Layouts whose forecast is the event simulator's."""


def layouts_of(plan: Plan) -> tuple[Layout, ...]:
    """Every split by every limit on running requests, the present layout among them. Raises UnplannableError."""
    most = max(1, int(min(plan.max_running, sampling_of(planned_system(plan, {})).kv_running)))
    limits = tuple(sorted({max(1, round(most * factor)) for factor in LIMIT_FACTORS}))
    layouts = possible_layouts(plan.gpus, coarse_granularity(plan), limits)
    if not layouts:
        raise UnplannableError(f"{plan.gpus} GPUs make no trainer replica and engine")
    return layouts if plan.present is None or plan.present in layouts else (*layouts, plan.present)


def coarse_granularity(plan: Plan) -> Granularity:
    """The plan's own, with trainers in so large steps that the splits are few enough to be told apart."""
    given = plan.granularity
    splits = len(possible_layouts(plan.gpus, given, (1,)))
    step = math.ceil(splits / _MOST_SPLITS) * math.lcm(given.gpus_per_trainer_replica, given.gpus_per_node)
    return replace(given, gpus_per_trainer_replica=step) if splits > _MOST_SPLITS else given


def sweep(calibration: Calibration, plan: Plan, layouts: Sequence[Layout]) -> Sweep:
    """Solve every layout by the closed forms."""
    laws = StalenessLaws.of(calibration.system)
    states = steady_states(calibration.system, layouts, calibration.cap_rule)
    forecasts = {
        layout: forecast_of(calibration, laws, state, _cap(plan, layout))
        if layout.trainer_gpus * plan.device.memory_bytes >= plan.training.state_bytes
        else Forecast(layout, "trainer_memory", None, None, None, None, None)
        for layout, state in zip(layouts, states, strict=True)
    }
    usable = [layout for layout, each in forecasts.items() if each.excluded is None]
    systems = calibration.draws[:_DRAWS_OF_A_LIMIT] if usable else ()
    rates = [rates_of(calibration, system, usable) for system in systems]
    typical = np.median(rates, axis=0).tolist() if rates else []
    return Sweep(calibration, plan, forecasts, dict(zip(usable, typical, strict=True)))


def judged(swept: Sweep) -> Sweep:
    """The sweep with its leading splits simulated where their closed form is doubtful.

    A leader that the simulator brings down makes room for the next one, which is then looked at.
    """
    calibration, plan, asked = swept.calibration, swept.plan, set[Layout]()
    while len(asked) < _MOST_SIMULATED:
        leaders = [each for each in by_split(swept, swept.forecasts.values())[:_LEADERS] if each.excluded is None]
        leaders += [swept.forecasts[plan.present]] if plan.present is not None else []
        open_ones = [each for each in leaders if each.layout not in asked and each.state is not None]
        doubtful = next((each for each in open_ones if is_doubtful(calibration, each.layout)), None)
        if doubtful is None:
            break
        asked.add(doubtful.layout)
        simulated = corrected(calibration, doubtful, plan.settings, _cap(plan, doubtful.layout))
        swept = replace(swept, forecasts={**swept.forecasts, doubtful.layout: simulated})
    return replace(swept, simulated=frozenset(asked))


def by_split(swept: Sweep, forecasts: Iterable[Forecast]) -> list[Forecast]:
    """One forecast for each split of the GPUs, at the limit that suits it: the fastest first, excluded ones last."""
    splits: dict[tuple[int, int], list[Forecast]] = {}
    for each in forecasts:
        splits.setdefault((each.layout.trainer_gpus, each.layout.sampler_gpus), []).append(each)
    chosen = [_of_split(swept, each) for each in splits.values()]
    return sorted(chosen, key=lambda each: (each.excluded is not None, -_typical_rate(swept, each)))


def staleness_rank(forecast: Forecast) -> tuple[int, int]:
    """Of layouts that are as fast: the least stale first, then the smallest."""
    staleness = sys.maxsize if forecast.staleness is None else forecast.staleness.sample_p95
    return (staleness, forecast.layout.running_per_engine)


def simulated_ratio(forecast: Forecast) -> float:
    """What the simulator made of the closed form's rate: 1 where it was not asked."""
    if forecast.state is None or forecast.tokens_per_s is None:
        return 1.0
    return forecast.tokens_per_s / forecast.state.trained_tokens_per_s


def _cap(plan: Plan, layout: Layout) -> int | None:
    """The present layout is what the others are compared with, whatever its staleness."""
    return None if layout == plan.present else plan.most_staleness


def _of_split(swept: Sweep, forecasts: Sequence[Forecast]) -> Forecast:
    """Of those as fast as the fastest the least stale; where none can be used, the one that comes nearest to it."""
    usable = [each for each in forecasts if each.excluded is None]
    if not usable:
        return min(forecasts, key=staleness_rank)
    most = max(_typical_rate(swept, each) for each in usable)
    equals = [each for each in usable if _typical_rate(swept, each) >= (1.0 - EQUAL_RATIO) * most]
    return min(equals, key=staleness_rank)


def _typical_rate(swept: Sweep, forecast: Forecast) -> float:
    return swept.typical_tokens_per_s.get(forecast.layout, 0.0) * simulated_ratio(forecast)
