"""Recommend the fastest layout that the evidence supports, with its gain and how certain that gain is.

Draws are compared pairwise: within a draw both layouts run the same system, so shared errors cancel. A layout is sure
if at least 90% of the draws gain 5% or more with it, however far response lengths drift. The fastest sure layout is
recommended; a faster layout that is not sure does not hide it. Without a staleness cap, a layout must not be much
staler than the current one; a faster but staler layout is named beside it. Not covered: the cost of the change itself,
and learning per token, which staleness lowers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np

from rlscope.model.arrays import Reals
from rlscope.model.calibration import Calibration
from rlscope.model.causes import LossCause
from rlscope.model.decode.measurements import Grade
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.layouts import Forecast, Forecasts
from rlscope.model.forecast.predict import closed_rates
from rlscope.model.forecast.price import UNTESTED_LOG, Anchor, Price, StalenessForecast
from rlscope.model.numerics.changepoints import Drift
from rlscope.model.system import Layout, System
from rlscope.model.training.step_time import at_pace_of

Advice = Literal["change", "probe", "keep", "unknown"]
"""change: switch to a layout that is sure to be faster. probe: try a layout that is probably faster. keep: no layout is
5% faster. unknown: the model cannot judge other layouts."""
Reason = Literal[
    "worthwhile",
    "unsure",
    "costly",
    "lengths_drift",
    "best_already",
    "small_gain",
    "no_other_layout",
    "too_short",
    "not_replayed",
]
"""worthwhile: change. unsure: another layout is probably faster, but fewer than SURE_RATIO of the draws agree.
costly: enough draws agree, but too many tokens would be dropped, or too few of the long responses trained.
lengths_drift: enough draws would agree if response lengths did not drift. best_already: no other layout is faster.
small_gain: no layout gains WORTHWHILE_RATIO. no_other_layout: granularity, memory and staleness rule out all others.
too_short: another layout is probably faster, but by less than the model may err, and the steady state is too short to
check the model. not_replayed: the model does not reproduce the run that it was fitted to."""
UncertaintySource = Literal["decode_curve", "trainer_rate", "trainer_scaling"]
"""Parts of the system that cause the spread of the gain."""

ADVICE: Final[Mapping[Reason, Advice]] = {
    "worthwhile": "change",
    "unsure": "probe",
    "costly": "probe",
    "lengths_drift": "probe",
    "best_already": "keep",
    "small_gain": "keep",
    "no_other_layout": "keep",
    "too_short": "probe",
    "not_replayed": "unknown",
}
WORTHWHILE_RATIO: Final = 0.05
"""Below 5%, the restart and the next change in response lengths cost more than the gain."""
SURE_RATIO: Final = 0.90
"""Minimum share of draws that must gain WORTHWHILE_RATIO or more."""
STALER_RATIO: Final = 1.5
"""Largest p95 staleness, as a multiple of the current one, that is recommended to a run without a staleness cap."""
FEW_VERSIONS: Final = 4
"""Staleness that is acceptable whatever the current one is: off-policy corrections hold up to here."""
_DRAWS_OF_A_SOURCE: Final = 60
"""Draws per source: enough to rank three spreads."""
TIE_RATIO: Final = 0.02
"""Tolerance as a share of the rate: neither the model nor two runs can tell apart settings that differ by less.
Evidence and staleness then decide."""
_NEARLY: Final = 1.0 + WORTHWHILE_RATIO
"""Most rate of the best layout over that of a fresher one: what lies between is less than a change is worth."""
_GRADES: Final[Mapping[Grade, int]] = {"measured": 0, "interpolated": 0, "extrapolated": 1, "assumed": 2}
"""Distance from the evidence as a reason to choose another layout. Batches within the range that ran rank equally."""


@dataclass(frozen=True, slots=True)
class GainUncertainty:
    """Contribution of one uncertain part of the system to the spread of the gain."""

    source: UncertaintySource
    """The part of the model that is uncertain."""
    spread_ratio: float
    """Half the width of the gain's 90% interval if this part alone is uncertain."""


