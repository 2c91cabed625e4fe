"""The model's parts of the analysis document: rate, decode pass, recommendation, time to finish, and what else it says.

If the model could not be fitted to a run, every key is there and null, and `recommendation.why` says what is missing.
"""

from collections.abc import Mapping

from rlscope.analysis.result import RunFacts, Throughput
from rlscope.model.decode.curves import Form
from rlscope.model.decode.measurements import Grade
from rlscope.model.forecast.gap import GapCause
from rlscope.model.forecast.holdout import Compared, PredictedQuantity, Prediction
from rlscope.model.forecast.layouts import Spread
from rlscope.model.forecast.recommend import Advice, Reason, UncertaintySource, fastest_probabilities
from rlscope.model.forecast.replay import ObservableName, ObservableUnit, Replay, ReplayMethod, Scheduling
from rlscope.model.forecast.result import ModelResult, NoModelResult, TimeToFinish
from rlscope.model.policies import Delivery, Dispatch, QueueOrder, QueuePolicy, StalenessPolicy, Taking
from rlscope.model.warnings import ModelWarning
from rlscope.reports.documents import Document, Figure
from rlscope.reports.documents.layouts import (
    CandidateJson,
    ModelledLayoutJson,
    PreemptionJson,
    TrainingScalingJson,
    candidate_of_run_json,
    candidates_of,
    modelled_layout_json,
    preemption_json,
    scaling_json,
)
from rlscope.reports.text import advice


class GapStepJson(Document):
    """What one cause changes of the rate."""

    cause: GapCause
    """The cause."""
    tokens_per_s: Figure
    """Change of the trained tokens per second by this cause; below 0 where it costs."""


class MeasuredRateJson(Document):
    """Response tokens per second, measured."""

    achieved_tokens_per_s: Figure
    """Trained response tokens per second, measured over the whole run."""
    steady_tokens_per_s: Figure
    """Trained response tokens per second, measured over the steady window; null without one."""
    generated_tokens_per_s: Figure
    """Sampled response tokens per second, measured over the whole run."""
    effective_tokens_per_s: Figure
    """`achieved_tokens_per_s` times the effective sample size over the tokens; null without importance ratios."""
    counted_tokens: int | None
    """Prompt and response tokens of the training steps, where no delivery was recorded and the trained rates count
    these; null where they count response tokens alone."""


class PredictedRateJson(Document):
    """Trained tokens per second, predicted and measured; every key is null without a prediction."""

    predicted_tokens_per_s: Figure = None
    """Trained tokens per second predicted from the first half of the steady window; null if that is too short."""
    predicted_low: Figure = None
    """Low end of the 90% interval of `predicted_tokens_per_s`."""
    predicted_high: Figure = None
    """High end of the 90% interval of `predicted_tokens_per_s`."""
    judged_tokens_per_s: Figure = None
    """Trained tokens per second measured over the second half of the steady window."""
    judged_low: Figure = None
    """Low end of the 90% interval of `judged_tokens_per_s`."""
    judged_high: Figure = None
    """High end of the 90% interval of `judged_tokens_per_s`."""
    residual_ratio: Figure = None
    """`judged_tokens_per_s` over `predicted_tokens_per_s`, less 1."""
    agrees: bool | None = None
    """Whether the two intervals overlap."""


class ThroughputJson(PredictedRateJson, MeasuredRateJson):
    """Response tokens per second: as achieved, as predicted, and the way from the upper bound to what was achieved."""

    bound_tokens_per_s: Figure = None
    """Upper bound of the trained tokens per second of these GPUs at measured costs."""
    bound_low: Figure = None
    """Low end of the 90% interval of `bound_tokens_per_s`."""
    bound_high: Figure = None
    """High end of the 90% interval of `bound_tokens_per_s`."""
    sync_tokens_per_s: Figure = None
    """Trained tokens per second, modelled, of a synchronous run in which every GPU samples and then trains."""
    gap: tuple[GapStepJson, ...] | None = None
    """From the bound to the steady rate, cause by cause: the bound plus all of them is `steady_tokens_per_s`."""


