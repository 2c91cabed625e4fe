"""The recommended layout in words: what to change or keep, why, how likely it helps, and what to measure next."""

import math
from collections.abc import Iterator
from typing import Final

from rlscope import format as fmt
from rlscope.model.estimate import Estimate, about
from rlscope.model.forecast.layouts import Forecast
from rlscope.model.forecast.recommend import FEW_VERSIONS, STALER_RATIO, TIE_RATIO, UncertaintySource
from rlscope.model.forecast.result import STEPS_TO_PREDICT, ModelResult
from rlscope.model.numerics.changepoints import LEAST_STEPS_TO_SETTLE
from rlscope.reports.blocks import Paragraph, Part, Table
from rlscope.reports.text.actions import age_words, gain_words, layout_words, limit_words, split_words
from rlscope.reports.text.names import REASONS
from rlscope.reports.text.price import costly_words

TITLE: Final = "Recommended layout"
CURRENT: Final = "current"
_LAYOUTS_SHOWN: Final = 5
_ONLY_STALER: Final = (
    "Every layout that is likely to gain 5% raises sample staleness p95 by more than "
    f"{STALER_RATIO - 1.0:.0%}, to above {FEW_VERSIONS} steps."
)
_CERTAIN: Final = 0.99
"""Largest probability that is shown as a number: draws tell no more."""


def headline(model: ModelResult) -> str:
    """The recommendation as one short sentence, without a full stop."""
    advised, today = model.recommendation, model.forecasts.today
    if advised.advice == "unknown":
        return "No layout is recommended"
    if advised.advice == "keep":
        return over_cap(model) or f"Keep {layout_words(today.layout)}"
    layout = f"{layout_words(advised.best.layout)}{limit_words(advised.best.in_flight_limit)}"
    if advised.changes:
        words = f"Run asynchronously on {layout}" if model.calibration.synchronous else f"Use {layout}"
    else:
        tested = f"running asynchronously on {layout}" if model.calibration.synchronous else layout
        words = f"Test {tested} for {fmt.count(STEPS_TO_PREDICT)} steps"
    price = costly_words(advised.best.price, today.price)
    return f"{words}: throughput {gain_words(advised.gain_ratio)}{f'; it {price}' if price else ''}"


def why(model: ModelResult) -> str:
    """The reason, the odds, and what to measure to be surer."""
    advised = model.recommendation
    if over_cap(model) is not None:
        return _within_cap(model)
    only_staler = advised.advice == "keep" and advised.staler is not None
    parts = [_ONLY_STALER if only_staler else REASONS[advised.reason]]
    if advised.advice in ("change", "probe"):
        odds = advised.worthwhile_probability
        surely = f"more than {_CERTAIN:.0%}" if odds > _CERTAIN else fmt.percent(odds)
        parts.append(f"It is {surely} likely to gain at least 5%.")
        parts += _why_not_the_fastest(model)
    doubts: list[UncertaintySource] = [each.source for each in advised.uncertainties if each.spread_ratio > 0.0]
    # A stretch that is too short lacks steps before anything else, and its reason says so.
    if doubts and advised.advice == "probe" and advised.reason != "too_short":
        parts.append(_DOUBTS[doubts[0]])
    return " ".join(parts)


def over_cap(model: ModelResult) -> str | None:
    """The current layout exceeds the staleness cap that was asked for, and no change pays; None if not so."""
    cap, price = model.model_config.most_staleness, model.forecasts.today.price
    if model.recommendation.advice != "keep" or cap is None or price.staleness is None or not price.exceeds_cap(cap):
        return None
    return f"The current layout exceeds the staleness cap of {cap} (p95: {fmt.versions(price.staleness.sample_p95)})"


def _within_cap(model: ModelResult) -> str:
    advised, cap = model.recommendation, model.model_config.most_staleness
    fastest = f"The fastest layout within it is {layout_words(advised.best.layout)}: {gain_words(advised.gain_ratio)}."
    found = REASONS[advised.reason] if advised.best is model.forecasts.today else fastest
    return f"{found} `rlscope what-if RUN --max-staleness {cap}` predicts what enforcing the cap would cost."


def _why_not_the_fastest(model: ModelResult) -> Iterator[str]:
    """Yield why the advised layout is not the fastest one, if one is faster to the digits that are shown."""
    gain_ratio = _gain_ratio(model, model.recommendation.best)
    most_ratio = max((_gain_ratio(model, each) for each in model.forecasts.rivals), default=gain_ratio)
    if 1.0 + gain_ratio < (1.0 - TIE_RATIO) * (1.0 + most_ratio):
        yield "Faster layouts are staler, drop more tokens or are less certain."
    elif gain_ratio < most_ratio and fmt.gain(gain_ratio) != fmt.gain(most_ratio):
        yield (
            f"Among layouts within {TIE_RATIO:.0%} of each other, measured decode speed decides, then fewer drops, "
            "then lower staleness."
        )


