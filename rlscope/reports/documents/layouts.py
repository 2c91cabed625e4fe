"""The shape of a layout in every document: its forecast, its gain and the scaling of training.

All figures come from the model. For a run, a rate is the measured steady rate times one plus the modeled gain, so the
current layout has the measured rate. A plan has no measurements.
"""

from collections.abc import Mapping
from typing import Final, Literal

from rlscope.model.analytic.steady_state import Regime
from rlscope.model.calibration import Calibration
from rlscope.model.decode.measurements import Grade
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.layouts import Exclusion, Forecast, Preemption
from rlscope.model.forecast.recommend import fastest_probabilities
from rlscope.model.forecast.result import ModelResult
from rlscope.model.system import Layout
from rlscope.model.warnings import ModelWarning
from rlscope.reports.documents import Document, Figure
from rlscope.reports.text import advice
from rlscope.reports.text.names import scaling_exponent

Waits = Literal["samplers", "trainers", "staleness_cap", "weight_updates", "environment", "balanced"]

NO_GAIN: Final = Estimate(0.0, 0.0, 0.0)
_WAITS: Final[Mapping[Regime, Waits]] = {
    "samplers": "samplers",
    "trainers": "trainers",
    "staleness_cap": "staleness_cap",
    # Samples age while in flight, so a cap on their number also caps staleness.
    "admission": "staleness_cap",
    "weight_updates": "weight_updates",
    "environment": "environment",
    "balanced": "balanced",
}


class LayoutJson(Document):
    """A layout."""

    trainer_gpus: int
    """Trainer GPUs."""
    sampler_gpus: int
    """Sampler GPUs."""
    max_running: int | None
    """Limit on running requests of an engine; null if the model could not be fitted to the run."""


class ModelledLayoutJson(LayoutJson):
    """A layout with its forecast."""

    tokens_per_s: Figure
    """Trained response tokens per second. For the current layout of a run, the measured steady rate; for other layouts,
    that rate times one plus the modeled gain. In a plan, the modeled rate."""
    staleness_mean: Figure
    """Modeled mean staleness of trained tokens, in versions."""
    staleness_max: int | None
    """Modeled largest staleness of a sample, by its oldest token, in versions."""


class RatedLayoutJson(ModelledLayoutJson):
    """A layout whose rate has an interval."""

    low: Figure
    """Low end of the 90% interval of `tokens_per_s`; null if it has none."""
    high: Figure
    """High end of the 90% interval of `tokens_per_s`; null if it has none."""


class GainJson(Document):
    """A change of the trained tokens per second."""

    gain_ratio: Figure
    """Trained tokens per second over the rate it is compared with, less 1: the median of the posterior draws."""
    gain_low_ratio: Figure
    """Low end of the 90% interval of `gain_ratio`."""
    gain_high_ratio: Figure
    """High end of the 90% interval of `gain_ratio`."""


class PreemptionJson(Document):
    """Cost of preemptions when the KV cache is full."""

    preemptions_per_sample: Figure
    """Mean number of times that a sample is preempted."""
    recompute_ratio: Figure
    """Share of engine time, 0 to 1, spent on recomputing preempted tokens."""


class ComparedLayoutJson(GainJson, RatedLayoutJson):
    """A layout with its gain over another one."""

    probability_best: Figure
    """Share of the posterior draws, 0 to 1, in which this layout is the fastest; null if the draws do not cover it."""
    grade: Grade | None
    """Distance of the forecast from the decode batches that the run measured."""
    excluded: Exclusion | None
    """Reason why the layout cannot be used; null if it can."""
    limited_by: Waits | None
    """Bottleneck of the layout, in the terms of the verdict."""
    step_s: Figure
    """Duration of an optimizer step, in seconds."""
    staleness_p95: int | None
    """95th percentile of the staleness of samples, by their oldest token, in versions."""


class CandidateJson(PreemptionJson, ComparedLayoutJson):
    """A layout that was evaluated, with its gain over the current one."""


class OtherRunJson(Document):
    """Another run that shows how training scales."""

    run_id: str
    """Identifier of the run."""
    trainer_gpus: int
    """Trainer GPUs of the run."""
    cautions: tuple[ModelWarning, ...]
    """Reasons why the comparison with this run may mislead."""


class TrainingScalingJson(Document):
    """Growth of the trainers' rate with the number of trainer GPUs, as a power law."""

    exponent: Figure
    """Exponent of the power law; 1 is perfect scaling."""
    low: Figure
    """Low end of the 90% interval of `exponent`."""
    high: Figure
    """High end of the 90% interval of `exponent`."""
    measured: bool
    """Whether training was measured at several numbers of GPUs; otherwise the exponent is mostly assumed."""
    contradicted: bool
    """Whether no single exponent explains all runs."""
    trainer_gpus: tuple[int, ...]
    """Numbers of trainer GPUs at which training was measured."""
    also_analyzed: tuple[OtherRunJson, ...]
    """The runs passed with --also."""


