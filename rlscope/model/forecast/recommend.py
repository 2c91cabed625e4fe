"""The recommended layout: the fastest one that the evidence carries, how much faster it is, and how sure that is.

Draws are compared pairwise: within a draw both layouts run the same system, so shared errors cancel. A layout is sure
when at least 90% of the draws gain 5% or more with it, whatever the lengths drift by. Of the sure ones the fastest is
recommended: a faster one that is unsure hides none of them. Without a cap on staleness a layout may not be much staler
than the run is today; a faster one that is staler is named beside it. Not covered: the cost of the change itself, and
learning per token, which staleness lowers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np

from rlscope.model.arrays import Reals
from rlscope.model.calibration import Calibration
from rlscope.model.decode.measurements import Grade
from rlscope.model.forecast.layouts import Forecast, Forecasts, Spread, StalenessForecast, rates_of_each
from rlscope.model.numerics.changepoints import Drift
from rlscope.model.system import Layout, System
from rlscope.model.training.step_time import at_pace_of

Advice = Literal["change", "probe", "keep", "unknown"]
"""change: to a layout that is sure to be faster. probe: try one that may well be. keep: none is faster by 5%.
unknown: the model cannot speak of other layouts."""
Reason = Literal[
    "worthwhile",
    "unsure",
    "lengths_drift",
    "best_already",
    "small_gain",
    "no_other_layout",
    "too_short",
    "not_replayed",
]
"""worthwhile: change. unsure: another layout is likely faster, and less than SURE_RATIO of the draws agree.
lengths_drift: they would agree if responses did not grow or shrink. best_already: no other layout is faster.
small_gain: none is faster by WORTHWHILE_RATIO. no_other_layout: granularity, memory and staleness leave none.
too_short: another layout is likely faster, by less than the model may err where the stretch is too short to test it.
not_replayed: the model does not reproduce the run that it was fitted to."""
UncertaintySource = Literal["decode_curve", "trainer_rate", "trainer_scaling"]
"""What the spread of the gain comes from."""

ADVICE: Final[Mapping[Reason, Advice]] = {
    "worthwhile": "change",
    "unsure": "probe",
    "lengths_drift": "probe",
    "best_already": "keep",
    "small_gain": "keep",
    "no_other_layout": "keep",
    "too_short": "probe",
    "not_replayed": "unknown",
}
WORTHWHILE_RATIO: Final = 0.05
"""Below 5% the restart and the next change of lengths cost more than the gain."""
SURE_RATIO: Final = 0.90
"""Share of the draws that must gain WORTHWHILE_RATIO or more."""
STALER_RATIO: Final = 1.5
"""95th percentile of staleness over today's that a run without a cap is not asked to exceed."""
FEW_VERSIONS: Final = 4
"""So stale a run may become whatever it is today: off-policy corrections hold that far."""
_DRAWS_OF_A_SOURCE: Final = 60
"""Enough to rank three spreads."""
UNTESTED_LOG: Final = math.log(1.15)
"""90% of the predictions of other layouts are within 15% (benchmarks/prediction_error.txt): where a run is too short to
see how well it is predicted, a gain must exceed what a change is worth by so much."""
EQUAL_RATIO: Final = 0.01
"""Layouts within a hundredth of the fastest are as fast: the rest of what is known of them decides."""
LIMIT_RATIO: Final = 0.02
"""The same for a layout that leaves the limit on running requests as it is: to move that as well must bring more."""
_GRADES: Final[Mapping[Grade, int]] = {"measured": 0, "interpolated": 0, "extrapolated": 1, "assumed": 2}
"""How far from the evidence, as a reason to choose another layout: within the batches that ran, none is."""


@dataclass(frozen=True, slots=True)
class GainUncertainty:
    """How much one unknown part of the system contributes to the spread of the gain."""

    source: UncertaintySource
    spread_ratio: float
    """Half of the width of the 90% interval of the gain when this alone is unknown."""


