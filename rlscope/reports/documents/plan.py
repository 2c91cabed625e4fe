"""The answer to a plan as a JSON document, in the shapes that an analysis has. Its keys are only ever added to."""

from typing import Final

from rlscope.format import finite
from rlscope.model.forecast.layouts import Forecast, Spread
from rlscope.model.forecast.plan import PlanResult, gain_over, hours_of
from rlscope.planning.schema import PlanFile
from rlscope.reports.documents.layouts import NO_GAIN, Json, compared_document, present_document
from rlscope.reports.text import plan as plan_words
from rlscope.reports.text.plan import assumption_lines

SCHEMA_VERSION: Final = 1


def plan_document(planned: PlanResult, file: PlanFile) -> dict[str, Json]:
    """The layout to start with, all candidates, what they are measured by, and what the answer depends on."""
    turns = planned.synchronous
    return {
        "schema_version": SCHEMA_VERSION,
        "recommendation": _recommendation(planned),
        "candidates": [_candidate(planned, each) for each in planned.candidates],
        "bound_tokens_per_s": finite(planned.bound.trained_tokens_per_s),
        "sync_tokens_per_s": None if turns is None else finite(turns.trained_tokens_per_s),
        "safe_running_per_engine": finite(planned.kv_running),
        "kv_capacity_tokens": finite(planned.plan.kv_capacity_tokens),
        "eta": _eta(planned, file),
        "unknowns": [
            {
                "unknown": each.unknown,
                "rate_low_ratio": finite(each.rate_ratio.low),
                "rate_high_ratio": finite(each.rate_ratio.high),
                "regret_ratio": finite(each.regret_ratio),
            }
            for each in planned.unknown_costs
        ],
        "assumptions": list(assumption_lines(planned)),
        "simulated_layouts": len(planned.simulated),
    }


def _recommendation(planned: PlanResult) -> dict[str, Json]:
    best, present, advised = planned.best, planned.present, planned.advice
    other = None if advised is None or advised.changes else advised.best
    return {
        "action": "unknown" if best is None else "keep" if best is present else "change",
        "why": " ".join(plan_words.why(planned)),
        "reason": None if advised is None else advised.reason,
        "headline": plan_words.headline(planned),
        "current": None if present is None else present_document(present),
        "best": None if best is None else _candidate(planned, best),
        "alternative": None if other is None or other is present else _candidate(planned, other),
        "probability_better": None if advised is None else advised.better_probability,
        "regret_ratio": None if advised is None else finite(advised.regret_ratio),
    }


def _candidate(planned: PlanResult, forecast: Forecast) -> dict[str, Json]:
    gain = NO_GAIN if forecast is planned.present else gain_over(forecast, planned.present)
    return compared_document(planned.calibration, forecast, planned.present, gain, planned.best_probability)


def _eta(planned: PlanResult, file: PlanFile) -> Json:
    steps, price = file.batch.steps, file.price
    hours = None if steps is None else hours_of(planned, steps)
    if steps is None or hours is None:
        return None
    gpu_hours = hours.median * planned.plan.gpus
    return {
        "steps": steps,
        "hours": _spread(hours),
        "gpu_hours": finite(gpu_hours),
        "price": None if price.gpu_hour is None else finite(gpu_hours * price.gpu_hour),
        "currency": price.currency or None,
    }


def _spread(spread: Spread) -> dict[str, Json]:
    return {"median": finite(spread.median), "low": finite(spread.low), "high": finite(spread.high)}
