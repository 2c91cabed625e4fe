"""The answer to a what-if as a JSON document, and what one per cent of each quantity buys.

`now` and `predicted` have one shape; all figures of both are the model's. Keys are only ever added to.
"""

from collections.abc import Sequence

from rlscope.format import finite
from rlscope.model.forecast.change import Change
from rlscope.model.forecast.layouts import Forecast, Spread
from rlscope.model.forecast.result import ModelResult
from rlscope.model.forecast.sensitivity import Sensitivity
from rlscope.model.forecast.whatif import WhatIf
from rlscope.reports.documents.layouts import (
    Json,
    preemption_document,
    present_document,
    scaling_document,
    step_seconds,
    waits_for,
)
from rlscope.reports.text import advice


def what_if_document(model: ModelResult, answer: WhatIf) -> dict[str, Json]:
    """What was asked, the run as it is, as it would be, and what one per cent of each quantity buys today."""
    return {
        "asked": _asked(answer.asked),
        "now": _settled(answer, answer.now),
        "predicted": _settled(answer, answer.predicted),
        **_gain(answer.gain_ratio),
        "obstacle": answer.obstacle,
        "chose_split": answer.chose_split,
        "simulated": answer.simulated,
        "doubts": list(answer.warnings),
        "cautions": list(model.warnings),
        "training_scaling": scaling_document(model),
        "sensitivity": lever_documents(model.sensitivities),
    }


def lever_documents(levers: Sequence[Sensitivity]) -> list[Json]:
    """Gains are of trained tokens per second, for one per cent of the quantity."""
    return [_lever(lever) for lever in levers]


def _lever(lever: Sensitivity) -> dict[str, Json]:
    return {
        "quantity": lever.quantity,
        **_gain(lever.gain_ratio),
        "silence": lever.silence,
        "is_rough": lever.is_rough,
    }


def _gain(gain: Spread | None) -> dict[str, Json]:
    return {
        "gain_ratio": None if gain is None else finite(gain.median),
        "gain_low_ratio": None if gain is None else finite(gain.low),
        "gain_high_ratio": None if gain is None else finite(gain.high),
    }


def _asked(change: Change) -> dict[str, Json]:
    """By the names of the options; null: as it was."""
    return {
        "n_train_gpus": change.trainer_gpus,
        "n_sample_gpus": change.sampler_gpus,
        "n_gpus": change.gpus,
        "max_running_per_engine": change.running_per_engine,
        "max_staleness": change.max_staleness,
        "scale_lengths": change.length_factor,
        "max_output_tokens": change.max_output_tokens,
        "samples_per_step": change.samples_per_step,
        "trainer_speed": change.trainer_speed,
        "forward_speed": change.forward_speed,
        "weight_update_s": change.weight_update_s,
    }


def _settled(answer: WhatIf, forecast: Forecast) -> dict[str, Json]:
    rate, pace = advice.rate_of(forecast, answer.now), forecast.pace
    return {
        **present_document(forecast, answer.now),
        "low": None if rate is None else finite(rate.low),
        "high": None if rate is None else finite(rate.high),
        "step_s": finite(step_seconds(answer.calibration, forecast, answer.now)),
        "trainer_idle_ratio": None if pace is None else finite(pace.trainer_idle_ratio),
        "sampler_idle_ratio": None if pace is None else finite(pace.sampler_idle_ratio),
        "regime": None if pace is None else waits_for(pace.regime),
        "grade": forecast.grade,
        **preemption_document(forecast.preemption),
    }
