"""The answer to a what-if: the current run beside the changed one, with warnings.

Both columns are predicted; measured values are in the analysis.
"""

from collections.abc import Callable
from typing import Final

from rlscope import format as fmt
from rlscope.model.forecast.change import NO_LIMIT, update_seconds
from rlscope.model.forecast.layouts import Forecast, StepTiming
from rlscope.model.forecast.result import ModelResult
from rlscope.model.forecast.what_if import Obstacle, WhatIf
from rlscope.model.warnings import ModelWarning
from rlscope.reports.blocks import Block, Bullets, Paragraph, Table
from rlscope.reports.text import advice
from rlscope.reports.text.actions import age_words, gain_words
from rlscope.reports.text.names import EXCLUSIONS, WARNINGS, other_run_lines, overflow_line, scaling_sentence
from rlscope.reports.text.price import costly_words, share_words


def what_if_blocks(model: ModelResult, answer: WhatIf) -> list[Block]:
    """Return the answer and its assumptions."""
    lines = what_if_lines(model, answer)
    return [
        Paragraph(headline(answer), "headline"),
        Table("The run with the change", ("", "current", "changed", "difference"), what_if_rows(answer)),
        *([Bullets(lines)] if lines else []),
    ]


def headline(answer: WhatIf) -> str:
    """The answer as one short sentence, without a full stop."""
    if answer.obstacle is not None:
        return f"Infeasible: {_obstacle(answer.obstacle)}"
    if answer.gain_ratio is None or not any(answer.gain_ratio):
        return "Predicted throughput: no change"
    price = costly_words(answer.predicted.price, answer.now.price)
    return f"Predicted throughput: {gain_words(answer.gain_ratio)}{f'; {price}' if price else ''}"


def what_if_rows(answer: WhatIf) -> list[tuple[str, str, str, str]]:
    """Return name, current value, changed value and difference by property; inputs alone if the change is infeasible.

    The difference is empty for a property without one.
    """
    sides = (answer.now, answer.predicted)
    layouts = [(each.trainer_gpus, each.sampler_gpus, each.max_running) for each in (side.layout for side in sides)]
    titles = ("trainer GPUs", "sampler GPUs", "max running per engine")
    rows = [(name, fmt.count(now), fmt.count(new), "") for name, now, new in zip(titles, *layouts, strict=True)]
    rows += _inputs(answer)
    if answer.obstacle is not None:
        return rows
    (now, changed), differences = (_figures(answer, each) for each in sides), _differences(answer)
    drops = any(each.price.dropped_ratio and each.price.dropped_ratio.high for each in sides)
    shown = [name for name in now if drops or name not in _DROPS]
    return [*rows, *((name, now[name], changed[name], differences.get(name, "")) for name in shown)]


def what_if_lines(model: ModelResult, answer: WhatIf) -> list[str]:
    """Return the choices, assumptions and unknowns behind the answer."""
    lines = [warning_line(warning, model) for warning in answer.warnings]
    target, drawn = answer.asked.target_tokens_per_s, answer.predicted.drawn_tokens_per_s
    if target is not None and drawn is not None:
        probability = fmt.percent(float((drawn >= target).mean()))
        fewest = f"The fewest GPUs predicted to reach {target:,g} tokens/s, in their fastest split."
        lines.insert(0, f"{fewest} Probability of reaching it: {probability}.")
    elif target is None and answer.chose_layout:
        lines.insert(0, "Only the number of GPUs was given; this is their fastest split.")
    if (limit := answer.predicted.in_flight_limit) is not None:
        lines.append(f"With at most {fmt.count(limit)} samples in flight: without a limit the queue would grow.")
    if answer.asked.publish_every is not None:
        versions = (fmt.significant(each) for each in (answer.steps_per_version, answer.calibration.steps_per_version))
        lines.append(
            "Staleness is in versions: a version is {} optimizer steps with the change and {} now.".format(*versions)
        )
    lines += filter(None, [overflow_line(answer.predicted)])
    if answer.calibration.synchronous:
        lines.append("The run is synchronous and is assumed to stay so.")
    if model.others:
        lines += [scaling_sentence(model), *other_run_lines(model)]
    return [*lines, *(WARNINGS[warning] for warning in model.warnings if warning not in answer.warnings)]


def warning_line(warning: ModelWarning, model: ModelResult) -> str:
    """Return the sentence of a warning about the change."""
    seen_elsewhere = model.calibration.training.scaling_seen_at
    return _BEYOND_SCALING if warning == ModelWarning.TRAINING_SCALING and seen_elsewhere else WARNINGS[warning]


