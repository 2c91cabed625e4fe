"""What the model says, in words: what the run should have done, where the rest went, and the layout to use next.

Terminal and page show the same rows.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from rlscope.model.calibration import Note
from rlscope.model.forecast import Exclusion, Forecast, Spread
from rlscope.model.gap import Cause
from rlscope.model.outlook import Caution, Outlook
from rlscope.model.prediction import Achieved, Compared, Quantity
from rlscope.model.recommendation import Doubt, Reason, Recommendation
from rlscope.model.system import Layout
from rlscope.report import numbers

_LAYOUTS_SHOWN: Final = 6
# Of the bound: a smaller cause of the gap is not worth a line.
_SMALL_RATIO: Final = 0.002

_REASONS: Final[Mapping[Reason, str]] = {
    "worthwhile": "It is worth a restart, and more likely right than not by more than nine to one.",
    "too_short": (
        "The steady stretch is too short to check the model on, so nothing is recommended yet. Record at least 20 "
        "steady steps and analyse again."
    ),
    "best_already": "No other layout of these GPUs is faster.",
    "small_gain": "No other layout is faster by a twentieth, and less is not worth the trouble of a change.",
    "unsure": "Another layout may be faster, but the run does not say so surely enough.",
    "updates_bind": "Weight updates are what the run waits for: make them cheaper before moving GPUs.",
    "environment_binds": "The environment is what the run waits for: make it faster, or keep more samples in flight.",
    "no_other_layout": (
        "No other layout is possible: the size of an engine, the KV cache and the staleness cap leave none."
    ),
}
_DOUBTS: Final[Mapping[Doubt, str]] = {
    "decode_curve": (
        "what a decode pass costs at other batch sizes; run a few minutes with that many requests per engine"
    ),
    "trainer_rate": "how fast the trainers train; record more steps",
    "trainer_scaling": "how training scales with GPUs; run a few steps with another number of trainer GPUs",
}
"""What is not known, and what to measure."""
_QUANTITIES: Final[Mapping[Quantity, str]] = {
    "tokens_per_s": "trained",
    "step_s": "step",
    "trainer_idle_ratio": "trainers waiting",
    "staleness_mean": "token staleness, mean",
}
_CAUSES: Final[Mapping[Cause, str]] = {
    "layout_imbalance": "split of the GPUs",
    "kv_cache": "KV cache too small for the batch",
    "trainer_phases": "checkpoints, evaluation, time between steps",
    "weight_updates": "weight updates",
    "environment": "waiting for the environment",
    "admission": "cap on samples in flight",
    "staleness_cap": "staleness cap",
    "synchronous_steps": "sides taking turns, and the longest sample",
    "underfilled_batches": "batches not filled",
    "unexplained": "not explained by the model",
}
_EXCLUSIONS: Final[Mapping[Exclusion, str]] = {
    "no_trainer": "no GPU trains",
    "no_engine": "too few GPUs for an engine",
    "engine_granularity": "GPUs make no whole engine",
    "no_request": "no request may run",
    "kv_memory": "KV cache too small",
    "synchronous": "only a synchronous run keeps a staleness of 0",
    "too_stale": "tokens older than the cap",
}
_CAUTIONS: Final[Mapping[Caution, str]] = {
    "short_stretch": "The steady stretch is too short to hold a part of it out: how well the model does is unknown.",
    "lengths_drift": "Responses change in length over the steady stretch: figures are of its mean, and will move on.",
    "period_drifts": "The step period drifts over the steady stretch: figures are of its mean.",
}
_NOTES: Final[Mapping[Note, str]] = {
    "limit_below_setting": (
        "Engines never ran as many requests as their setting allows; the most that ran is taken as today's limit."
    ),
    "unattributed_engine_time": (
        "Much of the engines' time is in no recorded state; the model takes it for idle time, not for slow passes."
    ),
    "prefill_not_recorded": "No prompt tokens were recorded: prefill is taken to be free.",
    "unattributed_trainer_time": (
        "Much of the trainers' time is in no recorded phase; if they waited there, they are faster than is said here."
    ),
}


class ComparedRow(NamedTuple):
    """One quantity."""

    name: str
    predicted: str
    achieved: str
    remark: str


class Loss(NamedTuple):
    """One cause of the gap."""

    name: str
    lost: str
    share_ratio: float
    """Of the bound; below 0 where the run beats the model."""


class LayoutRow(NamedTuple):
    """One layout."""

    layout: str
    rate: str
    gain: str
    staleness: str
    remark: str
    is_today: bool
    is_best: bool


def headline(outlook: Outlook) -> str:
    """The advice as one short sentence, without a full stop."""
    advice = outlook.recommendation
    if advice.changes:
        return f"Use {layout_words(advice.best.layout)}: {gain_words(advice.gain_ratio)} more tokens trained per second"
    return f"Keep {layout_words(outlook.forecasts.today.layout)}"


def why(outlook: Outlook) -> str:
    """Why, how sure, and what would make it surer."""
    advice = outlook.recommendation
    parts = [_REASONS[advice.reason]]
    if advice.best is not outlook.forecasts.today:
        parts.append(_odds(advice))
    if advice.reason in ("unsure", "too_short") and advice.doubts and advice.doubts[0].spread_ratio > 0:
        parts.append(f"Least is known of {_DOUBTS[advice.doubts[0].source]}.")
    if advice.best.grade == "extrapolated" and advice.best is not outlook.forecasts.today:
        parts.append("Its batches are beyond those that the run visited.")
    return " ".join(parts)


def layout_words(layout: Layout) -> str:
    """A layout in words."""
    trainers = numbers.counted(layout.trainer_gpus, "trainer GPU", "trainer GPUs")
    samplers = numbers.counted(layout.sampler_gpus, "sampler GPU", "sampler GPUs")
    return f"{trainers} and {samplers} with up to {numbers.count(layout.running_per_engine)} running per engine"


def gain_words(gain_ratio: Spread) -> str:
    """A gain with its interval."""
    low, high = _signed(gain_ratio.low), _signed(gain_ratio.high)
    return f"{_signed(gain_ratio.median)} (90% between {low} and {high})"


def compared_rows(outlook: Outlook) -> list[ComparedRow]:
    """Predicted against achieved; empty where nothing was held out."""
    if outlook.prediction is None:
        return []
    return [_compared(each) for each in outlook.prediction.compared]


def prediction_sentence(outlook: Outlook) -> str:
    """What was calibrated on what."""
    prediction = outlook.prediction
    if prediction is None:
        return _CAUTIONS["short_stretch"]
    first, rest = numbers.count(prediction.calibrated_steps), numbers.count(prediction.judged_steps)
    return f"Calibrated on the first {first} steps of the steady stretch, judged on the {rest} after them."


def loss_rows(outlook: Outlook) -> list[Loss]:
    """From the bound to what was achieved, the small causes left out."""
    bound = outlook.gap.bound_tokens_per_s
    return [
        Loss(_CAUSES[step.cause], _signed_rate(-step.lost_tokens_per_s), step.lost_tokens_per_s / bound)
        for step in outlook.gap.steps
        if bound and abs(step.lost_tokens_per_s) >= _SMALL_RATIO * bound
    ]


def layout_rows(outlook: Outlook, shown: int = _LAYOUTS_SHOWN) -> list[LayoutRow]:
    """Today's layout, then the fastest others, then those that are out of the question."""
    forecasts, best = outlook.forecasts, outlook.recommendation.best
    chosen = [forecasts.today, *([best] if best is not forecasts.today else [])]
    chosen += [each for each in forecasts.others if each is not best][: max(0, shown - len(chosen))]
    return [_layout_row(outlook, each) for each in chosen]


