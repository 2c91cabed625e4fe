"""The model's parts of the analysis document: rate, decode passes, recommendation, time to finish, and details.

If the model could not be fitted to a run, every key is present and null, and `recommendation.why` states which data is
missing.
"""

from collections.abc import Mapping

from rlscope.analysis.result import RunFacts, Throughput
from rlscope.model.decode.curves import Form
from rlscope.model.decode.measurements import Grade
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.gap import GapCause
from rlscope.model.forecast.holdout import ComparedPrediction, PredictedQuantity, Prediction
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
    """The part of the gap that one cause accounts for."""

    cause: GapCause
    """The cause."""
    tokens_per_s: Figure
    """Change of the trained tokens per second due to this cause; negative if it costs throughput."""


class MeasuredRateJson(Document):
    """Measured response tokens per second."""

    achieved_tokens_per_s: Figure
    """Trained response tokens per second, measured over the whole run."""
    steady_tokens_per_s: Figure
    """Trained response tokens per second, measured over the steady state; null if there is none."""
    generated_tokens_per_s: Figure
    """Sampled response tokens per second, measured over the whole run."""
    effective_tokens_per_s: Figure
    """`achieved_tokens_per_s` times the effective sample size over the tokens; null without importance ratios."""
    counted_tokens: int | None
    """Prompt and response tokens of the training steps. Set if no delivery was recorded, because the trained rates then
    count these; null if the rates count response tokens alone."""


class PredictedRateJson(Document):
    """Trained tokens per second, predicted and measured; every key is null if there is no prediction."""

    predicted_tokens_per_s: Figure = None
    """Trained tokens per second predicted from the first half of the steady state; null if that is too short."""
    predicted_low: Figure = None
    """Low end of the 90% interval of `predicted_tokens_per_s`."""
    predicted_high: Figure = None
    """High end of the 90% interval of `predicted_tokens_per_s`."""
    held_out_tokens_per_s: Figure = None
    """Trained tokens per second measured over the second half of the steady state."""
    held_out_low: Figure = None
    """Low end of the 90% interval of `held_out_tokens_per_s`."""
    held_out_high: Figure = None
    """High end of the 90% interval of `held_out_tokens_per_s`."""
    residual_ratio: Figure = None
    """`held_out_tokens_per_s` over `predicted_tokens_per_s`, less 1."""
    agrees: bool | None = None
    """Whether the two intervals overlap."""


class ThroughputJson(PredictedRateJson, MeasuredRateJson):
    """Response tokens per second: measured, predicted, and the gap between the upper bound and the measured rate."""

    bound_tokens_per_s: Figure = None
    """Upper bound of the trained tokens per second of these GPUs at the measured costs."""
    bound_low: Figure = None
    """Low end of the 90% interval of `bound_tokens_per_s`."""
    bound_high: Figure = None
    """High end of the 90% interval of `bound_tokens_per_s`."""
    synchronous_tokens_per_s: Figure = None
    """Modeled trained tokens per second of a synchronous run in which every GPU alternates between sampling and
    training."""
    gap: tuple[GapStepJson, ...] | None = None
    """Steps from the bound down to the steady rate, one per cause: the bound plus all of them is
    `steady_tokens_per_s`."""


class LatencyJson(Document):
    """The fitted time of a decode pass."""

    form: Form | None = None
    """Form of the fitted curve."""
    parameters: Mapping[str, Figure] | None = None
    """Parameters of the curve: times in seconds, batch sizes in requests, all others as ratios."""
    visited_batch_low: Figure = None
    """Smallest batch size that the run measured, in requests."""
    visited_batch_high: Figure = None
    """Largest batch size that the run measured, in requests."""
    grade: Grade | None = None
    """Distance of the current layout's batches from the measured batches."""
    mape_ratio: Figure = None
    """Mean absolute error of the fit divided by the measured time."""
    held_out_mape_ratio: Figure = None
    """Mean absolute error, as in `mape_ratio`, over measurements that were held out of the fit."""
    caveats: tuple[ModelWarning, ...] | None = None
    """Questions that the fit could not settle."""


