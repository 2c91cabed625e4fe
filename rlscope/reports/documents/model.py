"""The model's results in the JSON documents: layouts with their forecasts, rate, decode passes, advice and details.

All figures come from the model. For a run, a rate is the measured steady rate times one plus the modeled gain, so the
current layout has the measured rate. A plan has no measurements.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rlscope.analysis.result import Throughput
from rlscope.document import extended
from rlscope.model.decode.curves import Form
from rlscope.model.decode.measurements import Grade
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.gap import GapStep
from rlscope.model.forecast.layouts import Exclusion, Forecast, Preemption
from rlscope.model.forecast.price import Price
from rlscope.model.forecast.recommend import Advice, GainUncertainty, Reason, fastest_probabilities
from rlscope.model.forecast.replay import Replay
from rlscope.model.forecast.result import ModelResult, NoModelResult
from rlscope.model.observed import OtherRun
from rlscope.model.system import Layout
from rlscope.model.warnings import ModelWarning
from rlscope.reports.text import advice

NO_GAIN: Final = Estimate(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldPrice(Price):
    """Price of a layout or an action besides its work. None: unknown."""

    gpus: int
    """Number of GPUs of trainers and samplers."""
    staleness_p95_steps: Estimate | None
    """95th percentile of the staleness of samples, by their oldest token, in optimizer steps; None also if the queue
    would grow without limit."""
    staleness_horizon_steps: float | None
    """Optimizer steps after which a run is as stale, if staleness grows for as long as it lasts; None if it is
    steady."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeledLayout(Layout):
    """A layout with its forecast. If it cannot run, only the layout is set."""

    tokens_per_s: Estimate | None
    """Trained response tokens per second. For the current layout of a run, the measured steady rate; for other layouts,
    that rate times one plus the modeled gain. In a plan, the modeled rate."""
    step_s: float | None
    """Duration of an optimizer step, in seconds."""
    staleness_mean: float | None
    """Mean staleness of trained tokens, in versions."""
    staleness_p95: int | None
    """95th percentile of the staleness of samples, by their oldest token, in versions."""
    staleness_max: int | None
    """Largest staleness of a sample, by its oldest token, in versions."""
    trainer_idle_ratio: float | None
    """Share of trainer time, 0 to 1, without work on a batch. Publishing weights counts as idle."""
    sampler_idle_ratio: float | None
    """Share of engine time, 0 to 1, without a decode pass or a prefill."""
    grade: Grade | None
    """Distance of the forecast from the decode batches that the run measured."""
    preemption: Preemption | None
    """Preemptions in the event simulation; None if the layout was not simulated."""
    in_flight_limit: int | None
    """Limit on samples in flight that the forecast rests on and the run lacks; without it the queue would grow. None if
    there is none."""
    price: ToldPrice | None
    """Price of the layout: dropped tokens and mean length of the current layout of a run are measured; the rest is
    modeled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate(ModeledLayout):
    """A layout that was evaluated, with its gain over another one."""

    gain_ratio: Estimate | None
    """Trained tokens per second over the rate it is compared with, less 1: the median of the posterior draws."""
    probability_best: float | None
    """Share of the posterior draws, 0 to 1, in which this layout is the fastest; None if the draws do not cover it,
    because it is too slow to matter or excluded. Its rate and gain then have no interval."""
    excluded: Exclusion | None
    """Reason why the layout cannot be used; None if it can."""


@dataclass(frozen=True, slots=True)
class TrainingScaling:
    """Growth of the trainers' rate with the number of trainer GPUs, as a power law."""

    exponent: Estimate
    """Exponent of the power law; 1 is perfect scaling."""
    measured: bool
    """Whether training was measured at several numbers of GPUs; otherwise the exponent is mostly assumed."""
    contradicted: bool
    """Whether no single exponent explains all runs."""
    trainer_gpus: tuple[int, ...]
    """Numbers of trainer GPUs at which training was measured."""
    also_analyzed: tuple[OtherRun, ...]
    """The runs passed with --also."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeledThroughput(Throughput):
    """Response tokens per second: measured, predicted, and the gap between the upper bound and the measured rate."""

    predicted_tokens_per_s: Estimate | None = None
    """Trained tokens per second predicted from the first half of the steady state; None if that is too short."""
    held_out_tokens_per_s: Estimate | None = None
    """Trained tokens per second measured over the second half of the steady state."""
    residual_ratio: float | None = None
    """`held_out_tokens_per_s` over `predicted_tokens_per_s`, less 1."""
    agrees: bool | None = None
    """Whether the two intervals overlap."""
    bound_tokens_per_s: float | None = None
    """Upper bound of the trained tokens per second of these GPUs at the measured costs."""
    synchronous_tokens_per_s: float | None = None
    """Modeled trained tokens per second of a synchronous run in which every GPU alternates between sampling and
    training."""
    gap: tuple[GapStep, ...] | None = None
    """Steps from the bound down to the steady rate, one per cause: the bound less all of them is
    `steady_tokens_per_s`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """The fitted time of a decode pass."""

    form: Form
    """Form of the fitted curve."""
    parameters: Mapping[str, float]
    """Parameters of the curve: times in seconds, batch sizes in requests, all others as ratios."""
    visited_batch_low: float | None
    """Smallest batch size that the run measured, in requests."""
    visited_batch_high: float | None
    """Largest batch size that the run measured, in requests."""
    mape_ratio: float | None
    """Mean absolute error of the fit divided by the measured time."""
    warnings: tuple[ModelWarning, ...]
    """Questions that the fit could not settle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendedLayout:
    """The recommended layout and the reasons for it."""

    action: Advice
    """change: switch to a layout that is at least 90% likely to gain 5% or more. probe: test a layout that may gain 5%.
    keep: no layout is likely to gain 5%. unknown: nothing can be recommended."""
    why: str
    """The reasons, how certain they are, and what would make them more certain. If the action is unknown, the data that
    is missing."""
    reason: Reason | None = None
    """The reason as one word."""
    headline: str | None = None
    """The advice in one short sentence."""
    current: ModeledLayout | None = None
    """The current layout; None for a plan that names none, or if the model could not be fitted to the run."""
    best: Candidate | None = None
    """The layout to switch to or to test. If the action is keep, the current layout; None if it is unknown."""
    probability_worthwhile: float | None = None
    """Probability, 0 to 1, that `best` gains 5% or more. If the action is keep, the same probability for the best of
    the other layouts; None if the action is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedLayouts(RecommendedLayout):
    """The recommended layout and every layout that was evaluated."""

    uncertainties: tuple[GainUncertainty, ...] = ()
    """Where the uncertainty of the gain comes from, the largest source first."""
    candidates: tuple[Candidate, ...] = ()
    """Layouts with a trusted forecast, the fastest first, excluded layouts last. If the action is keep or unknown, the
    gains of the other layouts are null: none is likely to gain 5%, or the gains are unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDetails:
    """Further results of the model."""

    synchronous: bool
    """Whether the run is synchronous: samplers and trainers wait for each other at every step."""
    calibrated_steps: int | None
    """Optimizer steps that the prediction is calibrated on; None if the steady state is too short to test one."""
    held_out_steps: int | None
    """Optimizer steps that the prediction is compared with."""
    efficient_running: int | None
    """Smallest batch, in requests, that decodes at 90% of the rate that the limit on running requests allows."""
    efficient_decoding_ratio: float | None
    """Share of the decoding time, 0 to 1, that the same tokens would have taken in batches of that size."""
    batches_ahead: float
    """Prefetched batches: batches that the trainers hold in addition to the one in training."""
    preemption: Preemption | None
    """Cost of preemptions, measured over the steady state; None if it is unknown."""
    warnings: tuple[ModelWarning, ...]
    """Warnings about the model of this run, then assumptions that it makes because the run does not show the facts."""
    training_scaling: TrainingScaling
    """Growth of the training speed with the number of trainer GPUs."""
    replay: Replay
    """The current layout as the model replays it, beside its measurements."""


def modeled_layout(forecast: Forecast, base: Forecast | None, steps_per_version: float) -> ModeledLayout:
    """Return the layout of a forecast; base: the layout that its gain is relative to, if there is one."""
    rate, staleness = advice.rate_of(forecast, base), forecast.staleness
    return extended(
        ModeledLayout,
        forecast.layout,
        forecast,
        forecast.timing,
        tokens_per_s=rate,
        step_s=rate and forecast.step_seconds(rate.value, steps_per_version),
        staleness_mean=staleness and staleness.token_mean,
        staleness_p95=staleness and staleness.sample_p95,
        staleness_max=staleness and staleness.sample_max,
        price=rate and told_price(forecast.price, forecast.layout, steps_per_version),
    )


def told_price(price: Price, layout: Layout, steps_per_version: float) -> ToldPrice:
    """Return a price; steps_per_version: optimizer steps per version that may be published, for staleness in steps."""
    staleness = price.staleness
    horizon_steps = staleness and staleness.horizon_steps
    return extended(
        ToldPrice,
        price,
        gpus=layout.gpus,
        staleness_p95_steps=staleness and staleness.p95_in_optimizer_steps(steps_per_version),
        staleness_horizon_steps=horizon_steps and horizon_steps * steps_per_version,
    )


def candidate(
    forecast: Forecast,
    base: Forecast | None,
    steps_per_version: float,
    gain: Estimate | None,
    odds: Mapping[Layout, float],
) -> Candidate:
    """Return a layout with its gain over `base`, the layout that it is compared with, if there is one.

    odds: by layout, the probability of being the fastest, for the layouts that the posterior draws cover.
    """
    return extended(
        Candidate,
        modeled_layout(forecast, base, steps_per_version),
        gain_ratio=gain,
        probability_best=odds.get(forecast.layout),
        excluded=forecast.excluded,
    )


def candidate_of_run(model: ModelResult, forecast: Forecast, odds: Mapping[Layout, float]) -> Candidate:
    """Return a layout with its gain over the run's current layout if the advice is to change or to probe.

    odds: by layout, the probability of being the fastest of all layouts that the posterior draws cover.
    """
    today, is_open = model.forecasts.today, model.recommendation.advice in ("change", "probe")
    gain = NO_GAIN if forecast is today else advice.gain_of(model, forecast) if is_open else None
    return candidate(forecast, today, model.calibration.steps_per_version, gain, odds)


def training_scaling(model: ModelResult) -> TrainingScaling:
    """Return the scaling exponent and whether other runs measured it."""
    training = model.calibration.training
    return TrainingScaling(
        exponent=training.scaling_exponent,
        measured=bool(training.scaling_seen_at),
        contradicted=training.scaling_contradicted,
        trainer_gpus=tuple(sorted({training.trainer.seen_gpus, *training.scaling_seen_at})),
        also_analyzed=model.others,
    )


def modeled_throughput(throughput: Throughput, model: ModelResult | NoModelResult) -> ModeledThroughput:
    """Return the measured rates with the model's predictions, bounds and gap."""
    if isinstance(model, NoModelResult):
        return extended(ModeledThroughput, throughput)
    rate = model.prediction
    return extended(
        ModeledThroughput,
        throughput,
        rate,
        model.gap,
        model,
        predicted_tokens_per_s=rate and rate.predicted,
        held_out_tokens_per_s=rate and rate.held_out,
        gap=model.gap.steps,
    )


