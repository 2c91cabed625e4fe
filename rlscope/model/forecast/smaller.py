"""Find the same rate on fewer GPUs: the side that does not set it gives GPUs back until it would fall.

The closed forms choose the layout, and the rates of both are compared draw by draw. The slower side, which sets the
rate, stays as it is, so both layouts share its errors. The other one keeps a margin as large as the model may err: with
one GPU less it would be as slow, and each swing of the load would cost throughput. Not covered: GPUs that both sides
could spare, and whether the state of the trainers fits into the memory of fewer GPUs, which a run does not show.
"""

import math
from bisect import bisect_left
from dataclasses import replace
from typing import Final, get_args

from rlscope.model.calibration import Calibration
from rlscope.model.causes import Cause
from rlscope.model.forecast.actions import DRAWS, Action, keeps_rate
from rlscope.model.forecast.change import with_engine_speed, with_trainer_speed
from rlscope.model.forecast.layouts import Forecast, below_ceiling, trainer_rate_bound, with_noise_of_work
from rlscope.model.forecast.predict import closed_rates, predict
from rlscope.model.forecast.price import UNTESTED_LOG
from rlscope.model.forecast.recommend import WORTHWHILE_RATIO, Grounds
from rlscope.model.observed import Observed
from rlscope.model.system import Granularity, Layout, Side, smaller_layouts

_MOST_TRIED: Final = 2
"""Smaller layouts that are predicted: each takes 0.02 to 0.5 s."""


def cheaper_action(
    calibration: Calibration, observed: Observed, today: Forecast, grounds: Grounds, granularity: Granularity
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
    tried = (_action(asked, observed, layout, today, grounds) for layout in smaller[:_MOST_TRIED])
    return next((action for action in tried if action is not None), None)


def _keeping(calibration: Calibration, granularity: Granularity, side: Side) -> tuple[Layout, ...]:
    """Return the layouts with fewer GPUs on a side that keep the rate by the closed forms, the smallest first."""
    smaller, own = smaller_layouts(calibration.layout, granularity, side), calibration.layout
    with_speed = with_engine_speed if side == "sampler_gpus" else with_trainer_speed
    # A side may be slower than predicted by as much as the model errs.
    slowed = [with_speed(each, math.exp(-UNTESTED_LOG)) for each in calibration.draws]
    now = closed_rates(calibration, calibration.draws, (own,))

    def keeps(layout: Layout) -> bool:
        return keeps_rate((closed_rates(calibration, slowed, (layout,)) / now - 1.0)[:, 0])

    return smaller[bisect_left(smaller, True, key=keeps) :]


def _action(
    calibration: Calibration, observed: Observed, layout: Layout, today: Forecast, grounds: Grounds
) -> Action | None:
    """Return a smaller layout as an action; None if it does not keep the rate, or spares or costs too much."""
    # Both layouts share the errors of the slower side, which stays as it is.
    before = calibration.layout
    now = predict(calibration, before, form_error=False, is_reference=True)
    smaller = predict(calibration, layout, form_error=False)
    if now.drawn_tokens_per_s is None or smaller.drawn_tokens_per_s is None:
        return None
    gains, price = smaller.gains_over(now), grounds.anchor.moved(smaller.price)
    spared_ratio = 1.0 - layout.gpus / before.gpus
    is_fresh = grounds.within_staleness_budget(price.staleness) and not price.exceeds_cap(grounds.most_staleness)
    is_costly = price.is_high(today.price) or not is_fresh or (price.staleness is not None and price.staleness.grows)
    if not keeps_rate(gains) or spared_ratio < WORTHWHILE_RATIO or is_costly:
        return None
    cause = Cause.SAMPLERS if layout.trainer_gpus < before.trainer_gpus else Cause.TRAINERS
    if cause == Cause.TRAINERS:
        gains = below_ceiling(gains, trainer_rate_bound(observed, gains.size), smaller, now)
        gains = with_noise_of_work(gains, observed)
    return Action(
        kind="cheaper",
        what="layout",
        cause=cause,
        before=before,
        after=layout,
        gains=gains,
        price_before=today.price,
        price=price,
        grade=today.grade,
    )
