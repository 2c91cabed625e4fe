"""Forecasts corrected by the event simulator, where the closed forms are known to be wrong.

A layout in which a cap binds, samples age out, a queue grows or engines run few requests is simulated with the best
estimate; its forecast and all its draws are scaled by the simulated rate over the closed form's. The current layout and
the fastest of the others are simulated; other layouts with warnings are scaled as their neighbours were, so that a
simulated rate is never compared with an uncorrected one. Not covered: how the correction varies over the draws.
"""

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np

from rlscope.model.analytic.limits import Refused
from rlscope.model.analytic.staleness import maximum
from rlscope.model.analytic.steady_state import steady_states
from rlscope.model.arrays import Reals
from rlscope.model.calibration import Calibration
from rlscope.model.forecast.gap import LEAST_ENGINES_COMPARED, STRAGGLES_RATIO, engine_slowness
from rlscope.model.forecast.layouts import (
    STALE_QUANTILE,
    Forecast,
    Forecasts,
    StalenessForecast,
    preemption_simulated,
    timing_of_simulated,
)
from rlscope.model.numerics.bootstrap import drawn_factors
from rlscope.model.observed import Observed
from rlscope.model.simulate import NeverTrains, Settings, Simulated, runs_like, simulate
from rlscope.model.system import Admission, DecodeCurve, Layout, System

_MOST_SIMULATED: Final = 10
"""Layouts that are simulated: a tenth to half of a second each."""
_LEADERS: Final = 4
"""The fastest rivals, none of which is left without a simulation that it needs, as far as the number above reaches."""
_NEIGHBOUR_ERROR: Final = 0.07
"""Log deviation of a correction that is taken from neighbours, besides the simulator's own error: with that, a doubtful
forecast errs by the tenth that closed forms with a warning have."""
_STEPS: Final = 60
"""Steps of a simulation: its rate is then known to about 1% where a step's time varies by 10%."""
_MORE_STEPS: Final = 120
"""Steps where they are so small that twice as many take no time: a rate that varies more is then known as well."""
_FEW_SAMPLES: Final = 12_000
"""Samples of a simulation that takes no time."""
_MOST_SAMPLES: Final = 300_000
"""Samples of a simulation; runs with large steps are simulated for fewer of them."""
_FEWEST_STEPS: Final = 12
_SEED: Final = 1
_NO_LIMITS: Final = Admission()


@dataclass(frozen=True, slots=True)
class Corrected:
    """Forecasts after correction, and how many layouts were simulated."""

    forecasts: Forecasts
    simulated_layouts: int


def correct_by_simulation(
    calibration: Calibration, forecasts: Forecasts, settings: Settings, most_staleness: int | None
) -> Corrected:
    """Correct the forecasts where the closed form is not to be trusted.

    Today's layout is simulated, and then, one after the other, the fastest that are not, until the first few all are
    or enough were asked. A doubtful layout that was not asked is moved as its neighbours were.
    """
    if calibration.synchronous:
        return Corrected(forecasts, 0)
    today, rivals = forecasts.today, {each.layout: each for each in forecasts.rivals}
    doubtful = {layout for layout in (today.layout, *rivals) if is_doubtful(calibration, layout)}
    simulated: dict[Layout, Forecast] = {}
    if today.state and today.layout in doubtful:
        # What the others are compared with, whatever its staleness: no cap leaves it out.
        simulated[today.layout] = corrected(calibration, today, settings, None)
    while len(simulated) < _MOST_SIMULATED:
        moved = _moved(rivals, simulated, doubtful, today)
        leaders = sorted(filter(_can_run, moved.values()), key=_rank)[:_LEADERS]
        asked = next((each.layout for each in leaders if each.layout in doubtful - simulated.keys()), None)
        if asked is None:
            break
        simulated[asked] = corrected(calibration, rivals[asked], settings, most_staleness)
    moved = _moved(rivals, simulated, doubtful, today)
    others = sorted((moved.get(each.layout, each) for each in forecasts.others), key=_rank)
    now = replace(simulated.get(today.layout, today), excluded=today.excluded)
    return Corrected(Forecasts(now, tuple(others)), len(simulated))


