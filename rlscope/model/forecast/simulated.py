"""Correct forecasts with the event simulator if the closed forms are known to be wrong.

Layouts in which a cap binds, samples age out, a queue grows or engines run few requests are simulated with the best
estimate; the forecast and all its draws are scaled by the simulated rate over the closed form's. The current layout and
the fastest of the others are simulated. Other layouts with warnings are scaled like their neighbors, so that a
simulated rate is never compared with an uncorrected one. Not covered: variation of the correction between draws.
"""

import math
from collections.abc import Mapping, Set
from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np

from rlscope.model.analytic.limits import Refused
from rlscope.model.analytic.staleness import maximum
from rlscope.model.analytic.steady_state import SteadyState, steady_states
from rlscope.model.arrays import Reals
from rlscope.model.calibration import Calibration
from rlscope.model.engine_speeds import slowness_at
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.aging import held
from rlscope.model.forecast.layouts import (
    Forecast,
    Forecasts,
    preemption_simulated,
    timing_of_simulated,
)
from rlscope.model.forecast.price import Price, price_simulated, staleness_simulated, with_intervals
from rlscope.model.numerics.bootstrap import drawn_factors
from rlscope.model.numerics.stratified import normals
from rlscope.model.simulate import NeverTrains, Settings, Simulated, runs_like, simulate
from rlscope.model.system import Admission, Layout, System
from rlscope.model.warnings import ModelWarning

_MOST_SIMULATED: Final = 10
"""Maximum number of simulated layouts: each takes 0.1 to 0.5 s."""
_LEADERS: Final = 4
"""Number of fastest rivals that are simulated if they need it, within the maximum above."""
_NEIGHBOUR_ERROR: Final = 0.07
"""Log error of a correction taken from neighbors, besides the simulator's own error: together they give the 10% error
of closed forms that have a warning."""
_STEPS: Final = 60
"""Steps of a simulation: the rate is then known to about 1% if step times vary by 10%."""
_MORE_STEPS: Final = 120
"""Steps of a simulation whose steps are so small that doubling them is cheap: rates that vary more are then known as
well."""
_FEW_SAMPLES: Final = 12_000
"""Maximum samples of a simulation that is cheap enough for _MORE_STEPS."""
_MOST_SAMPLES: Final = 300_000
"""Maximum samples of a simulation; runs with large steps are simulated for fewer steps."""
_FEWEST_STEPS: Final = 12
_SEED: Final = 1
_NO_LIMITS: Final = Admission()


def correct_by_simulation(
    calibration: Calibration, forecasts: Forecasts, settings: Settings, most_staleness: int | None
) -> Forecasts:
    """Correct the forecasts that the closed form cannot be trusted with.

    The current layout is simulated first, then the fastest layout not yet simulated, until the leaders are all
    simulated or the maximum is reached. Doubtful layouts that were not simulated are scaled like their neighbors.
    """
    if calibration.synchronous:
        return forecasts
    today, rivals = forecasts.today, {each.layout: each for each in forecasts.rivals}
    doubtful = {layout for layout in (today.layout, *rivals) if is_doubtful(calibration, layout)}
    simulated: dict[Layout, Forecast] = {}
    if today.state and today.layout in doubtful:
        # All others are compared with this layout, so no staleness cap excludes it.
        simulated[today.layout] = corrected(calibration, today, settings, None)
    while len(simulated) < _MOST_SIMULATED:
        leaders = _leaders(_moved(rivals, simulated, doubtful, today))
        asked = next((each.layout for each in leaders if each.layout in doubtful - simulated.keys()), None)
        if asked is None:
            break
        simulated[asked] = corrected(calibration, rivals[asked], settings, most_staleness, holds=True)
    moved = _moved(rivals, simulated, doubtful, today)
    moved |= {each.layout: replace(each, is_rough=False) for each in _leaders(moved)}
    left = [each if each.layout in rivals else _marked(calibration, each) for each in forecasts.others]
    others = sorted((moved.get(each.layout, each) for each in left), key=lambda each: each.rank)
    now = replace(simulated.get(today.layout, today), excluded=today.excluded)
    return Forecasts(now, tuple(others), len(simulated))


def _leaders(moved: Mapping[Layout, Forecast]) -> list[Forecast]:
    usable = [each for each in moved.values() if each.excluded is None]
    return sorted(usable, key=lambda each: each.rank)[:_LEADERS]


