"""The event simulator's word where the closed forms are known to be wrong.

A layout in which a cap binds, samples age out, a queue grows or engines run few requests is simulated with the best
estimate; its forecast and all its draws are moved by the ratio of the simulated rate to the closed form's. Today's
layout and the fastest rivals are looked at, no more: the others are slower than any correction brings up. Not covered:
how the correction itself varies over the draws.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rlscope.model.asynchronous import steady_states
from rlscope.model.blocks import ratio_of_sums
from rlscope.model.calibration import Calibration
from rlscope.model.forecast import STALE_QUANTILE, Forecast, Forecasts, StalenessForecast
from rlscope.model.layout_limits import Refused
from rlscope.model.pace import pace_of_simulated
from rlscope.model.simulate import NeverTrains, Settings, Simulated, simulate
from rlscope.model.staleness_forms import maximum
from rlscope.model.system import Layout, Reals

_RIVALS: Final = 6
"""Rivals that are simulated."""
_STEPS: Final = 60
"""Steps of a simulation: its rate is then known to about 1 % where a step's time varies by 10 %."""
_MOST_SAMPLES: Final = 300_000
"""Samples of a simulation; runs with large steps are simulated for fewer of them."""
_FEWEST_STEPS: Final = 12
_SEED: Final = 1
_TWO_SIGMA_RATIO: Final = 0.9545
"""Coverage of two standard deviations to either side."""


@dataclass(frozen=True, slots=True)
class Arbitrated:
    """Forecasts after the simulator has spoken, and how many layouts it was asked about."""

    forecasts: Forecasts
    simulated_layouts: int


def arbitrate(
    calibration: Calibration, forecasts: Forecasts, settings: Settings, most_staleness: int | None
) -> Arbitrated:
    """Correct today's forecast and the fastest rivals where the closed form is not to be trusted."""
    if calibration.synchronous:
        return Arbitrated(forecasts, 0)
    asked = [
        each
        for each in (forecasts.today, *forecasts.rivals[:_RIVALS])
        if each.state and is_doubtful(calibration, each.layout)
    ]
    # Today's layout is what the others are compared with, whatever its staleness: no cap leaves it out.
    caps = {each.layout: None if each is forecasts.today else most_staleness for each in asked}
    by_layout = {each.layout: corrected(calibration, each, settings, caps[each.layout]) for each in asked}
    others = sorted(
        (by_layout.get(each.layout, each) for each in forecasts.others),
        key=lambda each: (each.excluded is not None, -(each.tokens_per_s or 0.0)),
    )
    today = by_layout.get(forecasts.today.layout, forecasts.today)
    return Arbitrated(Forecasts(replace(today, excluded=forecasts.today.excluded), tuple(others)), len(asked))


def is_doubtful(calibration: Calibration, layout: Layout) -> bool:
    """Whether the layout's steady state has a caveat, is bound by the KV cache, or is staler than a cap allows."""
    state = steady_states(calibration.system, (layout,), calibration.cap_rule)[0]
    if isinstance(state, Refused):
        return False
    cap, terms = calibration.system.admission.max_staleness, state.staleness
    passes_cap = cap is not None and terms is not None and maximum(terms, calibration.system.workload.lengths) > cap
    kv_binds = state.running_limit < layout.running_per_engine
    return bool(state.caveats) or passes_cap or kv_binds


def corrected(
    calibration: Calibration, forecast: Forecast, settings: Settings, most_staleness: int | None
) -> Forecast:
    """The forecast by the simulator, its draws moved with it; as it was where no step of it ever starts."""
    simulated = simulated_run(calibration, forecast.layout, settings)
    if simulated is None or not forecast.tokens_per_s:
        return forecast
    ratio = simulated.trained_tokens_per_s / forecast.tokens_per_s
    drawn = forecast.drawn_tokens_per_s
    ages = simulated.staleness
    staleness = StalenessForecast(ages.tokens.mean, ages.samples.percentile(STALE_QUANTILE), ages.samples.max)
    too_stale = most_staleness is not None and staleness.sample_p95 > most_staleness
    return replace(
        forecast,
        tokens_per_s=simulated.trained_tokens_per_s,
        drawn_tokens_per_s=None if drawn is None or too_stale else drawn * ratio * _noise(simulated, drawn.size),
        staleness=staleness,
        pace=None if forecast.pace is None else pace_of_simulated(simulated, forecast.pace.regime),
        excluded="too_stale" if too_stale else None,
    )


def _noise(simulated: Simulated, draws: int) -> Reals:
    """What a simulation of so few steps leaves open: factors around 1, one per draw."""
    rng = np.random.default_rng(_SEED)
    rate = ratio_of_sums(simulated.step_trained_tokens, simulated.step_periods_s, rng, coverage_ratio=_TWO_SIGMA_RATIO)
    error_ratio = (rate.high - rate.low) / (4.0 * rate.value)
    return np.exp(error_ratio * rng.standard_normal(draws))


def simulated_run(calibration: Calibration, layout: Layout, settings: Settings) -> Simulated | None:
    """A layout simulated with the best estimate; None where its limits never let a step start."""
    workload = calibration.system.workload
    steps = max(_FEWEST_STEPS, min(_STEPS, _MOST_SAMPLES // workload.samples_per_step))
    try:
        return simulate(calibration.system, layout, steps=steps, seed=_SEED, settings=settings)
    except (ValueError, NeverTrains):
        return None
