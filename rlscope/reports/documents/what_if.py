"""The answer to a what-if question as a JSON document, and the throughput change per 1% of each quantity.

`now` and `predicted` have the same shape; all figures of both come from the model.
"""

from pydantic import ConfigDict

from rlscope.model.decode.measurements import Grade
from rlscope.model.forecast.change import Change
from rlscope.model.forecast.layouts import Forecast
from rlscope.model.forecast.result import ModelResult
from rlscope.model.forecast.sensitivity import Sensitivity
from rlscope.model.forecast.what_if import Obstacle, WhatIf
from rlscope.model.warnings import ModelWarning
from rlscope.reports.documents import Document, Figure
from rlscope.reports.documents.layouts import (
    GainJson,
    PreemptionJson,
    RatedLayoutJson,
    TrainingScalingJson,
    Waits,
    gain_json,
    modelled_layout_json,
    preemption_json,
    scaling_json,
    waits_for,
)
from rlscope.reports.text import advice


class AskedJson(Document):
    """The requested changes, by option name; null if the option is unchanged."""

    trainer_gpus: int | None
    """Trainer GPUs."""
    sampler_gpus: int | None
    """Sampler GPUs."""
    total_gpus: int | None
    """Total number of GPUs."""
    max_running: int | None
    """Limit on running requests of an engine."""
    max_staleness: int | None
    """Cap on the staleness of samples, in versions."""
    length_factor: Figure
    """Factor on the length of every response."""
    max_output_tokens: int | None
    """Longest response, in tokens."""
    samples_per_step: int | None
    """Samples per optimizer step."""
    trainer_speed: Figure
    """Factor on the speed of training passes and log-probabilities."""
    engine_speed: Figure
    """Factor on the speed of decode passes and prefills."""
    weight_update_s: Figure
    """Seconds from the end of a step until both sides continue."""
    queue_capacity_samples: int | None
    """Capacity of the queue, in samples; 0: no limit."""
    max_in_flight_samples: int | None
    """Limit on the samples running or queued at a time; 0: no limit."""
    max_in_flight_groups: int | None
    """Limit on the groups running or queued at a time; 0: no limit."""
    publish_every: int | None
    """Optimizer steps per weight update; the staleness of `predicted` counts versions of that many steps."""


class TimedLayoutJson(RatedLayoutJson):
    """A layout with its bottleneck and the duration of its steps."""

    step_s: Figure
    """Duration of an optimizer step, in seconds."""
    trainer_idle_ratio: Figure
    """Share of trainer time, 0 to 1, without work on a batch. Publishing weights counts as idle."""
    sampler_idle_ratio: Figure
    """Share of engine time, 0 to 1, without a decode pass or a prefill."""
    limited_by: Waits | None
    """Bottleneck of the layout, in the terms of the verdict."""
    grade: Grade | None
    """Distance of the forecast from the decode batches that the run measured."""


class WhatIfSideJson(PreemptionJson, TimedLayoutJson):
    """One side of the comparison. If the run cannot run this way, only the layout is set."""


class ComparisonJson(Document):
    """The requested changes and both sides of the comparison."""

    asked: AskedJson
    """The requested changes, by option name."""
    current: WhatIfSideJson
    """The current run, as modeled."""
    predicted: WhatIfSideJson
    """The run after the changes, as modeled."""


class WhatIfDocument(GainJson, ComparisonJson):
    """Output of `rlscope what-if --json`: the current run beside the run with the requested changes."""

    model_config = ConfigDict(title="rlscope what-if --json")

    obstacle: Obstacle | None
    """Reason why the run cannot run with the changes; null if it can."""
    chose_layout: bool
    """Whether only the total number of GPUs was given, so that rlscope chose the fastest split."""
    simulated: bool
    """Whether `predicted` comes from the event simulation."""
    doubts: tuple[ModelWarning, ...]
    """Aspects of this change that the run has no data on, listed after the checks that the model failed."""
    cautions: tuple[ModelWarning, ...]
    """Warnings about the model of this run."""
    training_scaling: TrainingScalingJson
    """Scaling of training with the number of trainer GPUs."""
    sensitivity: tuple[Sensitivity, ...]
    """Throughput change per 1% of each quantity in the current run, the largest first."""


def _asked(change: Change) -> AskedJson:
    """Return the requested changes by option name."""
    return AskedJson(
        trainer_gpus=change.trainer_gpus,
        sampler_gpus=change.sampler_gpus,
        total_gpus=change.total_gpus,
        max_running=change.max_running,
        max_staleness=change.max_staleness,
        length_factor=change.length_factor,
        max_output_tokens=change.max_output_tokens,
        samples_per_step=change.samples_per_step,
        trainer_speed=change.trainer_speed,
        engine_speed=change.engine_speed,
        weight_update_s=change.weight_update_s,
        queue_capacity_samples=change.queue_capacity_samples,
        max_in_flight_samples=change.max_in_flight_samples,
        max_in_flight_groups=change.max_in_flight_groups,
        publish_every=change.publish_every,
    )


def _side(answer: WhatIf, forecast: Forecast) -> WhatIfSideJson:
    """Return one side of the comparison."""
    rate, timing = advice.rate_of(forecast, answer.now), forecast.timing
    return WhatIfSideJson(
        **dict(modelled_layout_json(forecast, answer.now)),
        low=None if rate is None else rate.low,
        high=None if rate is None else rate.high,
        step_s=None if rate is None else forecast.step_seconds(rate.value, steps_per_version(answer, forecast)),
        trainer_idle_ratio=None if timing is None else timing.trainer_idle_ratio,
        sampler_idle_ratio=None if timing is None else timing.sampler_idle_ratio,
        limited_by=None if timing is None else waits_for(timing.regime),
        grade=forecast.grade,
        **dict(preemption_json(forecast.preemption)),
    )


def steps_per_version(answer: WhatIf, forecast: Forecast) -> float:
    """Return the optimizer steps per version on one side of the comparison."""
    return answer.calibration.steps_per_version if forecast is answer.now else answer.steps_per_version


def what_if_document(model: ModelResult, answer: WhatIf) -> WhatIfDocument:
    """Return the model's answer to one what-if question."""
    return WhatIfDocument(
        asked=_asked(answer.asked),
        current=_side(answer, answer.now),
        predicted=_side(answer, answer.predicted),
        **dict(gain_json(answer.gain_ratio)),
        obstacle=answer.obstacle,
        chose_layout=answer.chose_layout,
        simulated=answer.simulated,
        doubts=answer.warnings,
        cautions=model.warnings,
        training_scaling=scaling_json(model),
        sensitivity=model.sensitivities,
    )
