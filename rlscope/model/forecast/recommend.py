"""The recommended layout: how much faster it is, how sure that is, and when to keep the current one.

Draws are compared pairwise: within a draw both layouts run the same system, so shared errors cancel. A change is
recommended when it gains at least 5% and at least 90% of the draws agree; else the run keeps its layout, and the
largest uncertainty is named. A recommended change must also hold when the decode curve takes another form that fits
about as well, and when training scales as the ends of its draws. Not covered: the cost of the change itself, learning
per token, which staleness lowers, and parameters of another form away from its most probable ones.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from rlscope.model.arrays import Reals
from rlscope.model.calibration import Calibration, engine_of
from rlscope.model.decode.fit import forms_as_good
from rlscope.model.decode.measurements import Grade, prefill_points
from rlscope.model.decode.prior import HardwarePrior
from rlscope.model.forecast.layouts import Forecast, Forecasts, Spread, rates_of
from rlscope.model.numerics.changepoints import Drift
from rlscope.model.observed import Observed
from rlscope.model.system import Engine, Layout, System, Trainer
from rlscope.model.training.step_time import at_pace_of, trainer_step

Reason = Literal[
    "worthwhile",
    "too_short",
    "best_already",
    "small_gain",
    "unsure",
    "updates_bind",
    "environment_binds",
    "no_other_layout",
    "lengths_drift",
    "forms_disagree",
]
"""worthwhile: change. too_short: the stretch has too few steps to hold the model to. best_already: no other layout
is faster. small_gain: none is faster by WORTHWHILE_RATIO. unsure: one may be, or may be slower than today's.
updates_bind, environment_binds: the run does not wait for GPUs. no_other_layout: granularity, memory and
staleness leave none. lengths_drift: responses grow or shrink by more than the interval of the gain covers.
forms_disagree: another form of the model that fits as well predicts that today's layout is faster. An `assumed`
forecast of a run that was measured is unsure, however large its gain."""
UncertaintySource = Literal["decode_curve", "trainer_rate", "trainer_scaling"]
"""What the spread of the gain comes from."""
Contradiction = Literal["decode_form", "training_form"]
"""decode_form: another form of the decode curve predicts that today's layout is faster. training_form: another scaling
of training does."""

WORTHWHILE_RATIO: Final = 0.05
"""Below 5% the restart and the next change of lengths cost more than the gain."""
_DRAWS_OF_A_SOURCE: Final = 60
"""Enough to rank three spreads."""
_EQUAL_RATIO: Final = 0.01
"""Layouts within a hundredth of the fastest are as fast: the rest of what is known of them decides."""
_GRADES: Final[tuple[Grade, ...]] = ("measured", "interpolated", "extrapolated", "assumed")
SURE_RATIO: Final = 0.90
"""Share of the draws in which the change must be for the better."""
_PERFECT: Final = 1.0
"""Exponent with which every trainer GPU trains as many tokens as today."""
_ENDS: Final = (0.05, 0.95)
"""Quantiles of the draws, by how fast they train in the layout."""


@dataclass(frozen=True, slots=True)
class GainUncertainty:
    """How much one unknown part of the system contributes to the spread of the gain."""

    source: UncertaintySource
    spread_ratio: float
    """Half of the width of the 90% interval of the gain when this alone is unknown."""


@dataclass(frozen=True, slots=True, eq=False)
class Recommendation:
    """What to do, and why."""

    reason: Reason
    best: Forecast
    """The layout to change to; where the run stays, the best of the others, or today's where there is none."""
    gain_ratio: Spread
    """Trained tokens per second of `best` over today's, less 1."""
    better_probability: float
    """Share of the draws in which `best` is faster than today's layout."""
    best_probability: float
    """Share of the draws in which it is the fastest of all that were drawn."""
    regret_ratio: float
    """Gain forgone by staying, against the fastest layout of each draw, mean over draws."""
    uncertainties: tuple[GainUncertainty, ...]
    """Largest first."""

    @property
    def changes(self) -> bool:
        """Whether to change the layout."""
        return self.reason == "worthwhile"