def layout_json(layout: Layout) -> LayoutJson:
    """Return the layout without a forecast."""
    return LayoutJson(
        trainer_gpus=layout.trainer_gpus,
        sampler_gpus=layout.sampler_gpus,
        max_running=layout.max_running,
    )


def modelled_layout_json(forecast: Forecast, beside: Forecast | None = None) -> ModelledLayoutJson:
    """Return the layout of a forecast; beside: the layout that its gain is relative to."""
    rate, staleness, layout = advice.rate_of(forecast, beside), forecast.staleness, forecast.layout
    return ModelledLayoutJson(
        **dict(layout_json(layout)),
        tokens_per_s=None if rate is None else rate.value,
        staleness_mean=None if staleness is None else staleness.token_mean,
        staleness_max=None if staleness is None else staleness.sample_max,
    )


def gain_json(gain: Estimate | None, *, has_interval: bool = True) -> GainJson:
    """Return a gain, with or without its interval; every key is null if there is no gain."""
    return GainJson(
        gain_ratio=None if gain is None else gain.value,
        gain_low_ratio=gain.low if gain is not None and has_interval else None,
        gain_high_ratio=gain.high if gain is not None and has_interval else None,
    )


def preemption_json(lost: Preemption | None) -> PreemptionJson:
    """Return the cost of preemptions; both keys are null if it is unknown."""
    return PreemptionJson(
        preemptions_per_sample=None if lost is None else lost.per_sample,
        recompute_ratio=None if lost is None else lost.engine_ratio,
    )


def candidate_json(
    calibration: Calibration,
    forecast: Forecast,
    base: Forecast | None,
    gain: Estimate | None,
    odds: Mapping[Layout, float],
) -> CandidateJson:
    """Return a layout with its gain over `base`, the layout that it is compared with, if there is one.

    odds: by layout, the probability of being the fastest, for the layouts that the posterior draws cover.
    """
    timing, staleness = forecast.timing, forecast.staleness
    rate, is_drawn = advice.rate_of(forecast, base), forecast.drawn_tokens_per_s is not None
    return CandidateJson(
        **dict(modelled_layout_json(forecast, base)),
        low=rate.low if rate is not None and is_drawn else None,
        high=rate.high if rate is not None and is_drawn else None,
        **dict(gain_json(gain, has_interval=is_drawn)),
        probability_best=odds.get(forecast.layout),
        grade=forecast.grade,
        excluded=forecast.excluded,
        limited_by=None if timing is None else waits_for(timing.regime),
        step_s=step_seconds(calibration, forecast, base),
        staleness_p95=None if staleness is None else staleness.sample_p95,
        **dict(preemption_json(forecast.preemption)),
    )


def candidate_of_run_json(model: ModelResult, forecast: Forecast, odds: Mapping[Layout, float]) -> CandidateJson:
    """Return a layout with its gain over the run's current layout if the advice is to change or to probe.

    odds: by layout, the probability of being the fastest of all layouts that the posterior draws cover.
    """
    today, is_open = model.forecasts.today, model.recommendation.advice in ("change", "probe")
    gain = NO_GAIN if forecast is today else advice.gain_of(model, forecast) if is_open else None
    return candidate_json(model.calibration, forecast, today, gain, odds)


def scaling_json(model: ModelResult) -> TrainingScalingJson:
    """Return the scaling exponent and whether other runs measured it."""
    training = model.calibration.training
    exponent, low, high = scaling_exponent(training)
    return TrainingScalingJson(
        exponent=exponent,
        low=low,
        high=high,
        measured=bool(training.scaling_seen_at),
        contradicted=training.scaling_contradicted,
        trainer_gpus=tuple(sorted({training.seen_gpus, *training.scaling_seen_at})),
        also_analyzed=tuple(
            OtherRunJson(run_id=other.run_id, trainer_gpus=other.trainer_gpus, cautions=other.warnings)
            for other in model.others
        ),
    )


def candidates_of(model: ModelResult) -> tuple[CandidateJson, ...]:
    """Return every layout evaluated, including the current one: the fastest first, excluded layouts last."""
    today = model.forecasts.today
    odds = fastest_probabilities(model.forecasts)

    def rank(forecast: Forecast) -> tuple[bool, float]:
        rate = advice.rate_of(forecast, today)
        return (forecast.excluded is not None, -(rate.value if rate else 0.0))

    ranked = sorted((today, *model.forecasts.others), key=rank)
    return tuple(candidate_of_run_json(model, each, odds) for each in ranked)


def step_seconds(calibration: Calibration, forecast: Forecast, beside: Forecast | None = None) -> float | None:
    """Return the duration of an optimizer step, in seconds, at the layout's forecast rate; None if it cannot run."""
    rate = advice.rate_of(forecast, beside)
    return None if rate is None else forecast.step_seconds(rate.value, calibration.steps_per_version)


def waits_for(regime: Regime) -> Waits:
    """Return the bottleneck of a layout in the terms of the verdict."""
    return _WAITS[regime]
