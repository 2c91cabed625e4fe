"""Build the model result of a run: prediction, gap, forecasts, recommendation and time to finish.

The recommendation is calibrated on the whole steady state; the prediction that is checked against the run uses only its
first half. The rest of the run is assumed to have steps like those of the steady state. Not covered: checkpoints and
restarts still to come, and the time that a change of layout takes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np

from rlscope.model.analytic.synchronous import colocated_step
from rlscope.model.calibration import Calibration, UncalibratableError, calibrate
from rlscope.model.causes import LossCause
from rlscope.model.decode.curves import Form
from rlscope.model.decode.prior import HardwarePrior
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.gap import BatchEfficiency, Gap, batch_efficiency, explain_gap
from rlscope.model.forecast.holdout import PREDICTED_DRAWS, Prediction, compare, level_log_sd
from rlscope.model.forecast.layouts import (
    SECONDS_PER_HOUR,
    Forecasts,
    Preemption,
    cap_at_trainer_rate,
    measured_staleness,
    preemption_seen,
    scale_to_measured,
    trainer_rate_bound,
)
from rlscope.model.forecast.predict import held_by_auxiliary, predict_layouts
from rlscope.model.forecast.price import Anchor, StalenessForecast
from rlscope.model.forecast.ranking import Ranking, rank_actions
from rlscope.model.forecast.recommend import Grounds, Recommendation, affords, recommend
from rlscope.model.forecast.replay import Replay, Scheduling, replay_run, scheduled
from rlscope.model.hardware.kv_cache import safe_batch, steady_kv_load
from rlscope.model.numerics.bootstrap import ratio_of_sums
from rlscope.model.numerics.changepoints import Drift, drift
from rlscope.model.observed import Observed, OtherRun, TrainerSteps
from rlscope.model.policies import StalenessPolicy
from rlscope.model.system import Granularity, Layout, possible_layouts, running_limits
from rlscope.model.warnings import ModelWarning

STEPS_TO_PREDICT: Final = 20
"""Minimum number of steps to check a prediction: ten to calibrate on and ten to compare. Fewer cannot tell a change in
level from noise."""
_OTHER_BATCHES: Final = 0.5
"""Difference in prefetched batches that contradicts the assumed number: beyond it, another number is nearer."""
_FAILED_ERROR_RATIO: Final = 2.0
"""Error of a model that failed a check on its own run, over the usual one: 90% of the gains are then within 15%, like
predictions without a check (`UNTESTED_LOG`)."""
_SEED: Final = 20_260_101
"""Seed of every draw: the same run gives the same model result."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Inputs of the model besides the run: limits, scheduling, prior, and the user's constraints."""

    candidates: tuple[Scheduling, ...]
    """Schedulings that the run's facts allow, at least one. Before the replay, the first is the most likely one; in a
    result, the only one is that which fits the run best."""
    form: Form | None
    """Form of the decode curve if the type of model determines it; None if the passes decide."""
    prior: HardwarePrior | None
    granularity: Granularity
    most_staleness: int | None
    """Maximum p95 staleness over samples, in versions, of a recommended layout."""
    remaining_steps: int | None
    gpu_hour_price: float | None
    new_cap_policy: StalenessPolicy = "admission"
    """Policy for a staleness cap that a what-if sets and the run lacks."""
    scheduling_stated: bool = True
    """Whether the config states all of `settings` and what happens when the queue is full."""
    prefetched_batches: float = 0.0
    """Batches of an optimizer step that the trainers hold besides the one they train on."""
    others: tuple[OtherRun, ...] = ()
    """Runs of the same model and trainers that show how training scales."""
    lost_gpu_s: Mapping[LossCause, float] = field(default_factory=dict[LossCause, float])
    """Measured GPU-seconds of the steady state lost to each cause."""
    scheduling_contradicted: bool = False
    """Whether the config states a scheduling that the run plainly contradicts."""
    auxiliary_gpus: int = 0
    """GPUs of models that are not trained. They cost as much as the others and are in no layout."""
    auxiliary_busy_ratio: float | None = None
    """Share of the steady state that these GPUs worked, 0..1; None if there are none."""

    @property
    def scheduling(self) -> Scheduling:
        """First of the candidates."""
        return self.candidates[0]


@dataclass(frozen=True, slots=True)
class TimeAndCost:
    """Time that steps take in one layout, and its cost."""

    hours: Estimate
    """Hours that the steps take."""
    gpu_hours: float
    """GPU-hours of all GPUs, idle or not, at the median."""
    price: float | None
    """Price of these GPU-hours, in the currency of the config; None if the config has no price."""

    @classmethod
    def of(cls, hours: Estimate, gpus: int, gpu_hour_price: float | None) -> "TimeAndCost":
        """Return the time and cost of `gpus` GPUs."""
        gpu_hours = hours.value * gpus
        return cls(hours, gpu_hours, None if gpu_hour_price is None else gpu_hours * gpu_hour_price)