def recommend(
    calibration: Calibration, forecasts: Forecasts, *, long_enough: bool, lengths: Drift | None = None
) -> Recommendation:
    """Choose among the forecasts; long_enough: whether the stretch shows how well the model predicts it.

    lengths: how response lengths drift over the stretch; None: not known to.
    """
    today, rivals = forecasts.today, forecasts.rivals
    best = _best_of(rivals) if rivals else today
    gains = _gains(best, today)
    fastest = _fastest(forecasts)
    gain_ratio = Spread.of(gains)
    reason = _reason(today, rivals, gain_ratio, float((gains > 0.0).mean()), long_enough)
    if reason == "worthwhile":
        reason = _objection(calibration, best, gain_ratio, lengths) or reason
    return Recommendation(
        reason=reason,
        best=best,
        gain_ratio=gain_ratio,
        better_probability=float((gains > 0.0).mean()),
        best_probability=float((_drawn(best) >= fastest).mean()),
        regret_ratio=float((fastest / _drawn(today)).mean() - 1.0),
        uncertainties=_uncertainties(calibration, best.layout) if best is not today else (),
    )


def fastest_probabilities(forecasts: Forecasts) -> Mapping[Layout, float]:
    """Share of the draws in which each layout that was drawn is the fastest of all, 0..1."""
    fastest = _fastest(forecasts)
    return {each.layout: float((_drawn(each) >= fastest).mean()) for each in (forecasts.today, *forecasts.rivals)}


def _fastest(forecasts: Forecasts) -> Reals:
    """The rate of the fastest layout of each draw."""
    return np.stack([_drawn(each) for each in (forecasts.today, *forecasts.rivals)]).max(axis=0)


def _best_of(rivals: Sequence[Forecast]) -> Forecast:
    """The fastest by its median; of those that are as fast, the surest, then the least stale, then the smallest."""
    most = max(map(_median_rate, rivals))
    equals = [each for each in rivals if _median_rate(each) >= (1.0 - _EQUAL_RATIO) * most]
    return min(equals, key=_trouble)


def _trouble(forecast: Forecast) -> tuple[int, int, int]:
    staleness = forecast.staleness.sample_p95 if forecast.staleness else sys.maxsize
    grade = _GRADES.index(forecast.grade) if forecast.grade else len(_GRADES)
    return (grade, staleness, forecast.layout.running_per_engine)


def _reason(
    today: Forecast, rivals: Sequence[Forecast], gain_ratio: Spread, better_probability: float, long_enough: bool
) -> Reason:
    if not rivals:
        return "no_other_layout"
    regime = today.state.regime if today.state else None
    if regime == "weight_updates":
        return "updates_bind"
    if regime == "environment":
        return "environment_binds"
    if gain_ratio.median >= WORTHWHILE_RATIO and better_probability >= SURE_RATIO:
        return "worthwhile" if long_enough else "too_short"
    if gain_ratio.median <= 0.0 and gain_ratio.high < WORTHWHILE_RATIO:
        return "best_already"
    return "small_gain" if gain_ratio.high < WORTHWHILE_RATIO else "unsure"


def _objection(calibration: Calibration, best: Forecast, gain_ratio: Spread, lengths: Drift | None) -> Reason | None:
    """Why a gain that is sure by the draws is not, all the same: they hold lengths and the kind of the curve fixed."""
    if lengths is not None and lengths.drifts and not _covers(gain_ratio, lengths):
        return "lengths_drift"
    return "unsure" if calibration.curve.visited is not None and best.grade == "assumed" else None


def _covers(gain_ratio: Spread, lengths: Drift) -> bool:
    """Whether the gain's interval is as wide as a gain may move by the next stretch.

    Its lengths are then longer by the whole drift of this one, and a gain moves at most in proportion to them: own
    reasoning, for passes and steps whose time grows at most in proportion to the tokens.
    """
    half_width = (math.log1p(gain_ratio.high) - math.log1p(gain_ratio.low)) / 2.0
    return abs(math.log1p(lengths.change_ratio)) <= half_width


