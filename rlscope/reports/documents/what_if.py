"""The answer to a what-if as a JSON document, and the throughput change per 1% of each quantity.

`now` and `predicted` have one shape; all figures of both are the model's.
"""

from collections.abc import Sequence

from pydantic import ConfigDict

from rlscope.model.decode.measurements import Grade
from rlscope.model.forecast.change import Change
from rlscope.model.forecast.layouts import Forecast
from rlscope.model.forecast.result import ModelResult
from rlscope.model.forecast.sensitivity import Sensitivity, SensitivityQuantity, Silence
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
    """What was asked, by the names of the options; null: as it was."""

    n_train_gpus: int | None
    """Trainer GPUs."""
    n_sample_gpus: int | None
    """Sampler GPUs."""
    n_gpus: int | None
    """GPUs in all."""
    max_running_per_engine: int | None
    """Limit on running requests of an engine."""
    max_staleness: int | None
    """Cap on the staleness of samples, in versions."""
    scale_lengths: Figure
    """Factor on the length of every response."""
    max_output_tokens: int | None
    """Longest response, in tokens."""
    samples_per_step: int | None
    """Samples of an optimizer step."""
    trainer_speed: Figure
    """Factor on the speed of training passes and log-probabilities."""
    forward_speed: Figure
    """Factor on the speed of decode passes and prefills."""
    weight_update_s: Figure
    """Seconds from the end of a step until both sides go on."""
    queue_capacity: int | None
    """Samples that the queue holds; 0: no limit."""
    max_in_flight: int | None
    """Samples that may run and be queued at once; 0: no limit."""
    max_in_flight_groups: int | None
    """The same limit in groups; 0: no limit."""
    publish_every: int | None
    """Optimizer steps of one weight update; the staleness of `predicted` counts versions of that many steps."""


class TimedLayoutJson(RatedLayoutJson):
    """A layout with what it waits for and how long its steps take."""

    step_s: Figure
    """Seconds of an optimizer step."""
    trainer_idle_ratio: Figure
    """Share of trainer time, 0 to 1, without work on a batch; publishing weights counts as idle."""
    sampler_idle_ratio: Figure
    """Share of engine time, 0 to 1, without a decode pass or a prefill."""
    regime: Waits | None
    """What the layout waits for, in the words of the verdict."""
    grade: Grade | None
    """How far the forecast is from the decode batches that the run measured."""


class WhatIfSideJson(PreemptionJson, TimedLayoutJson):
    """One side of the comparison; where the run cannot run, its layout alone."""


class QuantityJson(Document):
    """A quantity of the run that could be better."""

    quantity: SensitivityQuantity
    """The quantity that is made 1% better, alone."""


class SensitivityJson(GainJson, QuantityJson):
    """Sensitivity to one quantity: the change of the trained tokens per second when it improves by 1%."""

    silence: Silence | None
    """Why the quantity changes nothing, or why that is unknown; null if it changes the throughput."""
    is_rough: bool
    """Whether the formulas hold only roughly for the layout in use."""


class ComparisonJson(Document):
    """What was asked, and both sides of the comparison."""

    asked: AskedJson
    """What was asked, by the names of the options."""
    now: WhatIfSideJson
    """The run as it is, as the model has it."""
    predicted: WhatIfSideJson
    """The run as it would be."""


class WhatIfDocument(GainJson, ComparisonJson):
    """What `rlscope what-if --json` prints: the run as it is beside the run with something changed."""

    model_config = ConfigDict(title="rlscope what-if --json")

    obstacle: Obstacle | None
    """Why the run cannot run like that; null if it can."""
    chose_split: bool
    """Whether only the number of GPUs was asked for, so that the fastest split of them was chosen."""
    simulated: bool
    """Whether `predicted` comes from the event simulation."""
    doubts: tuple[ModelWarning, ...]
    """What the run does not show about this change, after the checks that the model of the run failed."""
    cautions: tuple[ModelWarning, ...]
    """Warnings about the model of this run."""
    training_scaling: TrainingScalingJson
    """How training scales with the number of trainer GPUs."""
    sensitivity: tuple[SensitivityJson, ...]
    """Throughput change per 1% of each quantity in the run as it is, the largest first."""


def _asked(change: Change) -> AskedJson:
    """What is to be different."""
    return AskedJson(
        n_train_gpus=change.trainer_gpus,
        n_sample_gpus=change.sampler_gpus,
        n_gpus=change.gpus,
        max_running_per_engine=change.running_per_engine,
        max_staleness=change.max_staleness,
        scale_lengths=change.length_factor,
        max_output_tokens=change.max_output_tokens,
        samples_per_step=change.samples_per_step,
        trainer_speed=change.trainer_speed,
        forward_speed=change.forward_speed,
        weight_update_s=change.weight_update_s,
        queue_capacity=change.queue_capacity_samples,
        max_in_flight=change.max_in_flight_samples,
        max_in_flight_groups=change.max_in_flight_groups,
        publish_every=change.steps_per_version,
    )


def _side(answer: WhatIf, forecast: Forecast) -> WhatIfSideJson:
    """The run as it is, or as it would be."""
    rate, pace = advice.rate_of(forecast, answer.now), forecast.pace
    return WhatIfSideJson(
        **dict(modelled_layout_json(forecast, answer.now)),
        low=None if rate is None else rate.low,
        high=None if rate is None else rate.high,
        step_s=None if rate is None else forecast.step_seconds(rate.median, steps_per_version(answer, forecast)),
        trainer_idle_ratio=None if pace is None else pace.trainer_idle_ratio,
        sampler_idle_ratio=None if pace is None else pace.sampler_idle_ratio,
        regime=None if pace is None else waits_for(pace.regime),
        grade=forecast.grade,
        **dict(preemption_json(forecast.preemption)),
    )


def steps_per_version(answer: WhatIf, forecast: Forecast) -> float:
    """Optimizer steps of one publication on one side of the comparison."""
    return answer.calibration.steps_per_version if forecast is answer.now else answer.steps_per_version


def what_if_document(model: ModelResult, answer: WhatIf) -> WhatIfDocument:
    """The answer of a run's model to one question."""
    return WhatIfDocument(
        asked=_asked(answer.asked),
        now=_side(answer, answer.now),
        predicted=_side(answer, answer.predicted),
        **dict(gain_json(answer.gain_ratio)),
        obstacle=answer.obstacle,
        chose_split=answer.chose_split,
        simulated=answer.simulated,
        doubts=answer.warnings,
        cautions=model.warnings,
        training_scaling=scaling_json(model),
        sensitivity=sensitivities_json(model.sensitivities),
    )


def sensitivities_json(sensitivities: Sequence[Sensitivity]) -> tuple[SensitivityJson, ...]:
    """The sensitivity to each quantity, in the order given."""
    return tuple(
        SensitivityJson(
            quantity=each.quantity,
            **dict(gain_json(each.gain_ratio)),
            silence=each.silence,
            is_rough=each.is_rough,
        )
        for each in sensitivities
    )