@dataclass(frozen=True, slots=True)
class Grounds:
    """What a recommendation rests on besides the forecasts."""

    long_enough: bool
    """Whether the stretch has enough steps to show how well the model predicts it."""
    replayed: bool = True
    """Whether the model reproduces the run that it was fitted to."""
    lengths: Drift | None = None
    """How response lengths drift over the stretch; None: not known to."""
    own_aged_p95: float | None = None
    """Of today's samples, measured, in steps that could have published; None where nothing was measured."""
    capped: bool = False
    """Whether a staleness cap decides how stale a layout may be. One that publications wait for does not: its versions
    last for as many steps as they have to."""
    anchor_ratio: float = 1.0
    """Today's rate as measured over the modelled one; the forecasts are multiplied by it."""
    lost_gpu_s: Mapping[str, float] = field(default_factory=dict[str, float])
    """GPU-seconds of the stretch lost to each cause, measured."""

    @property
    def drift_log(self) -> float:
        """Log of what a gain may move by until the next stretch.

        Its lengths are then longer by the whole drift of this one, and a gain moves at most in proportion to them: own
        reasoning, for passes and steps whose time grows at most in proportion to the tokens.
        """
        drifts = self.lengths is not None and self.lengths.drifts
        return abs(math.log1p(self.lengths.change_ratio)) if drifts and self.lengths else 0.0

    @property
    def untested_log(self) -> float:
        """Log of what a gain may be off by where the stretch is too short to hold a part of it out."""
        return 0.0 if self.long_enough else UNTESTED_LOG

    def affords(self, staleness: StalenessForecast | None) -> bool:
        """Whether samples are fresh enough to be recommended; None: they grow staler for ever."""
        if self.capped or staleness is None:
            return self.capped
        own = self.own_aged_p95
        return own is None or staleness.aged_p95 <= max(STALER_RATIO * own, FEW_VERSIONS)


@dataclass(frozen=True, slots=True, eq=False)
class Recommendation:
    """What to do, and why."""

    reason: Reason
    best: Forecast
    """The layout to change to, or to try; where the run stays, the best of the others, or today's without one."""
    gain_ratio: Spread
    """Trained tokens per second of `best` over today's, less 1."""
    better_probability: float
    """Share of the draws in which `best` is faster than today's layout."""
    worthwhile_probability: float
    """Share of the draws in which it gains WORTHWHILE_RATIO or more."""
    best_probability: float
    """Share of the draws in which it is the fastest of all that were drawn."""
    regret_ratio: float
    """Gain forgone by staying, against the fastest layout of each draw, mean over draws."""
    uncertainties: tuple[GainUncertainty, ...]
    """Largest first."""
    staler: Forecast | None = None
    """A layout that is surely faster than `best` by WORTHWHILE_RATIO, and staler than a change may be."""
    untried: Forecast | None = None
    """A layout that is likely faster than a recommended one by WORTHWHILE_RATIO, and not surely faster than today's."""

    @property
    def advice(self) -> Advice:
        """What to do."""
        return ADVICE[self.reason]

    @property
    def changes(self) -> bool:
        """Whether to change the layout."""
        return self.advice == "change"


def recommend(calibration: Calibration, forecasts: Forecasts, grounds: Grounds) -> Recommendation:
    """Choose among the forecasts."""
    today = forecasts.today
    affordable = [each for each in forecasts.rivals if grounds.affords(each.staleness)]
    too_stale = [each for each in forecasts.rivals if each not in affordable and is_sure(each, today, 0.0)]
    sure = [each for each in affordable if is_sure(each, today, grounds.drift_log + grounds.untested_log)]
    best = best_of(sure or affordable or [today], today)
    gains, fastest = gains_over(best, today), _fastest(forecasts)
    return Recommendation(
        reason=_reason(best, today, grounds, sure=bool(sure)),
        best=best,
        gain_ratio=Spread.of(gains),
        better_probability=float((gains > 0.0).mean()),
        worthwhile_probability=worthwhile_probability(best, today),
        best_probability=float((_drawn(best) >= fastest).mean()),
        regret_ratio=float((fastest / _drawn(today)).mean() - 1.0),
        uncertainties=_uncertainties(calibration, best.layout) if best is not today else (),
        staler=_faster(best, too_stale, today),
        untried=_faster(best, affordable, today) if sure else None,
    )


