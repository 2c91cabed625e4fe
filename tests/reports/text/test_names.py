"""What is said of a KV cache that runs over."""

from dataclasses import replace

import pytest

from rlscope.model.forecast.layouts import Forecast, Preemption
from rlscope.model.forecast.result import ModelResult
from rlscope.reports.text.names import layout_remark, overflow_line, preemption_sentence
from tests.reports.model_fixture import short_model

MANY, NONE = Preemption(1.71, 0.123), Preemption(0.0, 0.0)


def told(seen: Preemption | None) -> ModelResult:
    return replace(short_model(), preemption=seen)


def limited(running_limit: float, lost: Preemption | None) -> Forecast:
    today = short_model().forecasts.today
    return replace(today, state=replace(today.state, running_limit=running_limit), preemption=lost)


@pytest.mark.parametrize(
    ("seen", "sentence"),
    [
        (
            MANY,
            "The KV cache overflowed: 1.7 preemptions a sample, 12.3% of the engines' time to recompute them.",
        ),
        (Preemption(0.005, None), "The KV cache overflowed: 0.005 preemptions a sample."),
        (Preemption(1.004, None), "The KV cache overflowed: 1.0 preemptions a sample."),
        (Preemption(0.0049, 0.1), None),
        (None, None),
    ],
)
def test_preemptions_are_said_from_one_in_200_samples_on(seen: Preemption | None, sentence: str | None) -> None:
    assert preemption_sentence(told(seen)) == sentence


def test_a_layout_says_what_it_would_put_back_and_one_that_cannot_run_why() -> None:
    today = replace(short_model().forecasts.today, grade="extrapolated")
    beyond = "decode speed extrapolated beyond measured batch sizes"
    said = [layout_remark(replace(today, preemption=each)) for each in (None, NONE, MANY)]
    assert said == [beyond, beyond, f"{beyond}, 1.7 preemptions a sample"]
    assert layout_remark(replace(today, excluded="kv_memory", preemption=MANY)) == "KV cache too small"


def test_more_requests_than_the_cache_holds_are_said_to_be() -> None:
    running = short_model().forecasts.today.layout.max_running
    assert overflow_line(limited(float(running), MANY)) is None
    holds = f"The KV cache of an engine holds 19.3 requests safely, not {running}"
    assert overflow_line(limited(19.3, None)) == f"{holds}."
    assert overflow_line(limited(19.3, Preemption(2.2, None))) == f"{holds}; predicted: 2.2 preemptions a sample."
