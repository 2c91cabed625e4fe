"""The recommended layout in words: what to change or keep, why, how likely it helps, and what to measure next."""

import math
from typing import Final

import numpy as np

from rlscope import format as fmt
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.layouts import Forecast
from rlscope.model.forecast.recommend import (
    TIE_RATIO,
    WORTHWHILE_RATIO,
    Recommendation,
    UncertaintySource,
    gains_over,
)
from rlscope.model.forecast.result import STEPS_TO_PREDICT, ModelResult
from rlscope.model.numerics.changepoints import LEAST_STEPS_TO_SETTLE
from rlscope.model.warnings import ModelWarning
from rlscope.reports.blocks import Bullets, Part, Table
from rlscope.reports.text.actions import age_words, gain_words, layout_words, limit_words
from rlscope.reports.text.model import OBSERVABLES, remarks
from rlscope.reports.text.names import ONE_SPLIT, REASONS, layout_remark, scaling_sentence
from rlscope.reports.text.price import costly_words

TITLE: Final = "Recommended layout"
CURRENT: Final = "current"
_LAYOUTS_SHOWN: Final = 6
_SCALING_STEPS: Final = LEAST_STEPS_TO_SETTLE + 5
"""Steps that another run needs to measure how training scales: a few to warm up, then a steady state."""


def headline(model: ModelResult) -> str:
    """The recommendation as one short sentence, without a full stop."""
    advised = model.recommendation
    if advised.advice == "unknown":
        return "No layout is recommended"
    if advised.advice == "keep":
        kept = f"eep {layout_words(model.forecasts.today.layout)}"
        return f"If you skip action 1, k{kept}" if _changes_run_type(model) else f"K{kept}"
    words = (
        change_words(model)
        if advised.changes
        else f"Test {_tried_words(model)} for {fmt.count(STEPS_TO_PREDICT)} steps"
    )
    price = costly_words(advised.best.price, model.forecasts.today.price)
    return f"{words}: throughput {gain_words(advised.gain_ratio)}{f'; it {price}' if price else ''}"


def change_words(model: ModelResult) -> str:
    """The change without its gain; for a synchronous run the change includes running asynchronously."""
    best = model.recommendation.best
    words = f"{layout_words(best.layout)}{limit_words(best.in_flight_limit)}"
    return f"Run asynchronously on {words}" if model.calibration.synchronous else f"Use {words}"


def _tried_words(model: ModelResult) -> str:
    best = model.recommendation.best
    words = f"{layout_words(best.layout)}{limit_words(best.in_flight_limit)}"
    return f"running asynchronously on {words}" if model.calibration.synchronous else words


def _changes_run_type(model: ModelResult) -> bool:
    """Whether the first action makes a colocated run of this one, which has no split of its GPUs."""
    first = model.ranking.first
    return first is not None and first.what == "colocated"


def reason(model: ModelResult) -> str:
    """Return the reason of the advice; if the layout is kept to keep samples fresh, what that costs."""
    stale, words = _too_stale(model), REASONS[model.recommendation.reason]
    if model.recommendation.advice != "keep":
        return words
    if stale is None or _changes_run_type(model):
        return words if _has_other_splits(model) or model.recommendation.reason != "small_gain" else ONE_SPLIT
    gain = fmt.gain(Estimate.of(gains_over(stale, model.forecasts.today)).value)
    ages = staleness_text(model, model.forecasts.today), staleness_text(model, stale)
    return (
        f"No other layout with samples as fresh is likely to gain 5%. {layout_words(stale.layout)}: predicted gain "
        f"{gain}, but sample staleness p95 rises from {ages[0].partition(' ')[0]} to {ages[1]}."
    )


def _has_other_splits(model: ModelResult) -> bool:
    splits = {each.layout.trainer_gpus for each in (model.forecasts.today, *model.forecasts.others)}
    return len(splits) > 1


def _too_stale(model: ModelResult) -> Forecast | None:
    """The fastest of the layouts that would gain 5%: if the layout is kept, all of them are staler."""
    today = model.forecasts.today
    own = math.inf if today.staleness is None else today.staleness.p95_steps
    staler = [each for each in model.forecasts.rivals if each.staleness is None or each.staleness.p95_steps > own]
    medians = [(Estimate.of(gains_over(each, today)).value, each) for each in staler]
    most, fastest = max(medians, key=lambda each: each[0], default=(0.0, None))
    return fastest if most >= WORTHWHILE_RATIO else None


def why(model: ModelResult) -> str:
    """The reason, the odds, and what to measure to be surer."""
    parts = [reason(model)]
    if model.recommendation.advice in ("change", "probe"):
        parts.append(_odds(model))
    parts += [*_missed(model), *_doubts(model)]
    return " ".join(parts)


