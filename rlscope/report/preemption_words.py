"""What is said of a KV cache that runs over: how often samples are put back, and what computing them again costs."""

from typing import Final

from rlscope.model.forecast import Forecast
from rlscope.model.outlook import Outlook
from rlscope.model.preemption import Preemption
from rlscope.report import numbers
from rlscope.report.outlook_names import EXCLUSIONS

_FEW_PER_SAMPLE: Final = 0.005
"""Of half a sample in a hundred nothing is said."""


def preemption_sentence(outlook: Outlook) -> str | None:
    """What preemptions cost the run, and were expected to; None where there are too few to speak of."""
    today = outlook.forecasts.today
    seen, expected = _worth_saying(outlook.preemption), _worth_saying(today.preemption)
    if seen is None and expected is None:
        return None
    grade = f" ({today.grade})" if today.grade else ""
    if seen is None:
        was = "did not count preemptions" if outlook.preemption is None else "put next to no request back"
        return f"Engines {was}; the model expects {_words(expected)}{grade}."
    text = f"The KV cache ran over: {_words(seen)}, as counted"
    return f"{text}." if today.preemption is None else f"{text}; the model expects {_words(today.preemption)}{grade}."


def overflow_line(forecast: Forecast) -> str | None:
    """What a layout that runs more requests than the KV cache holds loses; None where it holds them."""
    state, running = forecast.state, forecast.layout.running_per_engine
    if state is None or state.running_limit >= running:
        return None
    lost = _worth_saying(forecast.preemption)
    text = f"The KV cache of an engine holds {numbers.significant(state.running_limit)} requests safely, not {running}"
    return f"{text}." if lost is None else f"{text}: the model expects {_words(lost)}."


def layout_remark(forecast: Forecast) -> str:
    """Why a layout is out of the question, or how sure its forecast is and what it puts back."""
    if forecast.excluded:
        return EXCLUSIONS[forecast.excluded]
    lost = _worth_saying(forecast.preemption)
    parts = (forecast.grade or "", "" if lost is None else f"{numbers.preemptions(lost.per_sample)} a sample")
    return ", ".join(part for part in parts if part)


def _worth_saying(lost: Preemption | None) -> Preemption | None:
    return lost if lost is not None and lost.per_sample >= _FEW_PER_SAMPLE else None


def _words(lost: Preemption | None) -> str:
    if _worth_saying(lost) is None or lost is None:
        return "next to no preemption"
    often = f"{numbers.preemptions(lost.per_sample)} a sample"
    if lost.engine_ratio is None:
        return often
    return f"{often}, {numbers.percent(lost.engine_ratio)} of the engines' time to compute them again"
