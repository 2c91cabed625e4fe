"""The model's parts of the JSON document. Their keys are part of the same contract: only ever added to.

Where the model says nothing of a run, every key is there and null, and `recommendation.why` says what is missing.
"""

from collections.abc import Mapping
from typing import Final

from rlscope.analysis.result import RunFacts
from rlscope.format import finite
from rlscope.model.forecast.gap import Gap
from rlscope.model.forecast.holdout import Compared, Prediction
from rlscope.model.forecast.recommend import fastest_probabilities
from rlscope.model.forecast.result import ModelResult, NoModelResult, TimeToFinish
from rlscope.reports.documents.layouts import (
    Json,
    candidate_document,
    candidate_documents,
    preemption_document,
    present_document,
    scaling_document,
)
from rlscope.reports.documents.what_if import lever_documents
from rlscope.reports.text import advice

_PREDICTED_KEYS: Final = (
    "predicted_tokens_per_s",
    "predicted_low",
    "predicted_high",
    "judged_tokens_per_s",
    "judged_low",
    "judged_high",
    "residual_ratio",
    "agrees",
)
_LATENCY_KEYS: Final = (
    "form",
    "parameters",
    "visited_batch_low",
    "visited_batch_high",
    "grade",
    "mape_ratio",
    "held_out_mape_ratio",
    "caveats",
)
_MODEL_KEYS: Final = (
    "synchronous",
    "calibrated_steps",
    "judged_steps",
    "judged",
    "efficient_running",
    "efficient_decoding_ratio",
    "simulated_layouts",
    "batches_ahead",
    "preemption",
    "cautions",
    "notes",
    "training_scaling",
)


def model_documents(model: ModelResult | NoModelResult, run: RunFacts) -> dict[str, Json]:
    """The top-level keys that are the model's alone."""
    return {
        "latency": _latency(model),
        "recommendation": _recommendation(model, run),
        "eta": _eta(model),
        "sensitivity": lever_documents(model.sensitivities) if isinstance(model, ModelResult) else None,
        "model": _model(model),
    }


def predicted_document(model: ModelResult | NoModelResult) -> dict[str, Json]:
    """What `throughput` holds of the model: predicted and judged, the bound, and the way from it to what was achieved.

    bound_tokens_per_s and the `tokens_per_s` of all causes add up to the steady rate: a cause that costs is below 0.
    """
    known = isinstance(model, ModelResult)
    return {
        **_predicted(model.prediction if known else None),
        "bound_tokens_per_s": finite(model.gap.bound_tokens_per_s) if known else None,
        "sync_tokens_per_s": finite(model.synchronous_tokens_per_s) if known else None,
        "gap": _gap(model.gap) if known else None,
    }


def _predicted(prediction: Prediction | None) -> dict[str, Json]:
    rate = None if prediction is None else _compared_by_name(prediction).get("tokens_per_s")
    if rate is None:
        return dict.fromkeys(_PREDICTED_KEYS)
    values: tuple[Json, ...] = (
        *map(finite, rate.predicted),
        finite(rate.achieved.value),
        finite(rate.achieved.low),
        finite(rate.achieved.high),
        finite(rate.residual_ratio),
        rate.agrees,
    )
    return dict(zip(_PREDICTED_KEYS, values, strict=True))


def _compared_by_name(prediction: Prediction) -> Mapping[str, Compared]:
    return {each.quantity: each for each in prediction.compared}


def _gap(gap: Gap) -> list[Json]:
    # A loss of 0.0 turned round by its sign alone would be written -0.0.
    return [{"cause": step.cause, "tokens_per_s": finite(0.0 - step.lost_tokens_per_s)} for step in gap.steps]


def _latency(model: ModelResult | NoModelResult) -> dict[str, Json]:
    if isinstance(model, NoModelResult):
        return dict.fromkeys(_LATENCY_KEYS)
    fit = model.calibration.curve
    visited = fit.visited
    values: tuple[Json, ...] = (
        fit.form,
        {name: finite(value) for name, value in fit.parameters.items()},
        None if visited is None else finite(visited.batch_low),
        None if visited is None else finite(visited.batch_high),
        model.forecasts.today.grade,
        finite(fit.mape_ratio),
        finite(fit.held_out_mape_ratio),
        list(fit.warnings),
    )
    return dict(zip(_LATENCY_KEYS, values, strict=True))