class LatencyJson(Document):
    """The fitted time of a decode pass."""

    form: Form | None = None
    """Form of the fitted curve."""
    parameters: Mapping[str, Figure] | None = None
    """Parameters of the curve: times in seconds, batch sizes in requests, the rest ratios."""
    visited_batch_low: Figure = None
    """Smallest batch size that the run measured, in requests."""
    visited_batch_high: Figure = None
    """Largest batch size that the run measured, in requests."""
    grade: Grade | None = None
    """How far the batches of the layout in use are from those measured."""
    mape_ratio: Figure = None
    """Mean absolute error of the fit over the measured time, as a ratio."""
    held_out_mape_ratio: Figure = None
    """The same for measurements that the fit had not seen."""
    caveats: tuple[ModelWarning, ...] | None = None
    """What the fit could not settle."""


class AdviceJson(Document):
    """Which layout to use, and why."""

    action: Advice
    """change: to a layout that is at least 90% likely to bring 5% or more. probe: try one that may. keep: none is
    likely to bring 5%. unknown: nothing can be recommended."""
    why: str
    """Why, how sure that is, and what would make it surer; what is missing where the action is unknown."""
    reason: Reason | None
    """Why, as one word."""
    headline: str | None
    """The advice in one short sentence."""
    current: ModelledLayoutJson | None
    """The layout in use; null for a plan that names none."""
    best: CandidateJson | None
    """The layout to change to, or to try; the one in use where the action is keep; null where it is unknown."""
    alternative: CandidateJson | None
    """Where the action is change, a layout that is faster still, and staler or less sure; null without one. In a plan
    that keeps the layout in use, the best of the others."""
    probability_better: Figure
    """Probability, 0 to 1, that `best` is faster than the current layout; null where the action is keep or unknown."""
    probability_worthwhile: Figure
    """Probability, 0 to 1, that `best`, or the best of the other layouts where the action is keep, brings 5% or more;
    null where the action is unknown."""
    regret_ratio: Figure
    """Gain forgone on average by keeping the layout, as a ratio of the trained tokens per second."""


class UncertaintyJson(Document):
    """One source of the uncertainty of the gain."""

    source: UncertaintySource
    """The part of the model that is uncertain."""
    spread_ratio: Figure
    """Half of the width of the gain's 90% interval if this alone is uncertain."""


class RecommendationJson(AdviceJson):
    """The recommended layout, and every layout that was looked at."""

    doubts: tuple[UncertaintyJson, ...]
    """Where the uncertainty of the gain comes from, the largest source first."""
    candidates: tuple[CandidateJson, ...]
    """Every layout that was looked at, the fastest first, those that cannot be used last. Where the action is keep or
    unknown, the gains of the others are null: none is likely to bring 5%, or none is known."""


class HoursJson(Document):
    """How long the remaining steps take in one layout."""

    hours: Figure
    """Hours that the remaining steps take."""
    low: Figure
    """Low end of the 90% interval of `hours`."""
    high: Figure
    """High end of the 90% interval of `hours`."""
    gpu_hours: Figure
    """GPU-hours that the remaining steps take."""
    price: Figure
    """What they cost, in the currency of the run's config; null if that has no price."""


class TimeToFinishJson(Document):
    """How long the rest of the run takes."""

    remaining_steps: int | None = None
    """Optimizer steps left; null if the run does not say how many it has, or has made them all."""
    current: HoursJson | None = None
    """In the layout in use."""
    best: HoursJson | None = None
    """In the recommended layout."""


class ComparedJson(Document):
    """A quantity as predicted from the first half of the steady window and as measured over the second."""

    predicted: Figure
    """The prediction, in the unit of the quantity's name."""
    predicted_low: Figure
    """Low end of the 90% interval of `predicted`."""
    predicted_high: Figure
    """High end of the 90% interval of `predicted`."""
    judged: Figure
    """The measured value, in the unit of the quantity's name."""
    judged_low: Figure
    """Low end of the 90% interval of `judged`."""
    judged_high: Figure
    """High end of the 90% interval of `judged`."""
    residual_ratio: Figure
    """`judged` over `predicted`, less 1."""
    agrees: bool
    """Whether the two intervals overlap."""