def _marked(calibration: Calibration, forecast: Forecast) -> Forecast:
    """Mark a layout that is too slow to be simulated if the closed forms cannot be trusted with it."""
    state = None if forecast.excluded else forecast.state
    return replace(forecast, is_rough=state is not None and _has_doubts(calibration, state, forecast.layout))


def _moved(
    rivals: Mapping[Layout, Forecast], simulated: Mapping[Layout, Forecast], doubtful: Set[Layout], today: Forecast
) -> dict[Layout, Forecast]:
    """Return the rivals: simulated ones unchanged, other doubtful ones scaled like their neighbors.

    The log of the correction is interpolated over trainer GPUs, among layouts with the same limit on running requests.
    If there are none, it is interpolated over limits among layouts of the same split, else over all layouts. It is
    constant beyond the outermost ones.
    """
    before = {**rivals, today.layout: today}
    log_ratios = {layout: _log_ratio(each, before[layout]) for layout, each in simulated.items()}
    spans = {
        layout: each.staleness.steps_per_version for layout, each in simulated.items() if each.staleness is not None
    }
    prices = {layout: each.price for layout, each in simulated.items()}
    moved: dict[Layout, Forecast] = {}
    for layout, each in rivals.items():
        if layout in simulated or layout not in doubtful or not log_ratios:
            moved[layout] = simulated.get(layout, each)
            continue
        factor = float(np.exp(_between_neighbours(layout, log_ratios)))
        scaled = _scaled(each, factor, _between_neighbours(layout, spans) if spans else 1.0)
        price = _price_between(layout, scaled.price, prices)
        moved[layout] = replace(scaled, price=price, is_rough=True)
    return moved


def _between_neighbours(layout: Layout, known: Mapping[Layout, float]) -> float:
    """Interpolate a quantity of other layouts as `_moved` describes."""
    alike = [other for other in known if other.max_running == layout.max_running]
    split = [other for other in known if other.trainer_gpus == layout.trainer_gpus]
    if split and not alike:
        about = sorted(split, key=lambda other: other.max_running)
        limits = np.log([other.max_running for other in about])
        at = np.interp(math.log(layout.max_running), limits, [known[other] for other in about])
    else:
        about = sorted(alike or known, key=lambda other: other.trainer_gpus)
        gpus = [other.trainer_gpus for other in about]
        at = np.interp(layout.trainer_gpus, gpus, [known[other] for other in about])
    return float(at)


def _price_between(layout: Layout, own: Price, known: Mapping[Layout, Price]) -> Price:
    """Interpolate what is dropped and trained of other layouts as `_moved` describes; staleness stays its own."""
    between: dict[str, Estimate] = {}
    for name in ("dropped_ratio", "mean_trained_tokens", "longest_trained_ratio"):
        estimates = {other: getattr(price, name) for other, price in known.items() if getattr(price, name) is not None}
        if estimates:
            ends = (dict(zip(estimates, each, strict=True)) for each in zip(*estimates.values(), strict=True))
            between[name] = Estimate(*(_between_neighbours(layout, each) for each in ends))
    return replace(own, **between)


def _log_ratio(after: Forecast, before: Forecast) -> float:
    return float(np.log((after.tokens_per_s or 1.0) / (before.tokens_per_s or 1.0)))


def _scaled(forecast: Forecast, factor: float, steps_per_version: float) -> Forecast:
    """Scale a forecast without simulating it, and widen it by the differences between neighbors.

    steps_per_version: interpolated between neighbors, since the closed form does not predict it.
    """
    drawn, rate = forecast.drawn_tokens_per_s, forecast.tokens_per_s
    if drawn is None or rate is None:
        return forecast
    rng = np.random.default_rng([_SEED, forecast.layout.trainer_gpus, forecast.layout.max_running])
    errors = np.exp(_NEIGHBOUR_ERROR * normals(rng, drawn.size))
    timing = forecast.timing and replace(forecast.timing, step_s=forecast.timing.step_s / factor)
    aged = forecast.staleness and replace(forecast.staleness, steps_per_version=steps_per_version)
    price, drawn = replace(forecast.price, staleness=aged), drawn * factor * errors
    return replace(forecast, tokens_per_s=rate * factor, drawn_tokens_per_s=drawn, timing=timing, price=price)


def is_doubtful(calibration: Calibration, layout: Layout) -> bool:
    """Whether a layout's steady state has a warning, is bound by the KV cache, or is staler than a cap allows.

    With slow engines every layout is doubtful, since their share of the engines changes with the split.
    """
    state = steady_states(calibration.system, (layout,))[0]
    return not isinstance(state, Refused) and _has_doubts(calibration, state, layout)