@dataclass(frozen=True, slots=True)
class Grounds:
    """Facts about the run that a recommendation rests on besides the forecasts."""

    long_enough: bool = True
    """Whether the steady state has enough steps to check the model's predictions."""
    replayed: bool = True
    """Whether the model reproduces the run that it was fitted to."""
    lengths: Drift | None = None
    """Drift of response lengths over the steady state; None if unknown."""
    current_p95_steps: float | None = None
    """Measured p95 staleness of the current samples, in steps that could have published; None if not measured."""
    capped: bool = False
    """Whether a staleness cap limits how stale a layout may be. False if publications wait for the cap: versions then
    last as many steps as needed."""
    most_staleness: int | None = None
    """Largest p95 staleness over samples that is allowed, in versions; None if it is not limited."""
    anchor: Anchor = field(default_factory=Anchor)
    """Measurements of the current layout over the modeled values; forecasts are multiplied by them."""
    lost_gpu_s: Mapping[LossCause, float] = field(default_factory=dict[LossCause, float])
    """Measured GPU-seconds of the steady state lost to each cause."""

    @property
    def drift_log(self) -> float:
        """Log of how far a gain may shift as response lengths drift; 0 if they do not.

        By the next steady state, lengths have changed again by the full drift of this one, and a gain shifts at most in
        proportion. Own reasoning, for passes and steps whose time grows at most in proportion to tokens.
        """
        drifts = self.lengths is not None and self.lengths.drifts
        return abs(math.log1p(self.lengths.change_ratio)) if drifts and self.lengths else 0.0

    @property
    def untested_log(self) -> float:
        """Log of the model error to allow for; 0 if the steady state is long enough to hold out a part of it."""
        return 0.0 if self.long_enough else UNTESTED_LOG

    def within_staleness_budget(self, staleness: StalenessForecast | None, leeway: float = 1.0) -> bool:
        """Whether samples are fresh enough to recommend.

        staleness: None if samples grow staler without bound. leeway: factor that the forecast may be too high by.
        """
        if self.capped or staleness is None:
            return self.capped
        current = self.current_p95_steps
        return current is None or staleness.p95_steps <= leeway * max(STALER_RATIO * current, FEW_VERSIONS)


@dataclass(frozen=True, slots=True, eq=False)
class Recommendation:
    """Advice about the layout, with the numbers behind it."""

    reason: Reason
    best: Forecast
    """Layout to change to or to try. With advice to keep, the best of the others, or the current layout if there is
    none."""
    gain_ratio: Estimate
    """Trained tokens per second of `best` over the current rate, minus 1."""
    worthwhile_probability: float
    """Share of the draws in which `best` gains WORTHWHILE_RATIO or more."""
    uncertainties: tuple[GainUncertainty, ...]
    """Largest first."""
    staler: Forecast | None = None
    """Layout that is sure to be faster than `best` by WORTHWHILE_RATIO, but staler than a change may be."""
    untried: Forecast | None = None
    """Layout that is probably faster than a recommended `best` by WORTHWHILE_RATIO, but not sure to beat the current
    one."""
    fresher: Forecast | None = None
    """Layout that is sure to be faster too, less than WORTHWHILE_RATIO slower than a recommended `best`, and cheaper in
    staleness or drops."""

    @property
    def advice(self) -> Advice:
        """Advice that follows from the reason."""
        return ADVICE[self.reason]

    @property
    def changes(self) -> bool:
        """Whether the advice is to change the layout."""
        return self.advice == "change"


def affords(forecast: Forecast, today: Forecast, leeway: float, grounds: Grounds) -> bool:
    """Whether a layout may be recommended. A queue that grows by the closed forms gets a limit when it is predicted.

    leeway: factor that the staleness of a layout may be too high by that is not predicted yet.
    """
    leeway = leeway if forecast.tokens_per_s is None else 1.0
    is_fresh = forecast.staleness is None or grounds.within_staleness_budget(forecast.staleness, leeway)
    return is_fresh and not forecast.price.is_high(today.price)


def recommend(calibration: Calibration, forecasts: Forecasts, grounds: Grounds) -> Recommendation:
    """Recommend one of the forecast layouts."""
    today = forecasts.today
    affordable = [each for each in forecasts.rivals if grounds.within_staleness_budget(each.staleness)]
    too_stale = [each for each in forecasts.rivals if each not in affordable and is_sure(each, today, 0.0)]
    all_sure = [each for each in affordable if is_sure(each, today, grounds.drift_log + grounds.untested_log)]
    sure = [each for each in all_sure if not each.price.is_high(today.price)]
    best = best_of(sure, today) if sure else _cheapest(all_sure or affordable or [today], today)
    return Recommendation(
        reason=_reason(best, today, grounds, sure=bool(all_sure)),
        best=best,
        gain_ratio=Estimate.of(best.gains_over(today)),
        worthwhile_probability=share_gaining(best.gains_over(today)),
        uncertainties=_uncertainties(calibration, best.layout) if best is not today else (),
        staler=_faster(best, too_stale, today),
        untried=_faster(best, affordable, today) if sure else None,
        fresher=_fresher(best, sure, today),
    )


def is_sure(forecast: Forecast, today: Forecast, drift_log: float) -> bool:
    """Whether enough draws gain enough. drift_log: log of how far the gain may still shift."""
    return share_gaining(forecast.gains_over(today), drift_log) >= SURE_RATIO


def share_gaining(gains: Reals, shift_log: float = 0.0) -> float:
    """Share of the gains, 0..1, that are worth a change; shift_log: log of the factor that they lose first."""
    return float((gains >= math.expm1(math.log1p(WORTHWHILE_RATIO) + shift_log)).mean())