def _inputs(answer: WhatIf) -> list[tuple[str, str, str, str]]:
    """Changed inputs besides the layout."""
    change, calibration = answer.asked, answer.calibration
    system, admission = calibration.system, calibration.system.admission
    steps_per_version = calibration.steps_per_version
    samples = round(system.workload.samples_per_step / steps_per_version)
    longest_tokens = system.workload.lengths.max_output_tokens
    rows = (
        (change.max_staleness, "staleness cap", _limit(admission.max_staleness), fmt.count),
        (change.length_factor, "response length", "", _times),
        (change.max_output_tokens, "max response tokens", _limit(longest_tokens), fmt.count),
        (change.samples_per_step, "samples per step", fmt.count(samples), fmt.count),
        (change.trainer_speed, "training speed", "", _times),
        (change.engine_speed, "engine speed", "", _times),
        (change.weight_update_s, "weight update time", fmt.duration(update_seconds(system.update)), fmt.duration),
        (change.queue_capacity_samples, "queue capacity", _limit(admission.queue_capacity_samples), _limit),
        (change.max_in_flight_samples, "max samples in flight", _limit(admission.max_in_flight_samples), _limit),
        (change.publish_every, "steps per weight update", fmt.significant(steps_per_version), fmt.count),
    )
    return [(name, now, write(asked), "") for asked, name, now, write in rows if asked is not None]


def _limit(limit: float | None) -> str:
    return "none" if limit in (None, NO_LIMIT) else fmt.count(limit)


def _times(factor: float | None) -> str:
    return f"{fmt.significant(factor)}×"


def _figures(answer: WhatIf, forecast: Forecast) -> dict[str, str]:
    """The forecast of one column, by name."""
    timing, ages = forecast.timing, forecast.staleness
    rate, price = advice.rate_of(forecast, answer.now), forecast.price
    return {
        "trained tokens/s": fmt.significant(rate.value if rate else None),
        "90% interval": f"{fmt.significant(rate.low)} to {fmt.significant(rate.high)}" if rate else fmt.NO_DATA,
        "step time": fmt.duration(_step_s(answer, forecast)),
        "trainers idle": fmt.percent(timing.trainer_idle_ratio if timing else None),
        "samplers idle": fmt.percent(timing.sampler_idle_ratio if timing else None),
        "mean staleness": fmt.versions(ages.token_mean if ages else None),
        "p95 sample staleness": age_words(ages, _steps_per_version(answer, forecast)),
        "dropped tokens": share_words(price.dropped_ratio),
        "longest 10%, trained": share_words(price.longest_trained_ratio),
        "mean trained length": fmt.tokens(price.mean_trained_tokens.value if price.mean_trained_tokens else None),
    }


def _step_s(answer: WhatIf, forecast: Forecast) -> float | None:
    rate = advice.rate_of(forecast, answer.now)
    return None if rate is None else forecast.step_seconds(rate.value, _steps_per_version(answer, forecast))


def _steps_per_version(answer: WhatIf, forecast: Forecast) -> float:
    return (answer.calibration if forecast is answer.now else answer).steps_per_version


def _differences(answer: WhatIf) -> dict[str, str]:
    """The differences, by name; the others have none."""
    now, asked = answer.now, answer.predicted
    now_s, asked_s = (_step_s(answer, each) for each in (now, asked))
    length = asked.price.trained_length_ratio(now.price)
    return {
        "trained tokens/s": advice.gain_text(answer.gain_ratio),
        "step time": fmt.gain(asked_s / now_s - 1.0 if now_s and asked_s else None),
        "trainers idle": _points(now, asked, lambda timing: timing.trainer_idle_ratio),
        "samplers idle": _points(now, asked, lambda timing: timing.sampler_idle_ratio),
        "mean trained length": fmt.gain(length and length.value),
    }


def _points(now: Forecast, asked: Forecast, ratio: Callable[[StepTiming], float]) -> str:
    """Return the difference of a share in points; empty if there is none."""
    if now.timing is None or asked.timing is None or ratio(now.timing) == ratio(asked.timing):
        return ""
    return fmt.signed_points(ratio(asked.timing) - ratio(now.timing))


_DROPS: Final = frozenset({"dropped tokens", "longest 10%, trained"})
"""Rows left out if neither run drops anything."""


def _obstacle(obstacle: Obstacle) -> str:
    if obstacle == "queue_capacity_samples":
        return "the queue holds fewer complete groups than a step needs"
    if obstacle == "in_flight_cap":
        return "the in-flight cap allows fewer complete groups than a step needs"
    return EXCLUSIONS[obstacle]


_BEYOND_SCALING: Final = "Extrapolated: more or fewer trainer GPUs than in any of the runs."