def finish_sentence(outlook: Outlook) -> str | None:
    """When the run will be done; None where that is not known."""
    finish = outlook.finish
    if finish is None:
        return None
    steps = numbers.counted(finish.remaining_steps, "step", "steps")
    text = f"{steps} to go: {_hours(finish.today_hours)} as it is"
    price = finish.price(finish.today_hours.median)
    text += f", {numbers.significant(finish.gpu_hours(finish.today_hours.median))} GPU-h"
    text += "" if price is None else f" ({numbers.significant(price)} at the price given)"
    if finish.recommended_hours is not None:
        text += f"; {_hours(finish.recommended_hours)} in the recommended layout"
    return text + "."


def baseline_sentence(outlook: Outlook) -> str:
    """The bound and the synchronous baseline."""
    text = f"No layout of these GPUs can train more than {numbers.tokens_per_second(outlook.gap.bound_tokens_per_s)}"
    if outlook.synchronous_tokens_per_s is not None:
        rate = numbers.tokens_per_second(outlook.synchronous_tokens_per_s)
        text += f"; a synchronous run on all of them would train {rate}"
    return f"{text}."


def batch_sentence(outlook: Outlook) -> str | None:
    """How well the batches used their time."""
    efficiency = outlook.efficiency
    if efficiency is None:
        return None
    wasted = numbers.percent(1.0 - efficiency.efficient_time_ratio)
    size = numbers.count(efficiency.efficient_running)
    return f"An efficient batch has {size} requests or more; {wasted} of the decoding time went to smaller ones."