def _has_doubts(calibration: Calibration, state: SteadyState, layout: Layout) -> bool:
    if calibration.engine_slowness is not None:
        return True
    workload, cap, terms = calibration.system.workload, calibration.system.admission.max_staleness, state.staleness
    passes_cap = (
        cap is not None and terms is not None and maximum(terms, workload.lengths) > cap + workload.prefetched_batches
    )
    kv_binds = state.running_limit < layout.max_running
    return bool(state.warnings) or passes_cap or kv_binds


def corrected(
    calibration: Calibration,
    forecast: Forecast,
    settings: Settings,
    most_staleness: int | None,
    *,
    holds: bool = False,
) -> Forecast:
    """Replace the forecast by the simulator's and scale its draws; return it unchanged if no step ever starts.

    holds: whether a queue that would grow without bound gets a limit on samples in flight.
    """
    layout = forecast.layout
    asked, simulated = held_run(calibration, layout, settings, holds=holds)
    if simulated is None or not forecast.tokens_per_s:
        return forecast
    ratio = simulated.trained_tokens_per_s / forecast.tokens_per_s
    drawn, price = forecast.drawn_tokens_per_s, priced(asked, layout, simulated)
    stale = price.staleness is not None and most_staleness is not None and price.staleness.sample_p95 > most_staleness
    return replace(
        forecast,
        tokens_per_s=simulated.trained_tokens_per_s,
        drawn_tokens_per_s=None if drawn is None or stale else drawn * ratio * simulation_noise(simulated, drawn.size),
        price=price,
        timing=None if forecast.timing is None else timing_of_simulated(simulated, forecast.timing.regime),
        excluded="too_stale" if stale else None,
        preemption=preemption_simulated(simulated, calibration.system),
        in_flight_limit=None if asked is calibration else asked.system.admission.max_in_flight_samples,
    )


def held_run(
    calibration: Calibration, layout: Layout, settings: Settings, *, holds: bool = True
) -> tuple[Calibration, Simulated | None]:
    """Simulate a layout, with samples in flight limited if its queue would otherwise grow without bound.

    The closed forms mostly know that it would, so that one simulation is enough.
    """
    admission, state = calibration.system.admission, steady_states(calibration.system, (layout,))[0]
    grows = not isinstance(state, Refused) and ModelWarning.QUEUE_GROWS in state.warnings
    if not holds or not grows:
        simulated = simulated_run(calibration, layout, settings)
        grows = simulated is not None and staleness_simulated(simulated, admission).horizon_steps is not None
        if not holds or not grows:
            return calibration, simulated
    limited = held(calibration, layout)
    return limited, simulated_run(limited, layout, settings)


def priced(calibration: Calibration, layout: Layout, simulated: Simulated) -> Price:
    """Return the price of a simulated layout with its intervals."""
    price = price_simulated(simulated, calibration.system.admission)
    return with_intervals(price, calibration.system, calibration.draws, layout, simulated)


def simulation_noise(simulated: Simulated, draws: int) -> Reals:
    """Sampling error of a simulation with this number of steps: factors around 1, one per draw."""
    return drawn_factors(simulated.step_trained_tokens, simulated.step_periods_s, _SEED, draws)


def simulated_run(calibration: Calibration, layout: Layout, settings: Settings) -> Simulated | None:
    """Simulate a layout with the best estimate; None if its limits never let a step start."""
    steps = steps_to_simulate(calibration.system.workload.samples_per_step)
    engines = layout.sampler_gpus // calibration.system.engine.gpus
    settings = replace(settings, engine_slowness=slowness_at(calibration.engine_slowness, engines))
    return _simulated(calibration.system, layout, steps, settings)


def steps_to_simulate(samples_per_step: int) -> int:
    """Return the steps of a simulation, which are fewer if they have many samples."""
    most, more = _MOST_SAMPLES // samples_per_step, _FEW_SAMPLES // samples_per_step
    return max(_FEWEST_STEPS, min(_STEPS, most), min(_MORE_STEPS, more))


@lru_cache(maxsize=8)
def _simulated(system: System, layout: Layout, steps: int, settings: Settings) -> Simulated | None:
    """Simulate and cache: both replay and forecasts need the current layout, and higher limits often change nothing."""
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
    """Cached simulations of a system under various limits."""
    return []