def _rank(forecast: Forecast) -> tuple[bool, float]:
    return (forecast.excluded is not None, -(forecast.tokens_per_s or 0.0))


def _can_run(forecast: Forecast) -> bool:
    return forecast.excluded is None


def _moved(
    rivals: Mapping[Layout, Forecast], simulated: Mapping[Layout, Forecast], doubtful: Set[Layout], today: Forecast
) -> dict[Layout, Forecast]:
    """The rivals: simulated ones unchanged, other doubtful ones scaled like their neighbours.

    The logarithm of the correction is interpolated between trainer GPUs, among layouts with the same limit on running
    requests; where there is none with that limit, between limits, among those of the same split; else among all. Beyond
    the outermost it is level.
    """
    before = {**rivals, today.layout: today}
    known = {layout: _log_ratio(each, before[layout]) for layout, each in simulated.items()}
    spans = {layout: each.staleness.version_steps for layout, each in simulated.items() if each.staleness is not None}
    moved: dict[Layout, Forecast] = {}
    for layout, each in rivals.items():
        if layout in simulated or layout not in doubtful or not known:
            moved[layout] = simulated.get(layout, each)
            continue
        factor = float(np.exp(_between_neighbours(layout, known)))
        moved[layout] = _scaled(each, factor, _between_neighbours(layout, spans) if spans else 1.0)
    return moved


def _between_neighbours(layout: Layout, known: Mapping[Layout, float]) -> float:
    """What is known of other layouts, interpolated as `_moved` says."""
    alike = [other for other in known if other.running_per_engine == layout.running_per_engine]
    split = [other for other in known if other.trainer_gpus == layout.trainer_gpus]
    if split and not alike:
        about = sorted(split, key=lambda other: other.running_per_engine)
        limits = np.log([other.running_per_engine for other in about])
        at = np.interp(math.log(layout.running_per_engine), limits, [known[other] for other in about])
    else:
        about = sorted(alike or known, key=lambda other: other.trainer_gpus)
        gpus = [other.trainer_gpus for other in about]
        at = np.interp(layout.trainer_gpus, gpus, [known[other] for other in about])
    return float(at)


def _log_ratio(after: Forecast, before: Forecast) -> float:
    return float(np.log((after.tokens_per_s or 1.0) / (before.tokens_per_s or 1.0)))


def _scaled(forecast: Forecast, factor: float, version_steps: float) -> Forecast:
    """A forecast scaled without a simulation of its own: wider by how much neighbours differ.

    version_steps: the most that a version of theirs lasts, which the closed form knows nothing of.
    """
    drawn, rate = forecast.drawn_tokens_per_s, forecast.tokens_per_s
    if drawn is None or rate is None:
        return forecast
    rng = np.random.default_rng([_SEED, forecast.layout.trainer_gpus, forecast.layout.running_per_engine])
    errors = np.exp(_NEIGHBOUR_ERROR * rng.standard_normal(drawn.size))
    pace = forecast.pace and replace(forecast.pace, step_s=forecast.pace.step_s / factor)
    aged = forecast.staleness and replace(forecast.staleness, version_steps=version_steps)
    drawn = drawn * factor * errors
    return replace(forecast, tokens_per_s=rate * factor, drawn_tokens_per_s=drawn, pace=pace, staleness=aged)


def is_doubtful(calibration: Calibration, layout: Layout) -> bool:
    """Whether the layout's steady state has a warning, is bound by the KV cache, or is staler than a cap allows; with
    slow engines every layout is, since their share of the engines changes with the split.
    """
    state = steady_states(calibration.system, (layout,))[0]
    if isinstance(state, Refused):
        return False
    if calibration.engine_slowness is not None:
        return True
    workload, cap, terms = calibration.system.workload, calibration.system.admission.max_staleness, state.staleness
    passes_cap = (
        cap is not None and terms is not None and maximum(terms, workload.lengths) > cap + workload.prefetched_batches
    )
    kv_binds = state.running_limit < layout.running_per_engine
    return bool(state.warnings) or passes_cap or kv_binds