class PreemptionsJson(Document):
    """What preemptions cost the run."""

    achieved: PreemptionJson
    """As counted over the steady window."""
    predicted: PreemptionJson
    """As the model expects of the layout in use."""
    grade: Grade | None
    """How far that forecast is from the decode batches that the run measured."""


class ObservableJson(Document):
    """One quantity of the layout in use, measured over the steady window and replayed by the model."""

    name: ObservableName
    """The quantity."""
    unit: ObservableUnit
    """Unit of both values; a ratio is a share of time, 0 to 1."""
    measured: Figure
    """Measured; null if it was not recorded."""
    replayed: Figure
    """By the model; null if the method does not know it."""
    misfit_ratio: Figure
    """`replayed` over `measured`, less 1; null for shares and versions."""
    difference: Figure
    """`replayed` less `measured`."""


class SchedulingJson(Document):
    """How rollouts are scheduled, as the model has it."""

    delivery: Delivery
    """What is queued as one: whole groups or single samples."""
    queue_order: QueueOrder
    """What the trainer takes first."""
    dispatch: Dispatch
    """Who gives samples to the engines."""
    taking: Taking
    """How the trainers take what they wait for."""
    queue_policy: QueuePolicy
    """What a full queue does."""
    max_staleness: int | None
    """Cap on the staleness of the oldest token, in versions; null where none is kept."""
    staleness_policy: StalenessPolicy | None
    """How that cap is kept; null where none is."""
    in_flight_until_trained: bool
    """Whether a limit in flight counts samples until their training step ends."""


class TriedJson(Document):
    """A scheduling that the facts of the run allow."""

    scheduling: SchedulingJson
    """The scheduling."""
    misfit: Figure
    """Root mean square of the differences, each in its tolerance; null where the model cannot run it."""
    rate_misfit_ratio: Figure
    """Replayed over measured trained tokens per second, less 1."""


class ReplayJson(Document):
    """The layout in use as the model has it, beside what was measured over the steady window."""

    explains: bool
    """Whether the replayed rate is within 10% of the measured one."""
    rate_misfit_ratio: Figure
    """Replayed over measured trained tokens per second, less 1."""
    method: ReplayMethod
    """How the layout was replayed."""
    compared: tuple[ObservableJson, ...]
    """Every quantity."""
    off: tuple[ObservableName, ...]
    """Quantities beyond their tolerance, the furthest off first."""
    scheduling: SchedulingJson
    """The scheduling that fits the run best; it is used for every layout."""
    tried: tuple[TriedJson, ...]
    """Every scheduling that was tried, the one used first."""


class ModelJson(Document):
    """What else the model says; every key is null where it could not be fitted."""

    synchronous: bool | None = None
    """Whether the run is synchronous: samplers and trainers wait for each other at every step."""
    calibrated_steps: int | None = None
    """Optimizer steps that the prediction is calibrated on."""
    judged_steps: int | None = None
    """Optimizer steps that the prediction is compared with."""
    judged: Mapping[PredictedQuantity, ComparedJson] | None = None
    """What was predicted besides the rate, by quantity."""
    efficient_running: int | None = None
    """Smallest batch, in requests, that decodes at 90% of the rate at the limit."""
    efficient_decoding_ratio: Figure = None
    """Share of the decoding time, 0 to 1, that the same tokens would have taken in such batches."""
    simulated_layouts: int | None = None
    """Number of layouts whose forecast comes from the event simulation."""
    batches_ahead: Figure = None
    """Prefetched batches: those that the trainers hold besides the one they train on."""
    preemption: PreemptionsJson | None = None
    """What preemptions cost, and were expected to."""
    cautions: tuple[ModelWarning, ...] | None = None
    """Warnings about the model of this run."""
    notes: tuple[ModelWarning, ...] | None = None
    """What was assumed because the run does not show it."""
    training_scaling: TrainingScalingJson | None = None
    """How training scales with the number of trainer GPUs."""
    replay: ReplayJson | None = None
    """The layout in use as the model has it, beside what was measured."""