_DOUBTS: Final[dict[UncertaintySource, str]] = {
    "decode_curve": (
        "Largest uncertainty: decode time at other batch sizes. To reduce it, run a few minutes with other limits on "
        "running requests."
    ),
    "trainer_rate": "Largest uncertainty: training speed. To reduce it, record more steps.",
    "trainer_scaling": (
        "Largest uncertainty: how training scales with GPUs. To reduce it, record "
        f"{fmt.count(LEAST_STEPS_TO_SETTLE + 5)} steps with another number of trainer GPUs and pass that run with "
        "--also."
    ),
}


def gain_text(gain_ratio: Estimate | None) -> str:
    """A gain with its interval, for a table; empty if there is none."""
    return "" if gain_ratio is None else fmt.with_interval(fmt.gain, *gain_ratio)


def rate_of(forecast: Forecast, beside: Forecast | None = None) -> Estimate | None:
    """Trained tokens per second: median and interval of the draws, or the best estimate alone without draws.

    beside: the layout that a gain is shown against. The median is then that layout's own rate, which is the measured
    one for the layout of a run, times one plus the gain: a median of quotients is not the quotient of medians, and the
    shown rate and gain would disagree.
    """
    rate, drawn = forecast.tokens_per_s, forecast.drawn_tokens_per_s
    if rate is not None and beside is not None and beside.tokens_per_s:
        gain = _gain_between(beside, forecast)
        rate = beside.tokens_per_s * (1.0 + (gain.value if gain else 0.0))
        return Estimate.exactly(rate) if drawn is None else about(rate, drawn)
    if drawn is not None:
        return Estimate.of(drawn)
    return None if rate is None else Estimate.exactly(rate)


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
    """Return the current layout, the recommended one and others beside each other, with the reason for the advice."""
    today = model.forecasts.today
    columns = ("trainer : sampler GPUs", "requests\nper engine", "tokens/s", "gain", "staleness\np95")
    rows = [
        (
            _place_words(model, each),
            fmt.count(each.layout.max_running),
            fmt.si(None if (rate := rate_of(each, today)) is None else rate.value),
            "" if each is today else fmt.gain(_gain_ratio(model, each)),
            age_words(each.staleness, model.calibration.steps_per_version),
        )
        for each in chosen_layouts(model)
    ]
    # A layout to change to is among the actions.
    shown = Table(TITLE, columns, rows, numbers=frozenset({1, 2, 3, 4})) if rows[1:] else Paragraph(headline(model))
    return Part(TITLE, [shown, Paragraph(why(model), "note")])


def _place_words(model: ModelResult, forecast: Forecast) -> str:
    words, mark = split_words(forecast.layout), mark_of(model, forecast)
    manner = "" if not model.calibration.synchronous else "synchronous" if mark == CURRENT else "asynchronous"
    return ", ".join(filter(None, (words, manner, mark)))


def chosen_layouts(model: ModelResult) -> list[Forecast]:
    """Return the current layout, then the best other one among the fastest feasible ones, by gain.

    If the layout is kept, the current one alone: layouts without a gain need no list.
    """
    forecasts, best = model.forecasts, model.recommendation.best
    if model.recommendation.advice not in ("change", "probe") or best is forecasts.today:
        return [forecasts.today]
    others = [each for each in forecasts.shown[1:] if each is not best and each.excluded is None]
    fastest = sorted(others, key=lambda each: -_gain_ratio(model, each))[: _LAYOUTS_SHOWN - 2]
    return [forecasts.today, *sorted([best, *fastest], key=lambda each: -_gain_ratio(model, each))]


def _gain_ratio(model: ModelResult, forecast: Forecast) -> float:
    gain = gain_of(model, forecast)
    return -math.inf if gain is None else gain.value


def _gain_between(base: Forecast, forecast: Forecast) -> Estimate | None:
    """Gain over another layout, draw by draw if both have draws; None for the same layout and if unknown."""
    if forecast is base or forecast.tokens_per_s is None or not base.tokens_per_s:
        return None
    return forecast.gain_over(base) or Estimate.exactly(forecast.tokens_per_s / base.tokens_per_s - 1.0)
