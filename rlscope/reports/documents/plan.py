"""The answer to a plan as a JSON document, in the shapes of an analysis."""

from dataclasses import dataclass

from rlscope.document import Document, extended
from rlscope.model.forecast.layouts import Forecast
from rlscope.model.forecast.plan import PlanResult, PoorScaling, UnknownCost
from rlscope.model.forecast.result import TimeAndCost
from rlscope.planning.schema import PlanFile
from rlscope.reports.documents.model import NO_GAIN, Candidate, RecommendedLayout, candidate, modeled_layout
from rlscope.reports.text import plan as plan_words


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTime(TimeAndCost):
    """Duration and cost of the planned run in the recommended layout."""

    steps: int
    """Optimizer steps in the plan."""
    currency: str | None
    """Currency of the price; None if the plan has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDocument(Document):
    """Output of `rlscope plan --json`: the layout to start with, all candidates, and what the answer depends on."""

    recommendation: RecommendedLayout
    """The layout to start with. If the plan names a current layout, whether to keep it."""
    candidates: tuple[Candidate, ...]
    """The best layout for each split of the GPUs, the fastest first, excluded layouts last."""
    bound_tokens_per_s: float
    """Upper bound of the trained tokens per second of these GPUs."""
    synchronous_tokens_per_s: float | None
    """Trained tokens per second of a synchronous run in which every GPU alternates between sampling and training; None
    if such a run does not fit, or if groups are filtered."""
    safe_running_per_engine: float
    """Number of requests that fit in an engine's KV cache with few preemptions."""
    kv_capacity_tokens: float | None
    """Number of tokens that fit in an engine's KV cache."""
    time_to_finish: PlannedTime | None
    """Duration of the run; None if the plan has no number of steps or no layout can be used."""
    scaling: PoorScaling | None
    """A smaller number of GPUs that would train nearly as fast; None if all GPUs are used well."""
    unknowns: tuple[UnknownCost, ...]
    """Uncertain quantities, starting with the one most worth measuring."""
    assumptions: tuple[str, ...]
    """Assumptions behind the answer, one sentence each."""


def plan_document(planned: PlanResult, file: PlanFile) -> PlanDocument:
    """Return the recommended layout, all candidates, their bounds, and what the answer depends on."""
    turns, time = planned.synchronous, plan_words.time_of(planned, file)
    steps, currency = file.batch.total_steps, file.price.currency or None
    return extended(
        PlanDocument,
        planned,
        planned.plan,
        recommendation=_recommendation(planned),
        candidates=tuple(_candidate(planned, each) for each in planned.candidates),
        synchronous_tokens_per_s=None if turns is None else turns.trained_tokens_per_s,
        safe_running_per_engine=planned.kv_running,
        time_to_finish=time and extended(PlannedTime, time, steps=steps, currency=currency),
        unknowns=planned.unknown_costs,
        assumptions=tuple(plan_words.assumption_lines(planned)),
    )


def _recommendation(planned: PlanResult) -> RecommendedLayout:
    best, present, advised = planned.best, planned.present, planned.advice
    steps_per_version = planned.calibration.steps_per_version
    return RecommendedLayout(
        action="unknown" if best is None else "keep" if best is present else "change",
        why=" ".join(plan_words.why(planned)),
        reason=advised and advised.reason,
        headline=plan_words.headline(planned),
        current=present and modeled_layout(present, None, steps_per_version),
        best=best and _candidate(planned, best),
        probability_worthwhile=advised and advised.worthwhile_probability,
    )


def _candidate(planned: PlanResult, forecast: Forecast) -> Candidate:
    gain = NO_GAIN if forecast is planned.present else forecast.gain_over(planned.present)
    return candidate(forecast, planned.present, planned.calibration.steps_per_version, gain, planned.best_probability)