@dataclass(frozen=True, slots=True)
class TimeToFinish:
    """Duration of the rest of the run, from the end of the last recorded step."""

    remaining_steps: int
    """Optimizer steps left."""
    current: TimeAndCost
    """Duration in the current layout."""
    best: TimeAndCost
    """Duration in the recommended layout; that of the current one if it is kept."""
    gpus: int
    """GPUs of the run."""
    gpu_hour_price: float | None
    """Price of a GPU per hour; None if the config has none."""


@dataclass(frozen=True, slots=True, eq=False)
class ModelResult:
    """Everything that the model says about a run."""

    model_config: ModelConfig
    calibration: Calibration
    prediction: Prediction | None
    """None if the steady state is too short to hold out a part of it."""
    gap: Gap
    forecasts: Forecasts
    """Forecasts at the measured level: the modeled gains over the measured rate."""
    anchor: Anchor
    """Measurements of the current layout over the modeled values; every forecast was multiplied by them."""
    recommendation: Recommendation
    ranking: Ranking
    """Everything that would make the run faster, and the causes of its losses."""
    synchronous_tokens_per_s: float | None
    """Rate of a synchronous run whose GPUs do both: the modeled gain over the measured rate. None if no engine fits, or
    if groups are filtered."""
    efficiency: BatchEfficiency | None
    finish: TimeToFinish | None
    """None if the run does not state how many steps it has, or has finished them all."""
    warnings: tuple[ModelWarning, ...]
    """Warnings about the run as a whole; the calibration, its curve and the other runs have their own."""
    preemption: Preemption | None
    """Preemptions and their cost in the run; None if its engines do not count them."""
    length_drift: Drift | None
    """Drift of the mean response length over the steady state."""
    others: tuple[OtherRun, ...]
    """Other runs of the model_config, each with all its warnings."""
    replay: Replay
    """Replay of the current layout beside the measurement; its scheduling is that of the model_config."""


@dataclass(frozen=True, slots=True)
class NoModelResult:
    """Reason why the model says nothing about a run."""

    reason: str


NOT_ASKED: Final = NoModelResult("it was not asked")


def model_run(whole: Observed, halves: tuple[Observed, TrainerSteps] | None, model_config: ModelConfig) -> ModelResult:
    """Calibrate, check, predict other layouts, move them to the measurements of the current one, and recommend.

    halves: the first half of the steady state, and the steps of the second; None if it is too short. Raises
    UncalibratableError if the steady state lacks something that the fit needs, or if the model says that the current
    layout cannot run.
    """
    rng = np.random.default_rng(_SEED)
    calibration, replay, prediction = _checked(whole, halves, model_config, rng)
    model_config = replace(model_config, candidates=(replay.scheduling,))
    measured = measured_staleness(whole, calibration.steps_per_version)
    forecasts = _predicted(calibration, model_config, measured)
    predicted_tokens_per_s = forecasts.today.tokens_per_s or 0.0
    anchor = Anchor.of(whole, predicted_tokens_per_s, forecasts.today.price)
    ceiling = trainer_rate_bound(whole, len(calibration.draws))
    anchored = cap_at_trainer_rate(scale_to_measured(forecasts, anchor, measured), ceiling)
    lengths = drift(whole.steps.response_tokens / np.maximum(whole.steps.samples, 1))
    grounds = replace(
        _grounds(anchored.today.staleness, model_config),
        long_enough=halves is not None,
        replayed=replay.explains,
        lengths=lengths,
        anchor=anchor,
    )
    recommendation = recommend(calibration, anchored, grounds)
    ranking = rank_actions(calibration, whole, anchored, recommendation, grounds, model_config.granularity)
    reached = ranking.reached(whole.trained_tokens_per_s)
    shared = colocated_step(calibration.system, calibration.layout.gpus, calibration.layout.max_running)
    return ModelResult(
        model_config=model_config,
        calibration=calibration,
        prediction=prediction,
        gap=explain_gap(calibration, whole, anchored, predicted_tokens_per_s, reached),
        forecasts=anchored,
        anchor=anchor,
        recommendation=recommendation,
        ranking=ranking,
        synchronous_tokens_per_s=None if shared is None else shared.trained_tokens_per_s * anchor.rate_ratio,
        efficiency=batch_efficiency(calibration, whole),
        finish=_finish(whole, recommendation, calibration.layout, model_config, rng),
        warnings=_warnings(whole, prediction, lengths, model_config, replay, forecasts, short=halves is None),
        preemption=preemption_seen(whole, calibration.system.engine),
        length_drift=lengths,
        others=tuple(other.beside(whole) for other in model_config.others),
        replay=replay,
    )


