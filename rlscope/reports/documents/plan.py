"""The answer to a plan as a JSON document, in the shapes of an analysis."""

from typing import Literal

from pydantic import ConfigDict

from rlscope.model.estimate import Estimate
from rlscope.model.forecast.layouts import Forecast
from rlscope.model.forecast.plan import PlanResult, PoorScaling, UnknownCost, gain_over, hours_of
from rlscope.planning.schema import PlanFile
from rlscope.reports.documents import SCHEMA_VERSION, Document, Figure
from rlscope.reports.documents.layouts import NO_GAIN, CandidateJson, candidate_json, modelled_layout_json
from rlscope.reports.documents.model import AdviceJson
from rlscope.reports.text import plan as plan_words


class RunTimeJson(Document):
    """Duration and cost of the planned run in the recommended layout."""

    steps: int
    """Optimizer steps in the plan."""
    hours: Estimate
    """Hours for these steps."""
    gpu_hours: Figure
    """GPU-hours for these steps, at the median."""
    price: Figure
    """Price of these GPU-hours, at the median; null if the plan has no price."""
    currency: str | None
    """Currency of the price; null if the plan has none."""


class AskedLayoutJson(CandidateJson):
    """The layout passed with --layout. Its gain is over the recommended one; its rates are null if it cannot run."""

    trainer_idle_ratio: Figure
    """Share of trainer time, 0 to 1, without work on a batch. Publishing weights counts as idle."""
    sampler_idle_ratio: Figure
    """Share of engine time, 0 to 1, without a decode pass or a prefill."""
    simulated: bool
    """Whether its forecast comes from the event simulation."""


class PlanDocument(Document):
    """Output of `rlscope plan --json`: the layout to start with, all candidates, and what the answer depends on."""

    model_config = ConfigDict(title="rlscope plan --json")

    schema_version: Literal[1]
    """Version of this contract."""
    recommendation: AdviceJson
    """The layout to start with. If the plan names a current layout, whether to keep it."""
    candidates: tuple[CandidateJson, ...]
    """The best layout for each split of the GPUs, the fastest first, excluded layouts last."""
    asked: AskedLayoutJson | None
    """The layout passed with --layout, compared with the recommended one; null without --layout."""
    bound_tokens_per_s: Figure
    """Upper bound of the trained tokens per second of these GPUs."""
    synchronous_tokens_per_s: Figure
    """Trained tokens per second of a synchronous run in which every GPU alternates between sampling and training; null
    if such a run does not fit."""
    safe_running_per_engine: Figure
    """Number of requests that fit in an engine's KV cache without preemptions."""
    kv_capacity_tokens: Figure
    """Number of tokens that fit in an engine's KV cache."""
    time_to_finish: RunTimeJson | None
    """Duration of the run; null if the plan has no number of steps or no layout can be used."""
    scaling: PoorScaling | None
    """A smaller number of GPUs that would train nearly as fast; null if all GPUs are used well."""
    unknowns: tuple[UnknownCost, ...]
    """Uncertain quantities, starting with the one most worth measuring."""
    assumptions: tuple[str, ...]
    """Assumptions behind the answer, one sentence each."""
    simulated_layouts: int
    """Number of layouts whose forecast comes from the event simulation."""


def plan_document(planned: PlanResult, file: PlanFile) -> PlanDocument:
    """Return the recommended layout, all candidates, their bounds, and what the answer depends on."""
    turns = planned.synchronous
    return PlanDocument(
        schema_version=SCHEMA_VERSION,
        recommendation=_recommendation(planned),
        candidates=tuple(_candidate(planned, each) for each in planned.candidates),
        asked=None if planned.asked is None else _asked(planned, planned.asked),
        bound_tokens_per_s=planned.bound.trained_tokens_per_s,
        synchronous_tokens_per_s=None if turns is None else turns.trained_tokens_per_s,
        safe_running_per_engine=planned.kv_running,
        kv_capacity_tokens=planned.plan.kv_capacity_tokens,
        time_to_finish=_run_time(planned, file),
        scaling=planned.scaling,
        unknowns=planned.unknown_costs,
        assumptions=tuple(plan_words.assumption_lines(planned)),
        simulated_layouts=len(planned.simulated),
    )


def _recommendation(planned: PlanResult) -> AdviceJson:
    best, present, advised = planned.best, planned.present, planned.advice
    other = None if advised is None or advised.changes else advised.best
    return AdviceJson(
        action="unknown" if best is None else "keep" if best is present else "change",
        why=" ".join(plan_words.why(planned)),
        reason=None if advised is None else advised.reason,
        headline=plan_words.headline(planned),
        current=None if present is None else modelled_layout_json(present),
        best=None if best is None else _candidate(planned, best),
        alternative=None if other is None or other is present else _candidate(planned, other),
        probability_better=None if advised is None else advised.better_probability,
        probability_worthwhile=None if advised is None else advised.worthwhile_probability,
        regret_ratio=None if advised is None else advised.regret_ratio,
    )


def _candidate(planned: PlanResult, forecast: Forecast) -> CandidateJson:
    gain = NO_GAIN if forecast is planned.present else gain_over(forecast, planned.present)
    return candidate_json(planned.calibration, forecast, planned.present, gain, planned.best_probability)


def _asked(planned: PlanResult, forecast: Forecast) -> AskedLayoutJson:
    timing = forecast.timing
    gain = NO_GAIN if forecast is planned.best else gain_over(forecast, planned.best)
    return AskedLayoutJson(
        **dict(candidate_json(planned.calibration, forecast, planned.best, gain, planned.best_probability)),
        trainer_idle_ratio=None if timing is None else timing.trainer_idle_ratio,
        sampler_idle_ratio=None if timing is None else timing.sampler_idle_ratio,
        simulated=forecast.layout in planned.simulated,
    )


def _run_time(planned: PlanResult, file: PlanFile) -> RunTimeJson | None:
    steps, price = file.batch.total_steps, file.price
    hours = None if steps is None else hours_of(planned, steps)
    if steps is None or hours is None:
        return None
    gpu_hours = hours.value * planned.plan.gpus
    return RunTimeJson(
        steps=steps,
        hours=hours,
        gpu_hours=gpu_hours,
        price=None if price.gpu_hour_price is None else gpu_hours * price.gpu_hour_price,
        currency=price.currency or None,
    )
