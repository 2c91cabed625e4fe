"""Find the same rate on fewer GPUs: the side that does not set it gives GPUs back until it would fall.

The rates of both layouts are compared draw by draw, by the closed forms, and by the event simulator if these cannot be
trusted. The slower side, which sets the rate, stays as it is, so both layouts share its errors. The other one keeps a
margin as large as the model may err: with one GPU less it would be as slow, and each swing of the load would cost
throughput. Not covered: GPUs that both sides could spare, and whether the state of the trainers fits into the memory of
fewer GPUs, which a run does not show.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, get_args

from rlscope.model.arrays import Reals
from rlscope.model.calibration import Calibration
from rlscope.model.causes import Cause
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.actions import DRAWS, Action, keeps_rate
from rlscope.model.forecast.aging import with_staleness_interval
from rlscope.model.forecast.change import with_engine_speed, with_trainer_speed
from rlscope.model.forecast.layouts import Forecast, closed_price, rates_of_each
from rlscope.model.forecast.price import Price
from rlscope.model.forecast.recommend import UNTESTED_LOG, WORTHWHILE_RATIO, Grounds
from rlscope.model.forecast.simulated import is_doubtful, priced, simulated_run, simulation_noise
from rlscope.model.simulate import Settings, Simulated
from rlscope.model.system import Granularity, Layout, Side, System, smaller_layouts

_MOST_TRIED: Final = 2
"""Smaller layouts that are simulated: each takes 0.1 to 0.5 s."""


def cheaper_action(
    calibration: Calibration, today: Forecast, grounds: Grounds, granularity: Granularity, settings: Settings
) -> Action | None:
    """Return the smallest layout that keeps the rate, as an action; None if no GPU can surely be spared.

    Nothing is spared in a synchronous run, whose sides wait for each other by design, if the model could not be checked
    on the run, or if response lengths drift, since the other side may soon be the slower one.
    """
    if calibration.synchronous or not grounds.long_enough or grounds.drift_log:
        return None
    asked = replace(calibration, draws=calibration.draws[:DRAWS], level_log_sd=0.0)
    each_side = [_keeping(asked, granularity, side) for side in get_args(Side)]
    smaller = min(filter(None, each_side), key=lambda layouts: layouts[0].gpus, default=())
    tried = (_action(asked, layout, today, grounds, settings) for layout in smaller[:_MOST_TRIED])
    return next((action for action in tried if action is not None), None)


def _keeping(calibration: Calibration, granularity: Granularity, side: Side) -> tuple[Layout, ...]:
    """Return the layouts with fewer GPUs on a side that keep the rate by the closed forms, the smallest first."""
    smaller = smaller_layouts(calibration.layout, granularity, side)
    slowed = [_slowed(each, side) for each in calibration.draws]
    return smaller[bisect_left(smaller, True, key=lambda each: keeps_rate(_gains(calibration, each, slowed))) :]


def _action(
    calibration: Calibration, layout: Layout, today: Forecast, grounds: Grounds, settings: Settings
) -> Action | None:
    """Return a smaller layout as an action; None if it does not keep the rate, or spares or costs too much."""
    before, gains, simulated = calibration.layout, _gains(calibration, layout), None
    if is_doubtful(calibration, before) or is_doubtful(calibration, layout):
        simulated, now = (simulated_run(calibration, each, settings) for each in (layout, before))
        if simulated is None or now is None:
            return None
        gains = _corrected(calibration, layout, gains, simulated, now)
    price = closed_price(calibration, layout) if simulated is None else priced(calibration, layout, simulated)
    price = with_staleness_interval(grounds.anchor.moved(price), calibration, layout)
    spared_ratio = 1.0 - layout.gpus / before.gpus
    is_costly = price.is_high(today.price) or not _is_fresh_enough(price, grounds)
    if not keeps_rate(gains) or spared_ratio < WORTHWHILE_RATIO or is_costly:
        return None
    return Action(
        kind="cheaper",
        what="layout",
        cause=Cause.SAMPLERS if layout.trainer_gpus < before.trainer_gpus else Cause.TRAINERS,
        before=before,
        after=layout,
        gain_ratio=Estimate.of(gains),
        worthwhile_probability=float((gains >= WORTHWHILE_RATIO).mean()),
        gains=gains,
        price_before=today.price,
        price=price,
        grade=today.grade,
    )


def _slowed(system: System, side: Side) -> System:
    """Slow a side down by as much as it may be slower than predicted."""
    speed = math.exp(-UNTESTED_LOG)
    if side == "sampler_gpus":
        return with_engine_speed(system, speed)
    return replace(system, trainer=with_trainer_speed(system.trainer, speed))


def _gains(calibration: Calibration, layout: Layout, draws: Sequence[System] | None = None) -> Reals:
    """Gain over the current rate in every draw, by the closed forms. draws: of the layout, if they differ."""
    now = rates_of_each(calibration, calibration.draws, (calibration.layout,))[:, 0]
    return rates_of_each(calibration, draws or calibration.draws, (layout,))[:, 0] / now - 1.0


def _corrected(calibration: Calibration, layout: Layout, gains: Reals, simulated: Simulated, now: Simulated) -> Reals:
    """Scale the gains by what the simulator and the closed forms say of both layouts, by the best estimate."""
    closed = rates_of_each(calibration, (calibration.system,), (calibration.layout, layout))[0]
    ratio = simulated.trained_tokens_per_s / closed[1] / (now.trained_tokens_per_s / closed[0])
    return (1.0 + gains) * ratio * simulation_noise(simulated, gains.size) - 1.0


def _is_fresh_enough(price: Price, grounds: Grounds) -> bool:
    """Whether staleness stays within what a change may cost and what is allowed."""
    most, staleness = grounds.most_staleness, price.staleness
    is_allowed = most is None or (staleness is not None and staleness.sample_p95 <= most)
    grows = staleness is not None and staleness.horizon_steps is not None
    return is_allowed and not grows and grounds.within_staleness_budget(staleness)
