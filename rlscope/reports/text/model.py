"""What the model says beside its advice, in rows and sentences: predicted and achieved, the gap, the end of the run.

Terminal and page show the same rows; the words of the advice itself are in `advice.py`.

What one per cent of each quantity buys, in rows and a sentence: the same for terminal and page.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from rlscope import format as fmt
from rlscope.model.forecast.gap import GapStep
from rlscope.model.forecast.holdout import Achieved, Compared, PredictedQuantity
from rlscope.model.forecast.result import ModelResult, NoModelResult
from rlscope.model.forecast.sensitivity import Sensitivity, SensitivityQuantity, Silence
from rlscope.model.warnings import ModelWarning
from rlscope.reports.text.names import (
    BETTER_THAN_MODEL,
    CAUSES,
    OTHER_CAUSES,
    QUANTITIES,
    WARNINGS,
    CauseWords,
    other_run_lines,
    scaling_sentence,
)

# Of the bound: a smaller cause of the gap is not worth a line.
_SMALL_RATIO: Final = 0.002
# Of the bound: what is left of a subtraction of equal rates.
_NOTHING_RATIO: Final = 1e-6


class ComparedRow(NamedTuple):
    """One quantity."""

    name: str
    predicted: str
    achieved: str
    remark: str


class LossRow(NamedTuple):
    """One cause of the gap; the rows' losses add up to the bound less what was achieved."""

    cause: CauseWords
    lost_tokens_per_s: float
    """Below 0 where the run does better than the model says."""
    left_tokens_per_s: float
    share_ratio: float
    """Of the bound."""

    @property
    def lost(self) -> str:
        """The loss as a change of the rate."""
        sign = "−" if self.lost_tokens_per_s > 0 else "+"
        return sign + fmt.tokens_per_second(abs(self.lost_tokens_per_s))


class FinishRow(NamedTuple):
    """The rest of the run in one layout."""

    layout: str
    duration: str
    gpu_time: str
    price: str
    """Empty without a price of a GPU-hour."""


def silence_sentence(said: NoModelResult) -> str:
    """Why the model says nothing."""
    return f"The model says nothing of this run: {said.reason}."


def compared_rows(model: ModelResult) -> list[ComparedRow]:
    """Predicted against achieved; empty where nothing was held out."""
    if model.prediction is None:
        return []
    return [_compared(each) for each in model.prediction.compared]


def prediction_sentence(model: ModelResult) -> str:
    """What was calibrated on what."""
    prediction = model.prediction
    if prediction is None:
        return WARNINGS[ModelWarning.SHORT_STRETCH]
    first, rest = fmt.count(prediction.calibrated_steps), fmt.count(prediction.judged_steps)
    return f"Calibrated on the first {first} steps of the steady stretch, judged on the {rest} after them."


def loss_rows(model: ModelResult) -> list[LossRow]:
    """From the bound to what was achieved; the small causes are one row, before what is not explained."""
    gap = model.gap
    large = [step for step in gap.steps if abs(step.lost_tokens_per_s) >= _SMALL_RATIO * gap.bound_tokens_per_s]
    small_tokens_per_s = sum(step.lost_tokens_per_s for step in gap.steps if step not in large)
    named = [(_cause_words(step), step.lost_tokens_per_s) for step in large]
    at = len(named) - any(step.cause == "unexplained" for step in large)
    rows, left = list[LossRow](), gap.bound_tokens_per_s
    for cause, lost in (*named[:at], (OTHER_CAUSES, small_tokens_per_s), *named[at:]):
        left -= lost
        if gap.bound_tokens_per_s and abs(lost) > _NOTHING_RATIO * gap.bound_tokens_per_s:
            rows.append(LossRow(cause, lost, left, lost / gap.bound_tokens_per_s))
    return rows


def finish_rows(model: ModelResult) -> list[FinishRow]:
    """How long the rest takes as it is, and in the recommended layout; empty where that is not known."""
    finish = model.finish
    if finish is None:
        return []
    spans = [("as it is", finish.today_hours), ("recommended layout", finish.recommended_hours)]
    return [
        FinishRow(
            layout,
            fmt.with_interval(_hours, *hours),
            fmt.gpu_time(finish.gpu_hours(hours.median) * 3600.0),
            "" if finish.gpu_hour_price is None else fmt.significant(finish.price(hours.median)),
        )
        for layout, hours in spans
        if hours is not None
    ]


def finish_sentence(model: ModelResult) -> str:
    """How much is left, and what its price is taken from; or why that is not known."""
    finish = model.finish
    if finish is None:
        return "How long the rest takes is not known: the run does not say how many steps it has, or has made them all."
    steps = fmt.counted(finish.remaining_steps, "step", "steps")
    price = finish.gpu_hour_price
    text = f"{steps} to go on {fmt.counted(finish.gpus, 'GPU', 'GPUs')}, if steps stay as they are"
    return f"{text}." if price is None else f"{text}; the price is {fmt.significant(price)} for a GPU-hour."