def remarks(outlook: Outlook) -> list[str]:
    """What was assumed, and what the figures may miss."""
    lines = [_CAUTIONS[caution] for caution in outlook.cautions]
    lines += [_NOTES[note] for note in outlook.calibration.notes]
    if outlook.simulated_layouts:
        many = numbers.counted(outlook.simulated_layouts, "layout was", "layouts were")
        lines.append(f"{many} simulated event by event: a limit binds there that no formula holds for.")
    return lines


def _odds(advice: Recommendation) -> str:
    odds = numbers.percent(advice.better_probability)
    if advice.changes:
        fastest = numbers.percent(advice.best_probability)
        return f"It is faster in {odds} of what the run leaves possible, and the fastest of all in {fastest}."
    best = layout_words(advice.best.layout)
    return f"The best of the others, {best}, would bring {gain_words(advice.gain_ratio)}; it is faster in {odds}."


def _compared(compared: Compared) -> ComparedRow:
    name, achieved = compared.quantity, compared.achieved
    predicted = compared.predicted
    interval = _with_interval(name, Achieved(predicted.median, predicted.low, predicted.high))
    remark = "as predicted" if compared.agrees else _off(compared)
    return ComparedRow(_QUANTITIES[name], interval, _with_interval(name, achieved), remark)


def _off(compared: Compared) -> str:
    if compared.quantity == "trainer_idle_ratio":
        points = (compared.achieved.value - compared.predicted.median) * 100.0
        return f"{points:+.1f} points"
    return "" if compared.residual_ratio is None else _signed(compared.residual_ratio)


def _with_interval(name: Quantity, achieved: Achieved) -> str:
    if achieved.low == achieved.high:
        return _value(name, achieved.value)
    return f"{_value(name, achieved.value)} ({_value(name, achieved.low)} to {_value(name, achieved.high)})"


def _value(name: Quantity, value: float) -> str:
    writers: Mapping[Quantity, Callable[[float | None], str]] = {
        "tokens_per_s": numbers.tokens_per_second,
        "step_s": numbers.duration,
        "trainer_idle_ratio": numbers.percent,
        "staleness_mean": numbers.significant,
    }
    return writers[name](value)


def _layout_row(outlook: Outlook, forecast: Forecast) -> LayoutRow:
    today = outlook.forecasts.today
    gain = ""
    if forecast is not today and forecast.tokens_per_s is not None and today.tokens_per_s:
        gain = _signed(forecast.tokens_per_s / today.tokens_per_s - 1.0)
    layout = forecast.layout
    return LayoutRow(
        layout=f"{layout.trainer_gpus} : {layout.sampler_gpus} × {layout.running_per_engine}",
        rate=numbers.tokens_per_second(forecast.tokens_per_s),
        gain=gain,
        staleness=numbers.NO_DATA if forecast.staleness is None else numbers.count(forecast.staleness.sample_p95),
        remark=_EXCLUSIONS[forecast.excluded] if forecast.excluded else (forecast.grade or ""),
        is_today=forecast is today,
        is_best=forecast is outlook.recommendation.best and forecast is not today,
    )


def _hours(hours: Spread) -> str:
    low, median, high = (numbers.duration(value * 3600.0) for value in (hours.low, hours.median, hours.high))
    return f"{median} ({low} to {high})"


def _signed(ratio: float) -> str:
    return f"{ratio:+.1%}"


def _signed_rate(tokens_per_s: float) -> str:
    sign = "+" if tokens_per_s > 0 else "−"
    return sign + numbers.tokens_per_second(abs(tokens_per_s))
