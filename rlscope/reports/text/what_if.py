"""The answer to a what-if: the current run beside the changed one, with warnings.

Both columns are predicted; measured values are in the analysis.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from rlscope import format as fmt
from rlscope.model.forecast.change import NO_LIMIT
from rlscope.model.forecast.result import ModelResult
from rlscope.model.forecast.what_if import Obstacle, WhatIf
from rlscope.model.warnings import ModelWarning
from rlscope.reports.blocks import Block, Bullets, Paragraph, Table
from rlscope.reports.text import advice
from rlscope.reports.text.actions import age_words, gain_words
from rlscope.reports.text.names import EXCLUSIONS, WARNINGS, other_run_lines, overflow_line, scaling_sentence
from rlscope.reports.text.price import costly_words, share_words

_Row = tuple[str, str, str, str]
"""Name, current value, changed value and difference of a property."""


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


def what_if_rows(answer: WhatIf) -> list[_Row]:
    """Return name, current value, changed value and difference by property; inputs alone if the change is infeasible.

    The difference is empty for a property without one.
    """
    layouts = [each.layout for each in (answer.now, answer.predicted)]
    sizes = [(each.trainer_gpus, each.sampler_gpus, each.max_running) for each in layouts]
    titles = ("trainer GPUs", "sampler GPUs", "max running per engine")
    rows = [(name, fmt.count(now), fmt.count(new), "") for name, now, new in zip(titles, *sizes, strict=True)]
    return [*rows, *_inputs(answer), *(_figures(answer) if answer.obstacle is None else ())]


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
    if answer.asked.publish_every not in (None, answer.calibration.steps_per_version):
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


def _inputs(answer: WhatIf) -> list[_Row]:
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
        (change.weight_update_s, "weight update time", fmt.duration(system.update.seconds), fmt.duration),
        (change.queue_capacity_samples, "queue capacity", _limit(admission.queue_capacity_samples), _limit),
        (change.max_in_flight_samples, "max samples in flight", _limit(admission.max_in_flight_samples), _limit),
        (change.publish_every, "steps per weight update", fmt.significant(steps_per_version), fmt.count),
    )
    return [(name, now, write(asked), "") for asked, name, now, write in rows if asked is not None]


def _limit(limit: float | None) -> str:
    return "none" if limit in (None, NO_LIMIT) else fmt.count(limit)


def _times(factor: float | None) -> str:
    return f"{fmt.significant(factor)}×"


def _figures(answer: WhatIf) -> Iterator[_Row]:
    """Yield what is predicted for both columns; drops and long responses only if either drops anything."""
    sides, spans = (answer.now, answer.predicted), (answer.calibration.steps_per_version, answer.steps_per_version)
    rates, prices = [advice.rate_of(each, answer.now) for each in sides], [each.price for each in sides]
    timed = zip(sides, rates, spans, strict=True)
    now_s, then_s = (rate and each.step_seconds(rate.value, span) for each, rate, span in timed)
    ends = (f"{fmt.significant(rate.low)} to {fmt.significant(rate.high)}" if rate else fmt.NO_DATA for rate in rates)
    lengths = (each.mean_trained_tokens and each.mean_trained_tokens.value for each in prices)
    longer = prices[1].trained_length_ratio(prices[0])
    medians = (fmt.significant(rate and rate.value) for rate in rates)
    yield _row("trained tokens/s", medians, advice.gain_text(answer.gain_ratio))
    yield _row("90% interval", ends)
    slower = then_s / now_s - 1.0 if now_s and then_s else None
    yield _row("step time", map(fmt.duration, (now_s, then_s)), fmt.gain(slower))
    yield _idle_row("trainers idle", *(each.timing and each.timing.trainer_idle_ratio for each in sides))
    yield _idle_row("samplers idle", *(each.timing and each.timing.sampler_idle_ratio for each in sides))
    yield _row("mean staleness", (fmt.versions(each.staleness and each.staleness.token_mean) for each in sides))
    yield _row("p95 sample staleness", map(age_words, (each.staleness for each in sides), spans))
    if any(each.dropped_ratio and each.dropped_ratio.high for each in prices):
        yield _row("dropped tokens", (share_words(each.dropped_ratio) for each in prices))
        yield _row("long responses kept (longest 10%)", (share_words(each.longest_trained_ratio) for each in prices))
    yield _row("mean trained length", map(fmt.tokens, lengths), fmt.gain(longer and longer.value))


def _row(name: str, texts: Iterable[str], difference: str = "") -> _Row:
    now, then = texts
    return name, now, then, difference


def _idle_row(name: str, now: float | None, then: float | None) -> _Row:
    """Return a share of both columns, with its difference in points; empty if there is none."""
    points = "" if now is None or then is None or now == then else fmt.signed_points(then - now)
    return name, fmt.percent(now), fmt.percent(then), points


def _obstacle(obstacle: Obstacle) -> str:
    if obstacle == "queue_capacity_samples":
        return "the queue holds fewer complete groups than a step needs"
    if obstacle == "in_flight_cap":
        return "the in-flight cap allows fewer complete groups than a step needs"
    return EXCLUSIONS[obstacle]


_BEYOND_SCALING: Final = "Extrapolated: more or fewer trainer GPUs than in any of the runs."