def baseline_sentence(model: ModelResult) -> str:
    """The bound and the synchronous baseline."""
    bound = fmt.tokens_per_second(model.gap.bound_tokens_per_s)
    # Some of the steps that it is fitted to may be faster than their mean.
    text = f"By what passes and steps cost on average, no layout of these GPUs trains more than {bound}"
    if model.synchronous_tokens_per_s is not None:
        rate = fmt.tokens_per_second(model.synchronous_tokens_per_s)
        text += f"; a synchronous run in which every GPU samples and then trains would do {rate}"
    return f"{text}."


def batch_sentence(model: ModelResult) -> str | None:
    """How well the batches used their time."""
    efficiency = model.efficiency
    if efficiency is None:
        return None
    size = fmt.count(efficiency.efficient_running)
    wasted_ratio = 1.0 - efficiency.efficient_time_ratio
    text = f"An efficient batch has {fmt.counted(efficiency.efficient_running, 'request', 'requests')} or more"
    if wasted_ratio <= 0.0:
        return f"{text}; all of the decoding time went to such batches."
    return f"{text}; batches below {size} cost {fmt.percent(wasted_ratio)} of the decoding time."


def remarks(model: ModelResult) -> list[str]:
    """What was assumed, and what the figures may miss; what speaks against the advice first."""
    calibration = model.calibration
    lines = [WARNINGS[warning] for warning in model.warnings]
    if calibration.synchronous:
        lines.append(
            "The run works by turns. Every other layout is taken to run asynchronously: its gain is that of both "
            "changes together, and its tokens are as old as is said of it."
        )
    lines += other_run_lines(model)
    lines += [WARNINGS[warning] for warning in (*calibration.warnings, *calibration.curve.warnings)]
    if model.simulated_layouts:
        many = fmt.counted(model.simulated_layouts, "layout was", "layouts were")
        lines.append(f"{many} simulated event by event: a limit binds there that no formula holds for.")
    return [*lines, scaling_sentence(model)]


def _compared(compared: Compared) -> ComparedRow:
    name, achieved = compared.quantity, compared.achieved
    predicted = compared.predicted
    interval = _with_interval(name, Achieved(predicted.median, predicted.low, predicted.high))
    remark = "as predicted" if compared.agrees else _off(compared)
    return ComparedRow(QUANTITIES[name], interval, _with_interval(name, achieved), remark)


def _off(compared: Compared) -> str:
    if compared.quantity == "trainer_idle_ratio":
        return fmt.signed_points(compared.achieved.value - compared.predicted.median)
    return "" if compared.residual_ratio is None else fmt.signed_percent(compared.residual_ratio)


def _with_interval(name: PredictedQuantity, achieved: Achieved) -> str:
    return fmt.with_interval(_WRITERS[name], achieved.value, achieved.low, achieved.high)


_WRITERS: Final[Mapping[PredictedQuantity, Callable[[float | None], str]]] = {
    "tokens_per_s": fmt.tokens_per_second,
    "step_s": fmt.duration,
    "trainer_idle_ratio": fmt.percent,
    "staleness_mean": fmt.versions,
}


def _cause_words(step: GapStep) -> CauseWords:
    words = CAUSES[step.cause]
    return words if step.lost_tokens_per_s > 0.0 else words._replace(meaning=BETTER_THAN_MODEL)


def _hours(hours: float | None) -> str:
    return fmt.duration(None if hours is None else hours * 3600.0)


TITLE: Final = "What one per cent of each quantity buys"


class LeverRow(NamedTuple):
    """One quantity."""

    name: str
    gain: str
    """Of trained tokens per second, with its interval."""
    remark: str


def lever_rows(model: ModelResult) -> list[LeverRow]:
    """What buys most first; what buys nothing last, with the reason."""
    return [_row(lever) for lever in model.sensitivities]


def lever_sentence(model: ModelResult) -> str:
    """How the figures are to be read, and how far to trust them."""
    text = (
        "Change of trained tokens per second for one per cent of each alone, today's layout kept; small whole numbers "
        "are moved by one and divided down."
    )
    rough = any(lever.is_rough for lever in model.sensitivities)
    return f"{text} A limit binds that the formulas hold for only roughly, so these are rough too." if rough else text


def _row(lever: Sensitivity) -> LeverRow:
    gain = lever.gain_ratio
    text = fmt.NO_DATA if gain is None else fmt.with_interval(fmt.signed_hundredths, *gain)
    return LeverRow(_NAMES[lever.quantity], text, _SILENCES[lever.silence] if lever.silence else "")


_NAMES: Final[Mapping[SensitivityQuantity, str]] = {
    "trainer_speed": "faster training",
    "trainer_gpus": "more trainer GPUs",
    "forward_speed": "faster forward passes",
    "prefill_speed": "faster prefill alone",
    "sampler_gpus": "more sampler GPUs",
    "running_limit": "more running per engine",
    "kv_capacity": "larger KV cache",
    "weight_update": "shorter weight updates",
    "response_length": "shorter responses",
    "environment": "shorter environment waits",
    "in_flight_cap": "larger cap in flight",
    "staleness_cap": "later staleness cap",
}
_SILENCES: Final[Mapping[Silence, str]] = {
    "not_limiting": "something else binds",
    "not_there": "the run has none",
    "not_recorded": "not recorded",
}