def why_beside_rows(model: ModelResult) -> str:
    """The reason beside the rows of the layouts, which hold the odds; with what other runs say about scaling."""
    is_open = model.recommendation.advice in ("change", "probe")
    scaling = [scaling_sentence(model)] if model.others else []
    return " ".join([reason(model), *_missed(model), *(_doubts(model) if is_open else []), *scaling])


def _missed(model: ModelResult) -> list[str]:
    """The replayed quantities that are off, if they are so many that they weaken the advice."""
    if ModelWarning.PARTLY_EXPLAINED not in model.warnings:
        return []
    off, known = model.replay.out_of_tolerance, model.replay.known
    names = ", ".join(OBSERVABLES[each] for each in off)
    return [
        f"{fmt.count(len(off))} of {fmt.count(len(known))} predicted quantities of this run are off ({names}), so gains"
        " may be off by more than their intervals say."
    ]


def gain_text(gain_ratio: Estimate | None) -> str:
    """A gain with its interval, for a table; empty if there is none."""
    return "" if gain_ratio is None else fmt.with_interval(fmt.gain, *gain_ratio)


def rate_of(forecast: Forecast, beside: Forecast | None = None) -> Estimate | None:
    """Trained tokens per second: median and interval of the draws, or the best estimate alone without draws.

    beside: the layout that a gain is shown against. The median is then that layout's own rate, which is the measured
    one for the layout of a run, times one plus the gain: a median of quotients is not the quotient of medians, and the
    shown rate and gain would disagree.
    """
    own = _own_rate(forecast)
    gain = None if beside is None else _gain_between(beside, forecast)
    if own is None or beside is None or not beside.tokens_per_s or (gain is None and forecast is not beside):
        return own
    median = beside.tokens_per_s * (1.0 + (gain.value if gain else 0.0))
    is_drawn = forecast.drawn_tokens_per_s is not None
    return (
        Estimate(median, min(own.low, median), max(own.high, median)) if is_drawn else Estimate(median, median, median)
    )


def gain_of(model: ModelResult, forecast: Forecast) -> Estimate | None:
    """Gain over the current layout; None for the current layout and if unknown."""
    return _gain_between(model.forecasts.today, forecast)


def mark_of(model: ModelResult, forecast: Forecast) -> str:
    """The mark of a layout: current, recommended, to try, best other, or empty."""
    if forecast is model.forecasts.today:
        return CURRENT
    if forecast is not model.recommendation.best:
        return ""
    return {"change": "recommended", "probe": "to try"}.get(model.recommendation.advice, "best other")


def layouts_part(model: ModelResult) -> Part:
    """Return the layouts behind the advice, and what limits it."""
    columns = (
        "",
        "trainer : sampler\nGPUs × max running",
        "steady\ntokens/s",
        "predicted\ngain",
        "staleness\np95",
        "",
    )
    today = model.forecasts.today
    rows = [
        (
            mark_of(model, each),
            f"{fmt.count(each.layout.trainer_gpus)} : {fmt.count(each.layout.sampler_gpus)}"
            f" × {fmt.count(each.layout.max_running)}",
            rate_text(each, today),
            gain_text(gain_of(model, each)),
            staleness_text(model, each),
            "measured" if each is today else layout_remark(each),
        )
        for each in chosen_layouts(model, _LAYOUTS_SHOWN)
    ]
    table = Table("Layouts", columns, rows, numbers=frozenset({2, 3, 4}), whole=frozenset({1}))
    return Part("Layouts and assumptions", [table, Bullets(remarks(model))])


def chosen_layouts(model: ModelResult, shown: int) -> list[Forecast]:
    """Return the current layout, the best other one, then the rest by gain, infeasible ones last.

    If the layout is kept, the current one alone: layouts without a gain need no list.
    """
    forecasts, best = model.forecasts, model.recommendation.best
    if model.recommendation.advice not in ("change", "probe") or best is forecasts.today:
        return [forecasts.today]
    ranked = sorted(forecasts.shown[1:], key=lambda each: (each.excluded is not None, -_gain_ratio(model, each)))
    others = [each for each in ranked if each is not best]
    return [forecasts.today, best, *others[: max(0, shown - 2)]]


def _gain_ratio(model: ModelResult, forecast: Forecast) -> float:
    gain = gain_of(model, forecast)
    return -math.inf if gain is None else gain.value