class AdviceJson(Document):
    """The recommended layout and the reasons for it."""

    action: Advice
    """change: switch to a layout that is at least 90% likely to gain 5% or more. probe: test a layout that may gain 5%.
    keep: no layout is likely to gain 5%. unknown: nothing can be recommended."""
    why: str
    """The reasons, how certain they are, and what would make them more certain. If the action is unknown, the data that
    is missing."""
    reason: Reason | None
    """The reason as one word."""
    headline: str | None
    """The advice in one short sentence."""
    current: ModelledLayoutJson | None
    """The current layout; null for a plan that names none."""
    best: CandidateJson | None
    """The layout to switch to or to test. If the action is keep, the current layout; null if it is unknown."""
    alternative: CandidateJson | None
    """If the action is change, a faster layout with staler samples or weaker evidence; null if there is none. In a plan
    that keeps the current layout, the best of the other layouts."""
    probability_better: Figure
    """Probability, 0 to 1, that `best` is faster than the current layout; null if the action is keep or unknown."""
    probability_worthwhile: Figure
    """Probability, 0 to 1, that `best` gains 5% or more. If the action is keep, the same probability for the best of
    the other layouts; null if the action is unknown."""
    regret_ratio: Figure
    """Mean gain forgone by keeping the layout, as a ratio of the trained tokens per second."""


class UncertaintyJson(Document):
    """One source of the uncertainty of the gain."""

    source: UncertaintySource
    """The part of the model that is uncertain."""
    spread_ratio: Figure
    """Half the width of the gain's 90% interval if only this source is uncertain."""


class RecommendationJson(AdviceJson):
    """The recommended layout and every layout that was evaluated."""

    doubts: tuple[UncertaintyJson, ...]
    """Where the uncertainty of the gain comes from, the largest source first."""
    candidates: tuple[CandidateJson, ...]
    """Every layout that was evaluated, the fastest first, excluded layouts last. If the action is keep or unknown, the
    gains of the other layouts are null: none is likely to gain 5%, or the gains are unknown."""


class HoursJson(Document):
    """Duration of the remaining steps in one layout."""

    hours: Figure
    """Hours that the remaining steps take."""
    low: Figure
    """Low end of the 90% interval of `hours`."""
    high: Figure
    """High end of the 90% interval of `hours`."""
    gpu_hours: Figure
    """GPU-hours that the remaining steps take."""
    price: Figure
    """Price of the remaining steps, in the currency of the run's config; null if the config has no price."""


class TimeToFinishJson(Document):
    """Duration of the rest of the run."""

    remaining_steps: int | None = None
    """Optimizer steps left; null if the run does not state its number of steps, or has finished them."""
    current: HoursJson | None = None
    """Duration in the current layout."""
    best: HoursJson | None = None
    """Duration in the recommended layout."""


class ComparedJson(Document):
    """A quantity predicted from the first half of the steady state and measured over the second."""

    predicted: Figure
    """The prediction, in the unit of the quantity's name."""
    predicted_low: Figure
    """Low end of the 90% interval of `predicted`."""
    predicted_high: Figure
    """High end of the 90% interval of `predicted`."""
    judged: Figure
    """The measured value, in the unit of the quantity's name."""
    held_out_low: Figure
    """Low end of the 90% interval of `judged`."""
    held_out_high: Figure
    """High end of the 90% interval of `judged`."""
    residual_ratio: Figure
    """`judged` over `predicted`, less 1."""
    agrees: bool
    """Whether the two intervals overlap."""


class PreemptionsJson(Document):
    """Cost of preemptions in this run."""

    achieved: PreemptionJson
    """Measured over the steady state."""
    predicted: PreemptionJson
    """Forecast by the model for the current layout."""
    grade: Grade | None
    """Distance of that forecast from the decode batches that the run measured."""


