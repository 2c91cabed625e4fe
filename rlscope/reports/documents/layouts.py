"""A layout in the JSON documents: its forecast, its gain and the scaling of training.

All figures come from the model. For a run, a rate is the measured steady rate times one plus the modeled gain, so the
current layout has the measured rate. A plan has no measurements.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rlscope.document import extended
from rlscope.model.decode.measurements import Grade
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.layouts import Exclusion, Forecast, Preemption
from rlscope.model.forecast.price import Price
from rlscope.model.forecast.result import ModelResult
from rlscope.model.observed import OtherRun
from rlscope.model.system import Layout
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
