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

    asked: Change
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
        asked=answer.asked,
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