class ObservableJson(Document):
    """One quantity of the current layout, measured over the steady state and replayed by the model."""

    name: ObservableName
    """The quantity."""
    unit: ObservableUnit
    """Unit of both values; a ratio is a share of time, 0 to 1."""
    measured: Figure
    """The measured value; null if it was not recorded."""
    replayed: Figure
    """The model's value; null if the method does not compute this quantity."""
    misfit_ratio: Figure
    """`replayed` over `measured`, less 1; null for shares and versions."""
    difference: Figure
    """`replayed` minus `measured`."""


class SchedulingJson(Document):
    """Scheduling of rollouts in the model."""

    delivery: Delivery
    """Unit that is put in the queue: a whole group or a single sample."""
    queue_order: QueueOrder
    """Order in which the trainer takes samples from the queue."""
    dispatch: Dispatch
    """Component that assigns samples to the engines."""
    dequeue: Taking
    """Way in which the trainers take samples from the queue."""
    queue_policy: QueuePolicy
    """Effect of a full queue on new samples."""
    max_staleness: int | None
    """Cap on the staleness of the oldest token, in versions; null if there is no cap."""
    staleness_policy: StalenessPolicy | None
    """Policy that enforces that cap; null if there is no cap."""
    in_flight_until_trained: bool
    """Whether a limit on samples in flight counts samples until their training step ends."""


class TriedJson(Document):
    """A scheduling that is consistent with the facts of the run."""

    scheduling: SchedulingJson
    """The scheduling."""
    misfit: Figure
    """Root mean square of the differences, each divided by its tolerance; null if the model cannot run this
    scheduling."""
    rate_misfit_ratio: Figure
    """Replayed over measured trained tokens per second, less 1."""


class ReplayJson(Document):
    """The current layout as the model replays it, beside its measurements over the steady state."""

    explains: bool
    """Whether the replayed rate is within 10% of the measured one."""
    rate_misfit_ratio: Figure
    """Replayed over measured trained tokens per second, less 1."""
    method: ReplayMethod
    """Method of the replay."""
    compared: tuple[ObservableJson, ...]
    """All quantities that were compared."""
    out_of_tolerance: tuple[ObservableName, ...]
    """Quantities beyond their tolerance, the largest deviation first."""
    scheduling: SchedulingJson
    """The scheduling that fits the run best. The model uses it for every layout."""
    candidates: tuple[TriedJson, ...]
    """All schedulings that were tried, starting with the one in use."""


class ModelJson(Document):
    """Further results of the model; every key is null if the model could not be fitted."""

    synchronous: bool | None = None
    """Whether the run is synchronous: samplers and trainers wait for each other at every step."""
    calibrated_steps: int | None = None
    """Optimizer steps that the prediction is calibrated on."""
    held_out_steps: int | None = None
    """Optimizer steps that the prediction is compared with."""
    judged: Mapping[PredictedQuantity, ComparedJson] | None = None
    """Predicted quantities other than the rate, by name."""
    efficient_running: int | None = None
    """Smallest batch, in requests, that decodes at 90% of the rate that the limit on running requests allows."""
    efficient_decoding_ratio: Figure = None
    """Share of the decoding time, 0 to 1, that the same tokens would have taken in batches of that size."""
    simulated_layouts: int | None = None
    """Number of layouts whose forecast comes from the event simulation."""
    batches_ahead: Figure = None
    """Prefetched batches: batches that the trainers hold in addition to the one in training."""
    preemption: PreemptionsJson | None = None
    """Measured and predicted cost of preemptions."""
    cautions: tuple[ModelWarning, ...] | None = None
    """Warnings about the model of this run."""
    notes: tuple[ModelWarning, ...] | None = None
    """Assumptions that the model makes because the run does not show the facts."""
    training_scaling: TrainingScalingJson | None = None
    """Scaling of training with the number of trainer GPUs."""
    replay: ReplayJson | None = None
    """The current layout as the model replays it, beside its measurements."""