def latency(model: ModelResult) -> Latency:
    """Return the fitted curve of decode passes."""
    fit = model.calibration.curve
    visited = fit.visited
    return extended(
        Latency,
        fit,
        visited_batch_low=None if visited is None else visited.batch_low,
        visited_batch_high=None if visited is None else visited.batch_high,
    )


def ranked_layouts(model: ModelResult | NoModelResult) -> RankedLayouts:
    """Return the recommended layout beside the current one, or the reason why the model could not be fitted."""
    if isinstance(model, NoModelResult):
        return RankedLayouts(action="unknown", why=model.reason)
    advised, forecasts = model.recommendation, model.forecasts
    odds = fastest_probabilities((forecasts.today, *forecasts.rivals))
    best = {"keep": forecasts.today, "unknown": None}.get(advised.advice, advised.best)

    def rank(forecast: Forecast) -> tuple[bool, float]:
        rate = advice.rate_of(forecast, forecasts.today)
        return (forecast.excluded is not None, -(rate.value if rate else 0.0))

    return RankedLayouts(
        action=advised.advice,
        why=advice.why(model),
        reason=advised.reason,
        headline=advice.headline(model),
        current=modeled_layout(forecasts.today, forecasts.today, model.calibration.steps_per_version),
        best=best and candidate_of_run(model, best, odds),
        probability_worthwhile=None if advised.advice == "unknown" else advised.worthwhile_probability,
        uncertainties=advised.uncertainties,
        candidates=tuple(candidate_of_run(model, each, odds) for each in sorted(forecasts.shown, key=rank)),
    )


def model_details(model: ModelResult) -> ModelDetails:
    """Return the model's further results."""
    efficiency = model.efficiency
    return extended(
        ModelDetails,
        model,
        model.calibration,
        model.prediction,
        efficiency,
        efficient_decoding_ratio=efficiency and efficiency.efficient_time_ratio,
        batches_ahead=model.model_config.prefetched_batches,
        warnings=(*model.warnings, *model.calibration.warnings),
        training_scaling=training_scaling(model),
    )
