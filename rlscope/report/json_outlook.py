"""The model's part of the JSON document. Its keys are part of the same contract: only ever added to."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from rlscope.model.decode_fit import CurveFit
from rlscope.model.forecast import Forecast, Spread
from rlscope.model.gap import Gap
from rlscope.model.outlook import NoOutlook, Outlook
from rlscope.model.prediction import Compared, Prediction
from rlscope.model.recommendation import Recommendation
from rlscope.model.system import Layout
from rlscope.model.time_to_finish import TimeToFinish
from rlscope.report import advice
from rlscope.report.numbers import finite

Json: TypeAlias = "str | int | float | bool | Mapping[str, Json] | Sequence[Json] | None"


def outlook_document(outlook: Outlook | NoOutlook) -> dict[str, Json]:
    """What the model says; `reason` alone where it says nothing."""
    if isinstance(outlook, NoOutlook):
        return {"reason": outlook.reason}
    efficiency = outlook.efficiency
    return {
        "reason": None,
        "headline": advice.headline(outlook),
        "why": advice.why(outlook),
        "synchronous": outlook.calibration.synchronous,
        "recommendation": _recommendation(outlook.recommendation),
        "today": _forecast(outlook, outlook.forecasts.today),
        "layouts": [_forecast(outlook, each) for each in outlook.forecasts.others],
        "prediction": None if outlook.prediction is None else _prediction(outlook.prediction),
        "gap": _gap(outlook.gap),
        "synchronous_tokens_per_s": finite(outlook.synchronous_tokens_per_s),
        "efficient_running": None if efficiency is None else efficiency.efficient_running,
        "efficient_decoding_ratio": None if efficiency is None else finite(efficiency.efficient_time_ratio),
        "time_to_finish": None if outlook.finish is None else _finish(outlook.finish),
        "simulated_layouts": outlook.simulated_layouts,
        "cautions": list(outlook.cautions),
        "notes": list(outlook.calibration.notes),
        "curve": _curve(outlook.calibration.curve),
    }


def _prediction(prediction: Prediction) -> dict[str, Json]:
    return {
        "calibrated_steps": prediction.calibrated_steps,
        "judged_steps": prediction.judged_steps,
        "quantities": [_compared(each) for each in prediction.compared],
    }


def _compared(compared: Compared) -> dict[str, Json]:
    achieved = compared.achieved
    return {
        "quantity": compared.quantity,
        "predicted": _spread(compared.predicted),
        "achieved": {"value": finite(achieved.value), "low": finite(achieved.low), "high": finite(achieved.high)},
        "residual_ratio": finite(compared.residual_ratio),
        "agrees": compared.agrees,
    }


def _gap(gap: Gap) -> dict[str, Json]:
    return {
        "bound_tokens_per_s": finite(gap.bound_tokens_per_s),
        "lost": [{"cause": step.cause, "lost_tokens_per_s": finite(step.lost_tokens_per_s)} for step in gap.steps],
        "achieved_tokens_per_s": finite(gap.achieved_tokens_per_s),
    }


def _curve(fit: CurveFit) -> dict[str, Json]:
    return {
        "form": fit.form,
        "parameters": {name: finite(value) for name, value in fit.parameters.items()},
        "error_ratio": finite(fit.mape_ratio),
        "held_out_error_ratio": finite(fit.held_out_mape_ratio),
        "caveats": list(fit.caveats),
    }


def _recommendation(advice: Recommendation) -> dict[str, Json]:
    return {
        "changes": advice.changes,
        "reason": advice.reason,
        "layout": _layout(advice.best.layout),
        "gain_ratio": _spread(advice.gain_ratio),
        "better_probability": advice.better_probability,
        "best_probability": advice.best_probability,
        "regret_ratio": finite(advice.regret_ratio),
        "doubts": [{"source": each.source, "spread_ratio": finite(each.spread_ratio)} for each in advice.doubts],
    }


def _forecast(outlook: Outlook, forecast: Forecast) -> dict[str, Json]:
    staleness, state = forecast.staleness, forecast.state
    drawn = forecast.drawn_tokens_per_s
    return {
        "layout": _layout(forecast.layout),
        "excluded": forecast.excluded,
        "tokens_per_s": finite(forecast.tokens_per_s),
        "interval_tokens_per_s": None if drawn is None else _spread(Spread.of(drawn)),
        "gain_ratio": _gain(outlook, forecast),
        "regime": None if state is None else state.regime,
        "step_s": None if state is None else finite(state.step_s),
        "running": None if state is None else finite(state.running),
        "staleness_token_mean": None if staleness is None else finite(staleness.token_mean),
        "staleness_sample_p95": None if staleness is None else staleness.sample_p95,
        "staleness_sample_max": None if staleness is None else staleness.sample_max,
        "grade": forecast.grade,
    }


def _gain(outlook: Outlook, forecast: Forecast) -> Json:
    """Over today's layout; without an interval where the layout was not drawn."""
    gain = advice.gain_of(outlook, forecast)
    if gain is None:
        return None
    drawn = forecast.drawn_tokens_per_s is not None
    return _spread(gain) if drawn else {"median": finite(gain.median), "low": None, "high": None}


def _layout(layout: Layout) -> dict[str, Json]:
    return {
        "trainer_gpus": layout.trainer_gpus,
        "sampler_gpus": layout.sampler_gpus,
        "running_per_engine": layout.running_per_engine,
    }


def _finish(finish: TimeToFinish) -> dict[str, Json]:
    recommended = finish.recommended_hours
    return {
        "remaining_steps": finish.remaining_steps,
        "today_hours": _spread(finish.today_hours),
        "recommended_hours": None if recommended is None else _spread(recommended),
        "today_gpu_hours": finite(finish.gpu_hours(finish.today_hours.median)),
        "today_price": finite(finish.price(finish.today_hours.median)),
        "recommended_gpu_hours": None if recommended is None else finite(finish.gpu_hours(recommended.median)),
        "recommended_price": None if recommended is None else finite(finish.price(recommended.median)),
    }


def _spread(spread: Spread) -> dict[str, Json]:
    return {"median": finite(spread.median), "low": finite(spread.low), "high": finite(spread.high)}
