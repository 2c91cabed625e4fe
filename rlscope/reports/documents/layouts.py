"""Layouts in JSON documents: one shape wherever a layout and what it would do are written.

Its keys are part of the contract of `json_document.py`: only ever added to. Figures are the model's, the run's own
layout included, so that they can be compared with each other.

How training scales, as the JSON documents of an analysis and of a what-if say it. Keys are only ever added to.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias

from rlscope.format import finite
from rlscope.model.analytic.steady_state import Regime
from rlscope.model.calibration import Calibration
from rlscope.model.forecast.layouts import Forecast, Preemption, Spread
from rlscope.model.forecast.recommend import fastest_probabilities
from rlscope.model.forecast.result import ModelResult
from rlscope.model.system import Layout
from rlscope.reports.text import advice
from rlscope.reports.text.names import scaling_exponent

Json: TypeAlias = "str | int | float | bool | Mapping[str, Json] | Sequence[Json] | None"
Waits = Literal["samplers", "trainers", "staleness_cap", "weight_updates", "environment", "balanced"]

NO_GAIN: Final = Spread(0.0, 0.0, 0.0)
_WAITS: Final[Mapping[Regime, Waits]] = {
    "samplers": "samplers",
    "trainers": "trainers",
    "staleness_cap": "staleness_cap",
    # What is in flight is what ages: a cap on it is a cap on staleness by other means.
    "admission": "staleness_cap",
    "weight_updates": "weight_updates",
    "environment": "environment",
    "balanced": "balanced",
}


def layout_document(layout: Layout) -> dict[str, Json]:
    """The three numbers of a layout."""
    return {
        "n_train_gpus": layout.trainer_gpus,
        "n_sample_gpus": layout.sampler_gpus,
        "max_running_per_engine": layout.running_per_engine,
    }


def present_document(forecast: Forecast, beside: Forecast | None = None) -> dict[str, Json]:
    """A layout, its rate and how old its tokens are; beside: the layout that its gain is over."""
    rate, staleness = advice.rate_of(forecast, beside), forecast.staleness
    return {
        **layout_document(forecast.layout),
        "tokens_per_s": None if rate is None else finite(rate.median),
        "staleness_mean": None if staleness is None else finite(staleness.token_mean),
        "staleness_max": None if staleness is None else staleness.sample_max,
    }


def preemption_document(lost: Preemption | None) -> dict[str, Json]:
    """What a KV cache that runs over costs; null where nothing is known."""
    return {
        "preemptions_per_sample": None if lost is None else finite(lost.per_sample),
        "recompute_ratio": None if lost is None else finite(lost.engine_ratio),
    }


def candidate_documents(model: ModelResult) -> list[Json]:
    """Every layout that was looked at, the run's own among them: the fastest first, those out of the question last."""
    today = model.forecasts.today
    odds = fastest_probabilities(model.forecasts)

    def rank(forecast: Forecast) -> tuple[bool, float]:
        rate = advice.rate_of(forecast, today)
        return (forecast.excluded is not None, -(rate.median if rate else 0.0))

    ranked = sorted((today, *model.forecasts.others), key=rank)
    return [candidate_document(model, each, odds) for each in ranked]


def candidate_document(model: ModelResult, forecast: Forecast, odds: Mapping[Layout, float]) -> dict[str, Json]:
    """A layout with its gain over the run's own; odds: of being the fastest, of the layouts that were drawn."""
    gain = NO_GAIN if forecast is model.forecasts.today else advice.gain_of(model, forecast)
    return compared_document(model.calibration, forecast, model.forecasts.today, gain, odds)


def compared_document(
    calibration: Calibration,
    forecast: Forecast,
    base: Forecast | None,
    gain: Spread | None,
    odds: Mapping[Layout, float],
) -> dict[str, Json]:
    """A layout with its gain over whatever it is compared with, `base`; None: over nothing."""
    pace, staleness = forecast.pace, forecast.staleness
    rate, is_drawn = advice.rate_of(forecast, base), forecast.drawn_tokens_per_s is not None
    return {
        **present_document(forecast, base),
        "low": finite(rate.low) if rate is not None and is_drawn else None,
        "high": finite(rate.high) if rate is not None and is_drawn else None,
        "gain_ratio": None if gain is None else finite(gain.median),
        "gain_low_ratio": finite(gain.low) if gain is not None and is_drawn else None,
        "gain_high_ratio": finite(gain.high) if gain is not None and is_drawn else None,
        "probability_best": odds.get(forecast.layout),
        "grade": forecast.grade,
        "excluded": forecast.excluded,
        "regime": None if pace is None else waits_for(pace.regime),
        "step_s": finite(step_seconds(calibration, forecast, base)),
        "staleness_p95": None if staleness is None else staleness.sample_p95,
        **preemption_document(forecast.preemption),
    }


def step_seconds(calibration: Calibration, forecast: Forecast, beside: Forecast | None = None) -> float | None:
    """Seconds of an optimizer step at the rate that is said of the layout; None where it cannot run."""
    rate = advice.rate_of(forecast, beside)
    return None if rate is None else forecast.step_seconds(rate.median, calibration.steps_per_version)


def waits_for(regime: Regime) -> Waits:
    """What a layout waits for, in the words of the verdict."""
    return _WAITS[regime]


def scaling_document(model: ModelResult) -> dict[str, Json]:
    """How the trainers' rate grows with their number: the exponent, and whether other runs measured it."""
    training = model.calibration.training
    exponent, low, high = scaling_exponent(training)
    return {
        "exponent": finite(exponent),
        "low": finite(low),
        "high": finite(high),
        "measured": bool(training.scaling_seen_at),
        "contradicted": training.scaling_contradicted,
        "n_train_gpus": sorted({training.seen_gpus, *training.scaling_seen_at}),
        "also": [
            {"run_id": other.run_id, "n_train_gpus": other.trainer_gpus, "cautions": list(other.warnings)}
            for other in model.others
        ],
    }