def throughput_json(throughput: Throughput, model: ModelResult | NoModelResult) -> ThroughputJson:
    """Return the measured rates with the model's predictions, bounds and gap."""
    measured = MeasuredRateJson.read(throughput)
    if isinstance(model, NoModelResult):
        return ThroughputJson(**dict(measured))
    return ThroughputJson(
        **dict(measured),
        **dict(_predicted_rate(model.prediction)),
        bound_tokens_per_s=model.gap.bound_tokens_per_s,
        bound_low=model.gap.bound_spread.low,
        bound_high=model.gap.bound_spread.high,
        synchronous_tokens_per_s=model.synchronous_tokens_per_s,
        # The unary minus would turn a loss of 0.0 into -0.0.
        gap=tuple(GapStepJson(cause=step.cause, tokens_per_s=0.0 - step.lost_tokens_per_s) for step in model.gap.steps),
    )


def _predicted_rate(prediction: Prediction | None) -> PredictedRateJson:
    rate = None if prediction is None else _compared_by_name(prediction).get("tokens_per_s")
    if rate is None:
        return PredictedRateJson()
    return PredictedRateJson(
        predicted_tokens_per_s=rate.predicted.value,
        predicted_low=rate.predicted.low,
        predicted_high=rate.predicted.high,
        held_out_tokens_per_s=rate.achieved.value,
        held_out_low=rate.achieved.low,
        held_out_high=rate.achieved.high,
        residual_ratio=rate.residual_ratio,
        agrees=rate.agrees,
    )


def _compared_by_name(prediction: Prediction) -> Mapping[PredictedQuantity, ComparedPrediction]:
    return {each.quantity: each for each in prediction.compared}


def latency_json(model: ModelResult | NoModelResult) -> LatencyJson:
    """Return the fitted curve of decode passes."""
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
    """Return the recommended layout beside the current one, or the reason why the model could not be fitted."""
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
        trainer_gpus=run.trainer_gpus,
        sampler_gpus=run.sampler_gpus,
        max_running=None,
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
    """Return the duration of the remaining steps in the current and in the recommended layout."""
    finish = model.finish if isinstance(model, ModelResult) else None
    if finish is None:
        return TimeToFinishJson()
    current, recommended = _hours(finish, finish.today_hours), finish.recommended_hours
    return TimeToFinishJson(
        remaining_steps=finish.remaining_steps,
        current=current,
        best=current if recommended is None else _hours(finish, recommended),
    )


def _hours(finish: TimeToFinish, hours: Estimate) -> HoursJson:
    return HoursJson(
        hours=hours.value,
        low=hours.low,
        high=hours.high,
        gpu_hours=finish.gpu_hours(hours.value),
        price=finish.price(hours.value),
    )


def model_json(model: ModelResult | NoModelResult) -> ModelJson:
    """Return the model's further results."""
    if isinstance(model, NoModelResult):
        return ModelJson()
    prediction, efficiency = model.prediction, model.efficiency
    return ModelJson(
        synchronous=model.calibration.synchronous,
        calibrated_steps=None if prediction is None else prediction.calibrated_steps,
        held_out_steps=None if prediction is None else prediction.held_out_steps,
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
        out_of_tolerance=tuple(each.name for each in replay.off),
        scheduling=_scheduling(replay.scheduling),
        candidates=tuple(
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
        dequeue=settings.taking,
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
    """Return the predicted quantities other than the rate, which is part of `throughput`."""
    by_name = _compared_by_name(prediction)
    return {name: _compared(each) for name, each in by_name.items() if name != "tokens_per_s"}


def _compared(compared: ComparedPrediction) -> ComparedJson:
    predicted, achieved = compared.predicted, compared.achieved
    return ComparedJson(
        predicted=predicted.value,
        predicted_low=predicted.low,
        predicted_high=predicted.high,
        judged=achieved.value,
        held_out_low=achieved.low,
        held_out_high=achieved.high,
        residual_ratio=compared.residual_ratio,
        agrees=compared.agrees,
    )
