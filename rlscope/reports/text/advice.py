"""The layout to use next, in words: what to change or keep, why, how sure that is, and what would make it surer."""

import math
from typing import Final, NamedTuple

from rlscope import format as fmt
from rlscope.model.forecast.layouts import Forecast, Spread
from rlscope.model.forecast.recommend import Recommendation, UncertaintySource
from rlscope.model.forecast.result import STEPS_TO_PREDICT, ModelResult
from rlscope.model.numerics.changepoints import LEAST_STEPS_TO_SETTLE
from rlscope.model.system import Layout
from rlscope.reports.text.names import REASONS, layout_remark, scaling_sentence

TODAY: Final = "today"
_SCALING_STEPS: Final = LEAST_STEPS_TO_SETTLE + 5
"""What another run needs to show how training scales: a steady stretch, after a few steps that warm it up."""


class LayoutRow(NamedTuple):
    """One layout."""

    mark: str
    """Which one it is among all; empty for the others."""
    trainer_gpus: str
    sampler_gpus: str
    running: str
    rate: str
    gain: str
    """Over today's, with its interval; empty for today's own."""
    staleness: str
    remark: str

    @property
    def layout(self) -> str:
        """All three numbers."""
        return f"{self.trainer_gpus} : {self.sampler_gpus} × {self.running}"


def headline(model: ModelResult) -> str:
    """The advice as one short sentence, without a full stop."""
    advice = model.recommendation
    if advice.changes:
        return f"{change_words(model)}: {gain_words(advice.gain_ratio)} more tokens trained per second"
    return f"Keep {layout_words(model.forecasts.today.layout)}"


def change_words(model: ModelResult) -> str:
    """What to change to, without what it brings; a synchronous run stops being one."""
    words = layout_words(model.recommendation.best.layout)
    return f"Run asynchronously, with {words}" if model.calibration.synchronous else f"Use {words}"


def why(model: ModelResult) -> str:
    """Why, how sure, and what would make it surer."""
    advice = model.recommendation
    parts = [REASONS[advice.reason]]
    if advice.best is not model.forecasts.today:
        parts.append(_odds(model))
    parts += _doubts(model)
    return " ".join(parts)


def why_beside_rows(model: ModelResult) -> str:
    """The same, shorter, where the rows of `chosen_rows` and the odds stand beside it; and what other runs measured."""
    reason = model.recommendation.reason
    is_open = reason in ("worthwhile", "unsure", "forms_disagree")
    scaling = [scaling_sentence(model)] if model.others else []
    return " ".join([REASONS[reason], *(_doubts(model) if is_open else []), *scaling])


def measure_first(model: ModelResult) -> str | None:
    """What to measure before the layout is changed, as a command without a full stop; None where nothing is open."""
    advice = model.recommendation
    if advice.reason == "too_short":
        return f"record at least {STEPS_TO_PREDICT} steady steps and analyse again"
    if advice.reason not in ("unsure", "forms_disagree"):
        return None
    known = _most_doubtful(advice)
    return "record a longer stretch" if known is None else _measure(known, model)


def layout_words(layout: Layout) -> str:
    """A layout in words."""
    trainers = fmt.counted(layout.trainer_gpus, "trainer GPU", "trainer GPUs")
    samplers = fmt.counted(layout.sampler_gpus, "sampler GPU", "sampler GPUs")
    return f"{trainers} and {samplers} with up to {fmt.count(layout.running_per_engine)} running per engine"


def gain_words(gain_ratio: Spread) -> str:
    """A gain with its interval; without one where its ends read the same."""
    median, low, high = map(fmt.signed_percent, gain_ratio)
    return median if low == high else f"{median} (90% between {low} and {high})"


def gain_text(gain_ratio: Spread | None) -> str:
    """A gain with its interval, for a table; empty where there is none."""
    return "" if gain_ratio is None else fmt.with_interval(fmt.signed_percent, *gain_ratio)


def rate_of(forecast: Forecast, beside: Forecast | None = None) -> Spread | None:
    """Trained tokens per second: over the draws, where they were made, else the best estimate without an interval.

    beside: the layout over which a gain is said too. The median is then that layout's times one plus the gain: a median
    of quotients is not the quotient of medians, and a reader would find the two at odds.
    """
    own = _own_rate(forecast)
    gain = None if beside is None else _gain_between(beside, forecast)
    base = None if beside is None else _own_rate(beside)
    if own is None or gain is None or base is None:
        return own
    median = base.median * (1.0 + gain.median)
    is_drawn = forecast.drawn_tokens_per_s is not None
    return Spread(median, min(own.low, median), max(own.high, median)) if is_drawn else Spread(median, median, median)


def gain_of(model: ModelResult, forecast: Forecast) -> Spread | None:
    """Gain over today's layout; None for today's own and where nothing is known."""
    return _gain_between(model.forecasts.today, forecast)


def mark_of(model: ModelResult, forecast: Forecast) -> str:
    """Which layout this is among all: today's, the one to use, or the best of those that are not used."""
    if forecast is model.forecasts.today:
        return TODAY
    if forecast is not model.recommendation.best:
        return ""
    return "recommended" if model.recommendation.changes else "best other"