def throughput_json(throughput: Throughput, model: ModelResult | NoModelResult) -> ThroughputJson:
    """What was achieved, and beside it what the model predicts, bounds and explains."""
    measured = MeasuredRateJson.read(throughput)
    if isinstance(model, NoModelResult):
        return ThroughputJson(**dict(measured))
    return ThroughputJson(
        **dict(measured),
        **dict(_predicted_rate(model.prediction)),
        bound_tokens_per_s=model.gap.bound_tokens_per_s,
        bound_low=model.gap.bound_spread.low,
        bound_high=model.gap.bound_spread.high,
        sync_tokens_per_s=model.synchronous_tokens_per_s,
        # A loss of 0.0 turned round by its sign alone would be written -0.0.
        gap=tuple(GapStepJson(cause=step.cause, tokens_per_s=0.0 - step.lost_tokens_per_s) for step in model.gap.steps),
    )


def _predicted_rate(prediction: Prediction | None) -> PredictedRateJson:
    rate = None if prediction is None else _compared_by_name(prediction).get("tokens_per_s")
    if rate is None:
        return PredictedRateJson()
    return PredictedRateJson(
        predicted_tokens_per_s=rate.predicted.median,
        predicted_low=rate.predicted.low,
        predicted_high=rate.predicted.high,
        judged_tokens_per_s=rate.achieved.value,
        judged_low=rate.achieved.low,
        judged_high=rate.achieved.high,
        residual_ratio=rate.residual_ratio,
        agrees=rate.agrees,
    )


def _compared_by_name(prediction: Prediction) -> Mapping[PredictedQuantity, Compared]:
    return {each.quantity: each for each in prediction.compared}


def latency_json(model: ModelResult | NoModelResult) -> LatencyJson:
    """The fitted curve of decode passes."""
    if isinstance(model, NoModelResult):
        return LatencyJson()
    fit = model.calibration.curve
    visited = fit.visited
    return LatencyJson(
        form=fit.form,
        parameters=fit.parameters,
        visited_batch_low=None if visited is None else visited.batch_low,
        visited_batch_high=None if visited is None else visited.batch_high,
        grade=model.forecasts.today.grade,
        mape_ratio=fit.mape_ratio,
        held_out_mape_ratio=fit.held_out_mape_ratio,
        caveats=fit.warnings,
    )


def recommendation_json(model: ModelResult | NoModelResult, run: RunFacts) -> RecommendationJson:
    """The recommended layout beside the one in use; where the model says nothing, why."""
    if isinstance(model, NoModelResult):
        return _no_recommendation(model, run)
    advised, forecasts = model.recommendation, model.forecasts
    odds, is_open = fastest_probabilities(forecasts), advised.advice in ("change", "probe")
    best = {"keep": forecasts.today, "unknown": None}.get(advised.advice, advised.best)
    other = (advised.staler or advised.untried) if advised.changes else None
    return RecommendationJson(
        action=advised.advice,
        why=advice.why(model),
        reason=advised.reason,
        headline=advice.headline(model),
        current=modelled_layout_json(forecasts.today, forecasts.today),
        best=None if best is None else candidate_of_run_json(model, best, odds),
        alternative=None if other is None else candidate_of_run_json(model, other, odds),
        probability_better=advised.better_probability if is_open else None,
        probability_worthwhile=None if advised.advice == "unknown" else advised.worthwhile_probability,
        regret_ratio=advised.regret_ratio,
        doubts=tuple(UncertaintyJson.read(each) for each in advised.uncertainties),
        candidates=candidates_of(model),
    )


def _no_recommendation(model: NoModelResult, run: RunFacts) -> RecommendationJson:
    current = ModelledLayoutJson(
        n_train_gpus=run.trainer_gpus,
        n_sample_gpus=run.sampler_gpus,
        max_running_per_engine=None,
        tokens_per_s=None,
        staleness_mean=None,
        staleness_max=None,
    )
    return RecommendationJson(
        action="unknown",
        why=model.reason,
        reason=None,
        headline=None,
        current=current,
        best=None,
        alternative=None,
        probability_better=None,
        probability_worthwhile=None,
        regret_ratio=None,
        doubts=(),
        candidates=(),
    )