def _checked(
    whole: Observed,
    halves: tuple[Observed, TrainerSteps] | None,
    model_config: ModelConfig,
    rng: np.random.Generator,
) -> tuple[Calibration, Replay, Prediction | None]:
    """Calibrate, replay the run, and check the second half of the steady state against what the first predicts."""

    def calibrated(run: Observed, known: Scheduling, draw_count: int | None = None) -> Calibration:
        return calibrate(
            run,
            known.admission,
            model_config.prior,
            rng,
            form=model_config.form,
            prefetched_batches=model_config.prefetched_batches,
            delivery=known.delivery,
            others=model_config.others,
            draw_count=draw_count,
        )

    calibration, prediction = calibrated(whole, model_config.scheduling), None
    replay = replay_run(calibration, whole, model_config.candidates)
    if halves is not None:
        of_first_half = scheduled(calibrated(halves[0], replay.scheduling, PREDICTED_DRAWS), replay.scheduling)
        prediction = compare(of_first_half, halves[1], rng)
    failed = replay.is_rough or (prediction is not None and prediction.misses)
    calibration = replace(
        scheduled(calibration, replay.scheduling),
        level_log_sd=level_log_sd(prediction),
        error_ratio=_FAILED_ERROR_RATIO if failed else 1.0,
    )
    return held_by_auxiliary(calibration, model_config.auxiliary_busy_ratio or 0.0), replay, prediction


def _predicted(calibration: Calibration, model_config: ModelConfig, measured: StalenessForecast | None) -> Forecasts:
    workload, own = calibration.system.workload, calibration.layout
    capacity_tokens = calibration.system.engine.kv_capacity_tokens
    load = steady_kv_load(workload.prompt_tokens, workload.lengths)
    most = None if capacity_tokens is None else safe_batch(load, capacity_tokens)
    layouts = possible_layouts(own.gpus, model_config.granularity, running_limits(own.max_running, most))
    affordable = partial(affords, grounds=_grounds(measured, model_config))
    forecasts = predict_layouts(calibration, layouts, model_config.most_staleness, affordable)
    if not forecasts.today.tokens_per_s:
        raise UncalibratableError("the model says that the run's own layout cannot run under its limits")
    return forecasts


def _finish(
    whole: Observed, recommendation: Recommendation, layout: Layout, model_config: ModelConfig, rng: np.random.Generator
) -> TimeToFinish | None:
    """Return the time for the remaining optimizer steps; None if their number is unknown, or none is left.

    The interval of the recommended layout combines the ends of both intervals, which is the widest it can be.
    """
    remaining_steps, gpu_hour_price = model_config.remaining_steps, model_config.gpu_hour_price
    if not remaining_steps:
        return None
    periods_s, gpus = whole.steps.period_s, layout.gpus + model_config.auxiliary_gpus
    step_s = ratio_of_sums(periods_s, np.ones_like(periods_s), rng)
    today = step_s.mapped(lambda seconds: remaining_steps * seconds / SECONDS_PER_HOUR)
    gain_ratio = recommendation.gain_ratio if recommendation.changes else None
    recommended = gain_ratio and Estimate(
        today.value / (1.0 + gain_ratio.value),
        today.low / (1.0 + gain_ratio.high),
        today.high / (1.0 + gain_ratio.low),
    )
    current = TimeAndCost.of(today, gpus, gpu_hour_price)
    best = TimeAndCost.of(recommended, gpus, gpu_hour_price) if recommended else current
    return TimeToFinish(remaining_steps, current, best, gpus, gpu_hour_price)


def _grounds(staleness: StalenessForecast | None, model_config: ModelConfig) -> Grounds:
    admission = model_config.scheduling.admission
    waits = admission.staleness_policy == "publication_waits"
    return Grounds(
        current_p95_steps=None if staleness is None else staleness.p95_steps,
        most_staleness=model_config.most_staleness,
        capped=model_config.most_staleness is not None or (admission.max_staleness is not None and not waits),
        lost_gpu_s=model_config.lost_gpu_s,
    )


def _warnings(
    whole: Observed,
    prediction: Prediction | None,
    lengths: Drift | None,
    model_config: ModelConfig,
    replay: Replay,
    forecasts: Forecasts,
    *,
    short: bool,
) -> tuple[ModelWarning, ...]:
    periods, seen = drift(whole.steps.period_s), whole.prefetched_batches
    simulated = replay.method == "simulation" or bool(forecasts.rivals)
    found = {
        ModelWarning.SHORT_STRETCH: short,
        ModelWarning.LENGTHS_DRIFT: lengths is not None and lengths.drifts,
        ModelWarning.STEP_TIME_DRIFTS: periods is not None and periods.drifts,
        ModelWarning.MANNER_ASSUMED: simulated and not model_config.scheduling_stated,
        ModelWarning.SCHEDULING_CONTRADICTED: model_config.scheduling_contradicted,
        ModelWarning.NOT_EXPLAINED: not replay.explains,
        ModelWarning.PREDICTION_MISSED: prediction is not None and prediction.misses,
        ModelWarning.PARTLY_EXPLAINED: replay.explains and replay.is_rough,
        ModelWarning.AHEAD_CONTRADICTED: seen is not None
        and abs(seen - model_config.prefetched_batches) > _OTHER_BATCHES,
    }
    return tuple(warning for warning, holds in found.items() if holds)