def chosen_rows(model: ModelResult) -> list[LayoutRow]:
    """Today's layout, and the one to use or the best of the others where there is one."""
    return layout_rows(model, shown=2)


def layout_rows(model: ModelResult, shown: int) -> list[LayoutRow]:
    """Today's layout, the best other one, then the fastest, then those that are out of the question."""
    forecasts, best = model.forecasts, model.recommendation.best
    chosen = [forecasts.today, *([best] if best is not forecasts.today else [])]
    if len(chosen) > 1:
        ranked = sorted(forecasts.others, key=lambda each: (each.excluded is not None, -_gain_ratio(model, each)))
        chosen += [each for each in ranked if each is not best][: max(0, shown - len(chosen))]
    return [_layout_row(model, each) for each in chosen]


def _gain_ratio(model: ModelResult, forecast: Forecast) -> float:
    gain = gain_of(model, forecast)
    return -math.inf if gain is None else gain.median


def _gain_between(base: Forecast, forecast: Forecast) -> Spread | None:
    """Gain over another layout, draw by draw where both were drawn; None for its own and where nothing is known."""
    if forecast is base or forecast.tokens_per_s is None or not base.tokens_per_s:
        return None
    if forecast.drawn_tokens_per_s is not None and base.drawn_tokens_per_s is not None:
        return Spread.of(forecast.drawn_tokens_per_s / base.drawn_tokens_per_s - 1.0)
    gain_ratio = forecast.tokens_per_s / base.tokens_per_s - 1.0
    return Spread(gain_ratio, gain_ratio, gain_ratio)


def _own_rate(forecast: Forecast) -> Spread | None:
    if forecast.drawn_tokens_per_s is not None:
        return Spread.of(forecast.drawn_tokens_per_s)
    rate = forecast.tokens_per_s
    return None if rate is None else Spread(rate, rate, rate)


def _layout_row(model: ModelResult, forecast: Forecast) -> LayoutRow:
    layout, gain = forecast.layout, gain_of(model, forecast)
    rate = rate_of(forecast, model.forecasts.today)
    return LayoutRow(
        mark=mark_of(model, forecast),
        trainer_gpus=fmt.count(layout.trainer_gpus),
        sampler_gpus=fmt.count(layout.sampler_gpus),
        running=fmt.count(layout.running_per_engine),
        rate=fmt.tokens_per_second(None if rate is None else rate.median),
        gain=gain_text(gain),
        staleness=fmt.NO_DATA if forecast.staleness is None else fmt.count(forecast.staleness.sample_p95),
        remark=layout_remark(forecast),
    )


def _odds(model: ModelResult) -> str:
    advice = model.recommendation
    odds = fmt.percent(advice.better_probability)
    if advice.changes:
        fastest = fmt.percent(advice.best_probability)
        return f"It is faster in {odds} of the cases that the run leaves possible, and the fastest of all in {fastest}."
    words = layout_words(advice.best.layout)
    words += ", run asynchronously" if model.calibration.synchronous else ""
    if not any(advice.gain_ratio):
        return f"The best of the others, {words}, would be no faster."
    return f"The best of the others, {words}, would bring {gain_words(advice.gain_ratio)}; it is faster in {odds}."


def _doubts(model: ModelResult) -> list[str]:
    """What the advice rests on least surely."""
    advice, lines = model.recommendation, list[str]()
    known = _most_doubtful(advice) if advice.reason in ("unsure", "forms_disagree", "too_short") else None
    if known is not None:
        lines.append(f"Least is known of {_UNKNOWN[known]}: {_measure(known, model)}.")
    if advice.best.grade == "extrapolated" and advice.best is not model.forecasts.today:
        lines.append("Its batches are beyond those that the run made.")
    if advice.reason == "unsure" and advice.best.grade == "assumed":
        lines.append("The run made batches of one size, and its hardware is not known.")
    return lines


_UNKNOWN: Final[dict[UncertaintySource, str]] = {
    "decode_curve": "what a decode pass costs at other batch sizes",
    "trainer_rate": "how fast the trainers train",
    "trainer_scaling": "how training scales with GPUs",
}


def _most_doubtful(advice: Recommendation) -> UncertaintySource | None:
    """The part of the system that the gain's spread mostly comes from; None where it has none."""
    return next((doubt.source for doubt in advice.uncertainties if doubt.spread_ratio > 0.0), None)


def _measure(doubt: UncertaintySource, model: ModelResult) -> str:
    """What to run to know more, as a command without a full stop."""
    best, today = model.recommendation.best.layout, model.forecasts.today.layout
    if doubt == "decode_curve" and best.running_per_engine != today.running_per_engine:
        requests = fmt.counted(best.running_per_engine, "request", "requests")
        return f"run a few minutes with up to {requests} per engine"
    if doubt == "trainer_scaling":
        trainers = fmt.counted(best.trainer_gpus, "trainer GPU", "trainer GPUs")
        other = trainers if best.trainer_gpus != today.trainer_gpus else "another number of trainer GPUs"
        return f"record {fmt.count(_SCALING_STEPS)} steps with {other}, and name that run with --also"
    return {
        "decode_curve": "run a few minutes with more and with fewer requests per engine",
        "trainer_rate": "record more steps",
    }[doubt]