def _gain_between(base: Forecast, forecast: Forecast) -> Estimate | None:
    """Gain over another layout, draw by draw if both have draws; None for the same layout and if unknown."""
    if forecast is base or forecast.tokens_per_s is None or not base.tokens_per_s:
        return None
    if forecast.drawn_tokens_per_s is not None and base.drawn_tokens_per_s is not None:
        return Estimate.of(forecast.drawn_tokens_per_s / base.drawn_tokens_per_s - 1.0)
    gain_ratio = forecast.tokens_per_s / base.tokens_per_s - 1.0
    return Estimate(gain_ratio, gain_ratio, gain_ratio)


def _own_rate(forecast: Forecast) -> Estimate | None:
    if forecast.drawn_tokens_per_s is not None:
        return Estimate.of(forecast.drawn_tokens_per_s)
    rate = forecast.tokens_per_s
    return None if rate is None else Estimate(rate, rate, rate)


def rate_text(forecast: Forecast, beside: Forecast) -> str:
    """The rate of a layout, for a table of tokens per second; beside: as in `rate_of`."""
    rate = rate_of(forecast, beside)
    return fmt.tokens_per_second(None if rate is None else rate.value).removesuffix(" tokens/s")


def staleness_text(model: ModelResult, forecast: Forecast) -> str:
    """Return staleness in the unit of the actions."""
    return age_words(forecast.staleness, model.calibration.steps_per_version)


def _odds(model: ModelResult) -> str:
    advised = model.recommendation
    worth = fmt.percent(advised.worthwhile_probability)
    fastest = fmt.percent(advised.best_probability)
    text = f"{worth} likely to gain at least 5%; {fastest} likely to be the fastest layout."
    best, *rates = (_typical(each, model) for each in (advised.best, *model.forecasts.rivals))
    if max(rates, default=0.0) <= best:
        return text
    if max(rates) * (1.0 - TIE_RATIO) <= best:
        return f"{text} Chosen among equally fast layouts for its stronger evidence and fresher samples."
    return f"{text} Faster layouts increase staleness." if _are_staler(model, best) else text


def _are_staler(model: ModelResult, best_tokens_per_s: float) -> bool:
    """Whether each layout that is faster than the one chosen makes samples staler."""
    own = model.recommendation.best.staleness
    least = best_tokens_per_s / (1.0 - TIE_RATIO)
    faster = [each for each in model.forecasts.rivals if _typical(each, model) > least]
    aged = [math.inf if each.staleness is None else each.staleness.p95_steps for each in faster]
    return own is not None and all(each > own.p95_steps for each in aged)


def _typical(forecast: Forecast, model: ModelResult) -> float:
    """Return the rate relative to the current layout, draw by draw; layouts are ranked by it."""
    return 1.0 + float(np.median(gains_over(forecast, model.forecasts.today)))


def _doubts(model: ModelResult) -> list[str]:
    """The largest uncertainty behind the recommendation, and what is extrapolated."""
    advice, lines = model.recommendation, list[str]()
    # A stretch that is too short lacks steps before anything else, and its reason says so.
    known = _most_doubtful(advice) if advice.advice == "probe" and advice.reason != "too_short" else None
    if known is not None:
        lines.append(f"Largest uncertainty: {_UNKNOWN[known]}. To reduce it, {_measure(known, model)}.")
    if advice.advice in ("change", "probe") and advice.best.grade == "extrapolated":
        lines.append("Extrapolated: the run had no batches of this size.")
    if advice.advice in ("change", "probe") and advice.best.grade == "assumed":
        lines.append("The run had one batch size, and its hardware is unknown.")
    return lines


_UNKNOWN: Final[dict[UncertaintySource, str]] = {
    "decode_curve": "how decode time depends on the batch size",
    "trainer_rate": "training speed",
    "trainer_scaling": "how training scales with GPUs",
}


def _most_doubtful(advice: Recommendation) -> UncertaintySource | None:
    """The part of the system that contributes most to the spread of the gain; None if there is no spread."""
    return next((doubt.source for doubt in advice.uncertainties if doubt.spread_ratio > 0.0), None)


def _measure(doubt: UncertaintySource, model: ModelResult) -> str:
    """Return the run that reduces an uncertainty, as an imperative without a full stop."""
    best, today = model.recommendation.best.layout, model.forecasts.today.layout
    if doubt == "decode_curve" and best.max_running != today.max_running:
        requests = fmt.counted(best.max_running, "request", "requests")
        return f"run for a few minutes with up to {requests} per engine"
    if doubt == "trainer_scaling":
        trainers = fmt.counted(best.trainer_gpus, "trainer GPU", "trainer GPUs")
        other = trainers if best.trainer_gpus != today.trainer_gpus else "another number of trainer GPUs"
        return f"record {fmt.count(_SCALING_STEPS)} steps with {other} and pass that run with --also"
    return {
        "decode_curve": "run for a few minutes with more and with fewer requests per engine",
        "trainer_rate": "record more steps",
    }[doubt]