def is_sure(forecast: Forecast, today: Forecast, drift_log: float) -> bool:
    """Whether enough of the draws gain enough; drift_log: what the gain's log may still move by."""
    return worthwhile_probability(forecast, today, drift_log) >= SURE_RATIO


def worthwhile_probability(forecast: Forecast, today: Forecast, drift_log: float = 0.0) -> float:
    """Share of the draws, 0..1, that gain WORTHWHILE_RATIO, or more where the gain's log may still move."""
    least = math.expm1(math.log1p(WORTHWHILE_RATIO) + drift_log)
    return float((gains_over(forecast, today) >= least).mean())


def fastest_probabilities(forecasts: Forecasts) -> Mapping[Layout, float]:
    """Share of the draws in which each layout that was drawn is the fastest of all, 0..1."""
    fastest = _fastest(forecasts)
    return {each.layout: float((_drawn(each) >= fastest).mean()) for each in (forecasts.today, *forecasts.rivals)}


def gains_over(forecast: Forecast, today: Forecast) -> Reals:
    """Gain of a layout over another in every draw: the ratio of their rates, less 1."""
    return _drawn(forecast) / _drawn(today) - 1.0


def best_of(forecasts: Sequence[Forecast], today: Forecast) -> Forecast:
    """The one with the largest median gain; of those that gain as much, the nearest to what ran, then the least stale,
    then the one whose limit on running requests is today's, then the smallest.
    """
    ratios = {each.layout: 1.0 + float(np.median(gains_over(each, today))) for each in forecasts}
    most, limit = max(ratios.values()), today.layout.running_per_engine

    def is_equal(forecast: Forecast) -> bool:
        margin = LIMIT_RATIO if forecast.layout.running_per_engine == limit else EQUAL_RATIO
        return ratios[forecast.layout] >= (1.0 - margin) * most

    return min(filter(is_equal, forecasts), key=lambda each: _trouble(each, limit))


def _fastest(forecasts: Forecasts) -> Reals:
    """The rate of the fastest layout of each draw."""
    return np.stack([_drawn(each) for each in (forecasts.today, *forecasts.rivals)]).max(axis=0)


def _trouble(forecast: Forecast, limit: int) -> tuple[int, float, bool, int]:
    running = forecast.layout.running_per_engine
    staleness = forecast.staleness.aged_p95 if forecast.staleness else math.inf
    grade = _GRADES[forecast.grade] if forecast.grade else len(_GRADES)
    return (grade, staleness, running != limit, running)


def _faster(best: Forecast, others: Sequence[Forecast], today: Forecast) -> Forecast | None:
    """The best of the others, where it is faster than the one chosen by what a change is worth."""
    if not others:
        return None
    other = best_of(others, today)
    return other if _median_rate(other) >= (1.0 + WORTHWHILE_RATIO) * _median_rate(best) else None


def _reason(best: Forecast, today: Forecast, grounds: Grounds, *, sure: bool) -> Reason:
    if not grounds.replayed:
        return "not_replayed"
    if best is today:
        return "no_other_layout"
    gain_ratio = Spread.of(gains_over(best, today))
    if sure or gain_ratio.median >= WORTHWHILE_RATIO:
        return _worthwhile_reason(best, today, grounds, sure=sure)
    return "best_already" if gain_ratio.median <= 0.0 and gain_ratio.high < WORTHWHILE_RATIO else "small_gain"


def _worthwhile_reason(best: Forecast, today: Forecast, grounds: Grounds, *, sure: bool) -> Reason:
    if sure:
        return "worthwhile"
    if not grounds.long_enough:
        return "too_short"
    return "lengths_drift" if is_sure(best, today, 0.0) else "unsure"


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
    rates = rates_of_each(calibration, systems, (calibration.layout, other))
    return rates[:, 1] / rates[:, 0] - 1.0


def _median_rate(forecast: Forecast) -> float:
    return float(np.median(_drawn(forecast)))


def _drawn(forecast: Forecast) -> Reals:
    if forecast.drawn_tokens_per_s is None:
        raise ValueError(f"{forecast.layout} was not drawn")
    return forecast.drawn_tokens_per_s