def fastest_probabilities(forecasts: Sequence[Forecast]) -> Mapping[Layout, float]:
    """Share of the draws, 0..1, in which each drawn layout is the fastest; empty if none was drawn."""
    drawn = [each for each in forecasts if each.drawn_tokens_per_s is not None]
    fastest = np.max([each.drawn_rates for each in drawn], axis=0, initial=0.0)
    return {each.layout: float((each.drawn_rates >= fastest).mean()) for each in drawn}


def best_of(forecasts: Sequence[Forecast], today: Forecast) -> Forecast:
    """Return the forecast with the largest median gain.

    Ties go to the forecast nearest to what ran, then the one that drops least, then the least stale, then the current
    limit on running requests, then the lowest limit.
    """
    ratios = {each.layout: 1.0 + float(np.median(each.gains_over(today))) for each in forecasts}
    least = (1.0 - TIE_RATIO) * max(ratios.values())
    equal = [each for each in forecasts if ratios[each.layout] >= least]
    return min(equal, key=lambda each: _trouble(each, today.layout.max_running))


def _cheapest(forecasts: Sequence[Forecast], today: Forecast) -> Forecast:
    """Return the best forecast, or one whose price is not high and that is nearly as fast: it lacks less than a change
    must gain.
    """
    best, cheap = best_of(forecasts, today), [each for each in forecasts if not each.price.is_high(today.price)]
    other = best_of(cheap, today) if cheap else best
    return other if best.median_rate < _NEARLY * other.median_rate else best


def _trouble(forecast: Forecast, limit: int) -> tuple[int, float, float, bool, int]:
    running, price = forecast.layout.max_running, forecast.price
    grade = _GRADES[forecast.grade] if forecast.grade else len(_GRADES)
    return (grade, price.dropped_percent, price.p95_steps, running != limit, running)


def _faster(best: Forecast, others: Sequence[Forecast], today: Forecast) -> Forecast | None:
    """Best of the others if it is faster than `best` by WORTHWHILE_RATIO, else None."""
    if not others:
        return None
    other = best_of(others, today)
    return other if other.median_rate >= (1.0 + WORTHWHILE_RATIO) * best.median_rate else None


def _fresher(best: Forecast, others: Sequence[Forecast], today: Forecast) -> Forecast | None:
    """Freshest of the others that are nearly as fast as `best`, or the one that drops least; None if none saves either.

    It has to save one step of p95 staleness or one percent of the tokens, and to cost nothing of the other.
    """
    ratios = {each.layout: 1.0 + float(np.median(each.gains_over(today))) for each in (best, *others)}
    nearly = [each for each in others if ratios[best.layout] < _NEARLY * ratios[each.layout]]
    saving = [each for each in nearly if _saves(each.price, best.price)]
    return min(
        saving, key=lambda each: (each.price.p95_steps, each.price.dropped_percent, -ratios[each.layout]), default=None
    )


def _saves(price: Price, other: Price) -> bool:
    saved = [other.p95_steps - price.p95_steps, other.dropped_percent - price.dropped_percent]
    # Two unknown costs differ by nan.
    return not any(map(math.isnan, saved)) and min(saved) >= 0.0 and max(saved) >= 1.0


def _reason(best: Forecast, today: Forecast, grounds: Grounds, *, sure: bool) -> Reason:
    if not grounds.replayed:
        return "not_replayed"
    if best is today:
        return "no_other_layout"
    if sure:
        return "costly" if best.price.is_high(today.price) else "worthwhile"
    gain_ratio = Estimate.of(best.gains_over(today))
    if gain_ratio.value < WORTHWHILE_RATIO:
        return "best_already" if gain_ratio.value <= 0.0 and gain_ratio.high < WORTHWHILE_RATIO else "small_gain"
    if not grounds.long_enough:
        return "too_short"
    return "lengths_drift" if is_sure(best, today, 0.0) else "unsure"


def _uncertainties(calibration: Calibration, layout: Layout) -> tuple[GainUncertainty, ...]:
    """Gain with one part of the system drawn and the rest at its best estimate, for each part."""
    best, draws = calibration.system, calibration.draws[:_DRAWS_OF_A_SOURCE]
    rates = [at_pace_of(best.trainer, draw.trainer, best.workload) for draw in draws]
    # An exponent belongs to the overhead of the same draw.
    scalings = [at_pace_of(draw.trainer, best.trainer, best.workload) for draw in draws]
    parts: dict[UncertaintySource, list[System]] = {
        "decode_curve": [replace(best, engine=draw.engine) for draw in draws],
        "trainer_rate": [replace(best, trainer=trainer) for trainer in rates],
        "trainer_scaling": [replace(best, trainer=trainer) for trainer in scalings],
    }
    found: list[GainUncertainty] = []
    for source, systems in parts.items():
        own, other = closed_rates(calibration, systems, (calibration.layout, layout)).T
        spread = Estimate.of(other / own - 1.0)
        found.append(GainUncertainty(source, (spread.high - spread.low) / 2.0))
    return tuple(sorted(found, key=lambda each: -each.spread_ratio))