def corrected(calibration: Calibration, forecast: Forecast, settings: Settings, most_staleness: int | None) -> Forecast:
    """The forecast by the simulator, its draws scaled with it; unchanged where no step ever starts."""
    simulated = simulated_run(calibration, forecast.layout, settings)
    if simulated is None or not forecast.tokens_per_s:
        return forecast
    ratio = simulated.trained_tokens_per_s / forecast.tokens_per_s
    drawn = forecast.drawn_tokens_per_s
    staleness = staleness_simulated(simulated)
    too_stale = most_staleness is not None and staleness.sample_p95 > most_staleness
    return replace(
        forecast,
        tokens_per_s=simulated.trained_tokens_per_s,
        drawn_tokens_per_s=None
        if drawn is None or too_stale
        else drawn * ratio * simulation_noise(simulated, drawn.size),
        staleness=staleness,
        pace=None if forecast.pace is None else timing_of_simulated(simulated, forecast.pace.regime),
        excluded="too_stale" if too_stale else None,
        preemption=preemption_simulated(simulated, calibration.system),
    )


def staleness_simulated(simulated: Simulated) -> StalenessForecast:
    """Staleness of a simulated run."""
    ages = simulated.staleness
    between = simulated.steps / simulated.published_versions if simulated.published_versions else 1.0
    return StalenessForecast(ages.tokens.mean, ages.samples.percentile(STALE_QUANTILE), ages.samples.max, between)


def simulation_noise(simulated: Simulated, draws: int) -> Reals:
    """What a simulation of so few steps leaves open: factors around 1, one per draw."""
    return drawn_factors(simulated.step_trained_tokens, simulated.step_periods_s, _SEED, draws)


def simulated_run(calibration: Calibration, layout: Layout, settings: Settings) -> Simulated | None:
    """A layout simulated with the best estimate; None where its limits never let a step start."""
    workload = calibration.system.workload
    batch = workload.samples_per_step
    steps = max(_FEWEST_STEPS, min(_STEPS, _MOST_SAMPLES // batch), min(_MORE_STEPS, _FEW_SAMPLES // batch))
    engines = layout.sampler_gpus // calibration.system.engine.gpus
    settings = replace(settings, engine_slowness=slowness_at(calibration.engine_slowness, engines))
    return _simulated(calibration.system, layout, steps, settings)


@lru_cache(maxsize=8)
def _simulated(system: System, layout: Layout, steps: int, settings: Settings) -> Simulated | None:
    """Cached: a replay and the forecasts both ask for today's layout, and higher limits often change nothing."""
    alike = _of_other_limits(replace(system, admission=_NO_LIMITS), layout, steps, settings)
    for admission, known in alike:
        if runs_like(known, admission, system, layout, steps):
            return known
    try:
        simulated = simulate(system, layout, steps=steps, seed=_SEED, settings=settings)
    except (ValueError, NeverTrains):
        return None
    alike.append((system.admission, simulated))
    return simulated


@lru_cache(maxsize=32)
def _of_other_limits(
    _system: System, _layout: Layout, _steps: int, _settings: Settings
) -> list[tuple[Admission, Simulated]]:
    """The simulations of a system under the limits that were asked for."""
    return []


def slow_engines(observed: Observed, curve: DecodeCurve) -> tuple[float, ...] | None:
    """Factor on the times of each engine, the slowest first; None where none is far slower than the median.

    Engines that are not slow are all alike. Each is busy for about as long, so that the mean of 1 / factor is the speed
    that the curve has: 1. Own derivation.
    """
    slowness = engine_slowness(observed.passes, curve)
    if slowness.size < LEAST_ENGINES_COMPARED:
        return None
    is_slow = slowness >= STRAGGLES_RATIO * np.median(slowness)
    if not is_slow.any():
        return None
    usual = float(np.median(slowness[~is_slow]))
    others = [usual] * (observed.engines - int(is_slow.sum()))
    factors = np.array([*sorted(slowness[is_slow].tolist(), reverse=True), *others])
    return tuple((factors * (1.0 / factors).mean()).tolist())


def slowness_at(slowness: tuple[float, ...] | None, engines: int) -> tuple[float, ...] | None:
    """The factors of a layout with N engines: the slow ones stay, and one more is like the last of the others."""
    if slowness is None:
        return None
    return (*slowness, *[slowness[-1]] * (engines - len(slowness)))[:engines]