def _recommendation(model: ModelResult | NoModelResult, run: RunFacts) -> dict[str, Json]:
    if isinstance(model, NoModelResult):
        return _no_recommendation(model, run)
    advised, forecasts = model.recommendation, model.forecasts
    odds = fastest_probabilities(forecasts)
    other = None if advised.best is forecasts.today else candidate_document(model, advised.best, odds)
    today = candidate_document(model, forecasts.today, odds)
    return {
        "action": "change" if advised.changes else "keep",
        "why": advice.why(model),
        "reason": advised.reason,
        "headline": advice.headline(model),
        "current": present_document(forecasts.today),
        "best": other if advised.changes else today,
        "alternative": None if advised.changes else other,
        "probability_better": advised.better_probability,
        "regret_ratio": finite(advised.regret_ratio),
        "doubts": [
            {"source": each.source, "spread_ratio": finite(each.spread_ratio)} for each in advised.uncertainties
        ],
        "candidates": candidate_documents(model),
    }


def _no_recommendation(model: NoModelResult, run: RunFacts) -> dict[str, Json]:
    return {
        "action": "unknown",
        "why": model.reason,
        "reason": None,
        "headline": None,
        "current": {
            "n_train_gpus": run.trainer_gpus,
            "n_sample_gpus": run.sampler_gpus,
            "max_running_per_engine": None,
            "tokens_per_s": None,
            "staleness_mean": None,
            "staleness_max": None,
        },
        "best": None,
        "alternative": None,
        "probability_better": None,
        "regret_ratio": None,
        "doubts": [],
        "candidates": [],
    }


def _eta(model: ModelResult | NoModelResult) -> dict[str, Json]:
    finish = model.finish if isinstance(model, ModelResult) else None
    if finish is None:
        return {"remaining_steps": None, "current": None, "best": None}
    current = _hours(finish, *finish.today_hours)
    recommended = finish.recommended_hours
    best = current if recommended is None else _hours(finish, *recommended)
    return {"remaining_steps": finish.remaining_steps, "current": current, "best": best}


def _hours(finish: TimeToFinish, hours: float, low: float, high: float) -> dict[str, Json]:
    return {
        "hours": finite(hours),
        "low": finite(low),
        "high": finite(high),
        "gpu_hours": finite(finish.gpu_hours(hours)),
        "price": finite(finish.price(hours)),
    }


def _model(model: ModelResult | NoModelResult) -> dict[str, Json]:
    if isinstance(model, NoModelResult):
        return dict.fromkeys(_MODEL_KEYS)
    prediction, efficiency = model.prediction, model.efficiency
    values: tuple[Json, ...] = (
        model.calibration.synchronous,
        None if prediction is None else prediction.calibrated_steps,
        None if prediction is None else prediction.judged_steps,
        None if prediction is None else _judged(prediction),
        None if efficiency is None else efficiency.efficient_running,
        None if efficiency is None else finite(efficiency.efficient_time_ratio),
        model.simulated_layouts,
        finite(model.model_config.prefetched_batches),
        _preemption(model),
        list(model.warnings),
        list(model.calibration.warnings),
        scaling_document(model),
    )
    return dict(zip(_MODEL_KEYS, values, strict=True))


def _preemption(model: ModelResult) -> dict[str, Json]:
    """As counted over the steady stretch, and as the model expects of the run's layout."""
    today = model.forecasts.today
    return {
        "achieved": preemption_document(model.preemption),
        "predicted": preemption_document(today.preemption),
        "grade": None if today.preemption is None else today.grade,
    }


def _judged(prediction: Prediction) -> dict[str, Json]:
    """What was predicted besides the rate, which `throughput` holds."""
    by_name = _compared_by_name(prediction)
    return {name: _compared(each) for name, each in by_name.items() if name != "tokens_per_s"}


def _compared(compared: Compared) -> dict[str, Json]:
    predicted, achieved = compared.predicted, compared.achieved
    return {
        "predicted": finite(predicted.median),
        "predicted_low": finite(predicted.low),
        "predicted_high": finite(predicted.high),
        "judged": finite(achieved.value),
        "judged_low": finite(achieved.low),
        "judged_high": finite(achieved.high),
        "residual_ratio": finite(compared.residual_ratio),
        "agrees": compared.agrees,
    }