def _uncertainties(calibration: Calibration, layout: Layout) -> tuple[GainUncertainty, ...]:
    """The gain's spread with one part of the system drawn and the others at their best estimate."""
    best, draws = calibration.system, calibration.draws[:_DRAWS_OF_A_SOURCE]
    rates = [at_pace_of(best.trainer, draw.trainer, best.workload) for draw in draws]
    # An exponent goes with the overhead of its draw.
    scalings = [at_pace_of(draw.trainer, best.trainer, best.workload) for draw in draws]
    parts: dict[UncertaintySource, list[System]] = {
        "decode_curve": [replace(best, engine=draw.engine) for draw in draws],
        "trainer_rate": [replace(best, trainer=trainer) for trainer in rates],
        "trainer_scaling": [replace(best, trainer=trainer) for trainer in scalings],
    }
    found: list[GainUncertainty] = []
    for source, systems in parts.items():
        spread = Spread.of(_drawn_gains(calibration, layout, systems))
        found.append(GainUncertainty(source, (spread.high - spread.low) / 2.0))
    return tuple(sorted(found, key=lambda each: -each.spread_ratio))


def _drawn_gains(calibration: Calibration, other: Layout, systems: Sequence[System]) -> Reals:
    rates = np.array([rates_of(calibration, system, (calibration.layout, other)) for system in systems])
    return rates[:, 1] / rates[:, 0] - 1.0


def _gains(best: Forecast, today: Forecast) -> Reals:
    return _drawn(best) / _drawn(today) - 1.0


def _median_rate(forecast: Forecast) -> float:
    return float(np.median(_drawn(forecast)))


def _drawn(forecast: Forecast) -> Reals:
    if forecast.drawn_tokens_per_s is None:
        raise ValueError(f"{forecast.layout} was not drawn")
    return forecast.drawn_tokens_per_s


def contradiction(
    calibration: Calibration, observed: Observed, prior: HardwarePrior | None, advice: Recommendation
) -> Contradiction | None:
    """The part of the model of which another form says that the advised layout is no faster than today's.

    observed: the stretch that was calibrated on. None where every form agrees.
    """
    layout, own = advice.best.layout, calibration.system.engine
    moved = _moved_ratio(calibration, layout, advice.gain_ratio.median)
    curves = forms_as_good(calibration.curve, prior, prefill_points(observed.passes))
    engines = [engine_of(observed, curve) for curve in curves]
    trainers = _trainers(calibration, layout)
    tried: Mapping[Contradiction, tuple[Sequence[Engine], Sequence[Trainer]]] = {
        "training_form": ([own], trainers),
        "decode_form": (engines, [calibration.system.trainer, *trainers]),
    }
    for part, (of_engines, of_trainers) in tried.items():
        gains = [_gain(calibration, layout, engine, each) for engine in of_engines for each in of_trainers]
        if any(gain * moved <= 1.0 for gain in gains):
            return part
    return None


def _trainers(calibration: Calibration, layout: Layout) -> list[Trainer]:
    """As fast as the best estimate today; each exponent with the overhead of its draw, which it goes with."""
    system = calibration.system
    workload, update = system.workload, system.update
    drawn = [at_pace_of(draw.trainer, system.trainer, workload) for draw in calibration.draws]
    drawn.sort(key=lambda each: float(trainer_step(each, workload, update, layout.trainer_gpus).compute_s))
    ends = [drawn[round(end * (len(drawn) - 1))] for end in _ENDS]
    seen = calibration.training.scaling_seen_at
    return ends if seen else [replace(system.trainer, scaling_exponent=_PERFECT), *ends]


def _moved_ratio(calibration: Calibration, layout: Layout, gain_ratio: float) -> float:
    """The forecast gain of the layout over that of the closed form with the best estimate."""
    system = calibration.system
    plain = _gain(calibration, layout, system.engine, system.trainer)
    return (1.0 + gain_ratio) / plain if plain else 1.0


def _gain(calibration: Calibration, layout: Layout, engine: Engine, trainer: Trainer) -> float:
    """The layout's rate over today's; 0 where either cannot run."""
    system = replace(calibration.system, engine=engine, trainer=trainer)
    today, other = rates_of(calibration, system, (calibration.layout, layout)).tolist()
    return other / today if today else 0.0