def time_to_finish_json(model: ModelResult | NoModelResult) -> TimeToFinishJson:
    """The remaining steps in the layout in use, and in the recommended one."""
    finish = model.finish if isinstance(model, ModelResult) else None
    if finish is None:
        return TimeToFinishJson()
    current, recommended = _hours(finish, finish.today_hours), finish.recommended_hours
    return TimeToFinishJson(
        remaining_steps=finish.remaining_steps,
        current=current,
        best=current if recommended is None else _hours(finish, recommended),
    )


def _hours(finish: TimeToFinish, hours: Spread) -> HoursJson:
    return HoursJson(
        hours=hours.median,
        low=hours.low,
        high=hours.high,
        gpu_hours=finish.gpu_hours(hours.median),
        price=finish.price(hours.median),
    )


def model_json(model: ModelResult | NoModelResult) -> ModelJson:
    """What else the model says."""
    if isinstance(model, NoModelResult):
        return ModelJson()
    prediction, efficiency = model.prediction, model.efficiency
    return ModelJson(
        synchronous=model.calibration.synchronous,
        calibrated_steps=None if prediction is None else prediction.calibrated_steps,
        judged_steps=None if prediction is None else prediction.judged_steps,
        judged=None if prediction is None else _judged(prediction),
        efficient_running=None if efficiency is None else efficiency.efficient_running,
        efficient_decoding_ratio=None if efficiency is None else efficiency.efficient_time_ratio,
        simulated_layouts=model.simulated_layouts,
        batches_ahead=model.model_config.prefetched_batches,
        preemption=_preemptions(model),
        cautions=model.warnings,
        notes=model.calibration.warnings,
        training_scaling=scaling_json(model),
        replay=_replay(model.replay),
    )


def _replay(replay: Replay) -> ReplayJson:
    return ReplayJson(
        explains=replay.explains,
        rate_misfit_ratio=replay.rate_misfit_ratio,
        method=replay.method,
        compared=tuple(ObservableJson.read(each) for each in replay.compared),
        off=tuple(each.name for each in replay.off),
        scheduling=_scheduling(replay.scheduling),
        tried=tuple(
            TriedJson(
                scheduling=_scheduling(each.scheduling),
                misfit=each.misfit,
                rate_misfit_ratio=each.rate_misfit_ratio,
            )
            for each in replay.tried
        ),
    )


def _scheduling(scheduling: Scheduling) -> SchedulingJson:
    settings, admission = scheduling.settings, scheduling.admission
    return SchedulingJson(
        delivery=scheduling.delivery,
        queue_order=settings.queue_order,
        dispatch=settings.dispatch,
        taking=settings.taking,
        queue_policy=admission.queue_policy,
        max_staleness=admission.max_staleness,
        staleness_policy=None if admission.max_staleness is None else admission.staleness_policy,
        in_flight_until_trained=admission.in_flight_until_trained,
    )


def _preemptions(model: ModelResult) -> PreemptionsJson:
    today = model.forecasts.today
    return PreemptionsJson(
        achieved=preemption_json(model.preemption),
        predicted=preemption_json(today.preemption),
        grade=None if today.preemption is None else today.grade,
    )


def _judged(prediction: Prediction) -> Mapping[PredictedQuantity, ComparedJson]:
    """What was predicted besides the rate, which `throughput` holds."""
    by_name = _compared_by_name(prediction)
    return {name: _compared(each) for name, each in by_name.items() if name != "tokens_per_s"}


def _compared(compared: Compared) -> ComparedJson:
    predicted, achieved = compared.predicted, compared.achieved
    return ComparedJson(
        predicted=predicted.median,
        predicted_low=predicted.low,
        predicted_high=predicted.high,
        judged=achieved.value,
        judged_low=achieved.low,
        judged_high=achieved.high,
        residual_ratio=compared.residual_ratio,
        agrees=compared.agrees,
    )
