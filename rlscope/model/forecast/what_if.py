"""Forecast a run with a change, beside the run as it is.

The change is applied to the calibrated system, to every draw of it and to the layout, which are then predicted again.
A synchronous run stays synchronous. Not covered: the cost of the change, and its effect on learning.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

from rlscope.errors import ImpossibleChangeError
from rlscope.model.analytic.engine_time import sampling_of
from rlscope.model.analytic.limits import Refusal, refusal
from rlscope.model.analytic.synchronous import split_step
from rlscope.model.calibration import Calibration
from rlscope.model.decode.measurements import Grade
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.change import Change, applied, warnings_of
from rlscope.model.forecast.layouts import Forecast, anchored
from rlscope.model.forecast.predict import changed, closed_rates, predict, predict_layouts
from rlscope.model.forecast.result import ModelConfig, ModelResult
from rlscope.model.simulate.part import part_of
from rlscope.model.system import Granularity, Layout, System, possible_layouts
from rlscope.model.warnings import ModelWarning

Obstacle = Refusal | Literal["queue_capacity_samples", "in_flight_cap", "never_trains"]
"""Reason why a run cannot run. queue_capacity_samples, in_flight_cap: smaller than what a step takes at a time.
never_trains: fewer than about one sample in a hundred is trained."""

_NOTHING_MEASURED: Final = frozenset({ModelWarning.CUT_LENGTHS, ModelWarning.FLAT_STEPS, ModelWarning.UPDATES_NOT_SEEN})
"""Warnings that leave the answer without any measurement to rest on."""
_FAILED_CHECKS: Final = frozenset({ModelWarning.NOT_EXPLAINED, ModelWarning.PREDICTION_MISSED})
"""Warnings that the model failed a check against its own run."""
_MOST_SAMPLES: Final = 100_000
"""Maximum samples per version: more take over a minute to simulate."""
_MOST_ENGINES: Final = 512
"""Maximum engines, unless the run has more: the simulations of more take minutes."""
_MOST_GPUS_RATIO: Final = 16
"""Maximum GPUs for a target, as a multiple of the run's. The model knows nothing of what starts to limit beyond."""
_NOISE_RATIO: Final = 0.01
"""Shortfall that still counts as reaching a target: draws and simulations of equal rates differ by as much."""
_MOST_GUESSES: Final = 4
"""Totals that the closed forms may guess for a target, before what is left is halved."""


@dataclass(frozen=True, slots=True, eq=False)
class WhatIf:
    """Forecasts of the run as it is and with the change."""

    asked: Change
    now: Forecast
    predicted: Forecast
    """Forecast with the change; only its layout is set if that cannot run."""
    obstacle: Obstacle | None
    """Why the changed run cannot run; None if it can."""
    gain_ratio: Estimate | None
    """Trained tokens per second over the current rate, minus 1, draw by draw; None if the changed run cannot run."""
    chose_layout: bool
    """Whether the change gives only the number of GPUs or a target, so that the fastest split was chosen."""
    warnings: tuple[ModelWarning, ...]
    """Aspects of the change that the run does not show, after the checks that the model of the run failed."""
    calibration: Calibration
    """Calibration of the unchanged run."""
    steps_per_version: float
    """Optimizer steps per publication with the change; `calibration` has those of the unchanged run."""


def what_if(model: ModelResult, change: Change) -> WhatIf:
    """Forecast a run with a change, beside the run as it is.

    Raises ImpossibleChangeError if the GPUs make no layout, if there are too many samples in a version or too many
    engines to simulate, or if a target is not reached.
    """
    asked = _asked(model, change)
    forecast = partial(_forecast, model, asked, change)
    if change.target_tokens_per_s is not None:
        return _with_fewest_gpus(model, asked, change, forecast)
    layouts = asked_layouts(model.calibration.layout, change, model.model_config.granularity)
    if not asked.synchronous:
        _check_engines(asked, max(layouts, key=lambda layout: layout.sampler_gpus))
    return forecast(layouts)


def _check_engines(asked: Calibration, layout: Layout) -> None:
    """Refuse a layout that no smaller part stands for in its simulation, if it has too many engines."""
    part, engine_gpus = part_of(asked.system, layout, asked.settings), asked.system.engine.gpus
    engines = part.layout.sampler_gpus // engine_gpus
    most = max(_MOST_ENGINES, asked.layout.sampler_gpus // engine_gpus)
    if engines > most:
        raise ImpossibleChangeError(f"these GPUs make up to {engines:,} engines; at most {most:,} can be simulated")


def _with_fewest_gpus(
    model: ModelResult, asked: Calibration, change: Change, forecast: Callable[[Sequence[Layout]], WhatIf]
) -> WhatIf:
    """Return the answer for the fewest GPUs that reach the target; more GPUs are taken never to be slower.

    The closed forms guess the total, each time with the correction that the last forecast made to them. Raises
    ImpossibleChangeError if the target is not reached, or if the change gives a number of GPUs too.
    """
    if (change.trainer_gpus, change.sampler_gpus, change.total_gpus) != (None, None, None):
        raise ImpossibleChangeError("give a target or a number of GPUs, not both")
    target, granularity = change.target_tokens_per_s or 0.0, model.model_config.granularity
    running = change.max_running or asked.layout.max_running
    split = partial(possible_layouts, granularity=granularity, running=(running,))
    totals, correction = _totals(asked.layout, granularity), model.anchor.rate_ratio
    answers: dict[int, WhatIf] = {}
    below, reached = -1, len(totals)
    while reached - below > 1:
        guess = bisect_left(totals, target / correction, key=lambda gpus: _fastest_rate(asked, split(gpus)))
        is_guess = len(answers) < _MOST_GUESSES
        place = min(max(guess, below + 1), reached - 1) if is_guess else (below + reached) // 2
        answer = answers[place] = forecast(split(totals[place]))
        rate = _shown_rate(answer)
        below, reached = (below, place) if rate >= (1.0 - _NOISE_RATIO) * target else (place, reached)
        correction = rate / _fastest_rate(asked, split(totals[place])) if rate else correction
    if reached < len(totals):
        return answers[reached]
    if answers[below].gain_ratio is None:
        return answers[below]
    raise ImpossibleChangeError(
        f"no split of up to {totals[below]} GPUs reaches {target:,g} trained tokens/s; the fastest is predicted to "
        f"reach {_shown_rate(answers[below]):,.0f}. A limit of the run, such as its staleness cap or its environment, "
        "may hold it back"
    )


def _shown_rate(answer: WhatIf) -> float:
    """Predicted trained tokens per second: the rate of the run, changed by the median gain; 0 if it cannot run."""
    gain = answer.gain_ratio
    return 0.0 if gain is None else (answer.now.tokens_per_s or 0.0) * (1.0 + gain.value)


def _totals(today: Layout, granularity: Granularity) -> range:
    """Return the numbers of GPUs to choose from, which all make at least one trainer replica and one engine."""
    engine, replica = granularity.gpus_per_engine, granularity.gpus_per_trainer_replica
    unit = math.lcm(granularity.gpus_per_node, math.gcd(engine, replica))
    most = _MOST_GPUS_RATIO * today.gpus
    totals = range(unit, most + 1, unit)
    return totals[bisect_left(totals, True, key=lambda gpus: bool(possible_layouts(gpus, granularity, (1,)))) :]


def _fastest_rate(asked: Calibration, layouts: Sequence[Layout]) -> float:
    """Trained tokens per second of the fastest split, by the closed forms."""
    if asked.synchronous:
        return max(_synchronous_rate(asked, layout) for layout in layouts)
    return float(closed_rates(asked, (asked.system,), layouts).max())


def _forecast(model: ModelResult, asked: Calibration, change: Change, layouts: Sequence[Layout]) -> WhatIf:
    """Forecast the fastest of the layouts. asked: the calibration with the change, except for its layout."""
    calibration, now = model.calibration, model.forecasts.today
    asked = replace(asked, layout=_fastest(asked, layouts, _most_staleness(model.model_config, change)))
    obstacle: Obstacle | None = _refusal(asked, asked.layout)
    predicted = Forecast(asked.layout, None)
    if change == Change():
        predicted = now
    elif not obstacle:
        # A layout that lets the queue grow is advised with the limit that holds it, unless the change asks for none.
        holds = asked.layout != calibration.layout and change.max_in_flight_samples is None
        predicted = anchored(predict(asked, asked.layout, holds=holds), model.anchor)
        obstacle = None if predicted.tokens_per_s else _why_never(asked.system)
    trainer_gpus = asked.layout.trainer_gpus
    unseen = None if calibration.training.has_seen(trainer_gpus) else trainer_gpus
    policy, flat_steps = model.model_config.new_cap_policy, calibration.training.is_flat
    warnings = warnings_of(change, calibration.system, unseen, policy, flat_steps=flat_steps)
    return WhatIf(
        asked=change,
        now=now,
        predicted=_graded(predicted, warnings),
        obstacle=obstacle,
        gain_ratio=predicted.gain_over(now),
        chose_layout=len(layouts) > 1,
        warnings=(*(warning for warning in model.warnings if warning in _FAILED_CHECKS), *warnings),
        calibration=calibration,
        steps_per_version=asked.steps_per_version,
    )


def _asked(model: ModelResult, change: Change) -> Calibration:
    """Apply the change to the calibration, except for its layout."""
    calibration, before = model.calibration, model.calibration.system.workload
    now, new_cap_policy = calibration.steps_per_version, model.model_config.new_cap_policy
    asked = changed(calibration, applied(change, before, now, new_cap_policy))
    samples = asked.system.workload.samples_per_step
    if samples > max(_MOST_SAMPLES, before.samples_per_step):
        raise ImpossibleChangeError(f"{samples:,} samples between two weight updates; at most {_MOST_SAMPLES:,}")
    return replace(asked, steps_per_version=float(change.publish_every or now))


def asked_layouts(today: Layout, change: Change, granularity: Granularity) -> tuple[Layout, ...]:
    """Layouts that a change asks for: every split if it gives only the total GPUs. Raises ImpossibleChangeError."""
    running = change.max_running or today.max_running
    trainers, samplers, gpus = change.trainer_gpus, change.sampler_gpus, change.total_gpus
    if gpus is not None and trainers is None and samplers is None:
        layouts = possible_layouts(gpus, granularity, (running,))
        if not layouts:
            raise ImpossibleChangeError(f"{gpus} GPUs make no trainer and engine: {_pieces(granularity)}")
        return layouts
    if trainers is None and samplers is None:
        return (replace(today, max_running=running),)
    total = today.gpus if gpus is None else gpus
    if trainers is not None and samplers is not None and gpus not in (None, trainers + samplers):
        raise ImpossibleChangeError(f"{trainers} trainer and {samplers} sampler GPUs are not {gpus} in all")
    layout = Layout(
        trainer_gpus=total - (samplers or 0) if trainers is None else trainers,
        sampler_gpus=total - (trainers or 0) if samplers is None else samplers,
        max_running=running,
    )
    _check(layout, total, granularity)
    return (layout,)


def _check(layout: Layout, total: int, granularity: Granularity) -> None:
    sides = (
        ("trainer", layout.trainer_gpus, granularity.gpus_per_trainer_replica),
        ("sampler", layout.sampler_gpus, granularity.gpus_per_engine),
    )
    for (side, gpus, piece), other in zip(sides, ("sampler", "trainer"), strict=True):
        if gpus < 0:
            raise ImpossibleChangeError(
                f"{total - gpus} {other} GPUs are more than all {total}; give both sides, or the total too"
            )
        if gpus < piece or gpus % piece:
            below, above = max(piece, gpus // piece * piece), max(piece, (gpus // piece + 1) * piece)
            nearest = f"{below}" if gpus < piece else f"{below} or {above}"
            raise ImpossibleChangeError(
                f"{gpus} {side} GPUs of {total}: {_pieces(granularity)}; the nearest is {nearest}"
            )


def _pieces(granularity: Granularity) -> str:
    replica, engine = granularity.gpus_per_trainer_replica, granularity.gpus_per_engine
    return f"trainer GPUs come in multiples of {replica}, sampler GPUs in multiples of {engine}"


def _most_staleness(model_config: ModelConfig, change: Change) -> int | None:
    """Return the largest p95 staleness to allow, in versions: a requested cap that drops nothing replaces the run's."""
    is_kept = change.max_staleness is None or model_config.new_cap_policy == "drop"
    return model_config.most_staleness if is_kept else change.max_staleness


def _fastest(asked: Calibration, layouts: Sequence[Layout], most_staleness: int | None) -> Layout:
    """Return the fastest layout that can run, preferring layouts that keep the staleness cap."""
    usable = [layout for layout in layouts if _refusal(asked, layout) is None]
    if len(usable) < 2:
        return usable[0] if usable else layouts[0]
    if asked.synchronous:
        return max(usable, key=lambda layout: _synchronous_rate(asked, layout))
    forecasts = predict_layouts(asked, usable, most_staleness)
    allowed = [each for each in (forecasts.today, *forecasts.others) if each.layout in usable]
    return max(allowed, key=lambda each: (not each.price.exceeds_cap(most_staleness), each.tokens_per_s or 0.0)).layout


def _synchronous_rate(calibration: Calibration, layout: Layout) -> float:
    step = split_step(calibration.system, layout)
    return step.trained_tokens_per_s if step else 0.0


def _refusal(calibration: Calibration, layout: Layout) -> Refusal | None:
    """Why a layout cannot run; None if it can. A synchronous run only needs a trainer, an engine and one place."""
    if calibration.synchronous and split_step(calibration.system, layout) is not None:
        return None
    return refusal(calibration.system, sampling_of(calibration.system), layout)


def _why_never(system: System) -> Obstacle:
    """Return the limit that no step can ever pass: it holds fewer whole groups than a step takes at a time."""
    workload, admission = system.workload, system.admission
    least = math.ceil(workload.samples_per_batch / workload.unit_samples) * workload.unit_samples
    if (admission.queue_capacity_samples or least) < least:
        return "queue_capacity_samples"
    return "in_flight_cap" if (admission.max_in_flight_samples or least) < least else "never_trains"


def _graded(forecast: Forecast, warnings: Sequence[ModelWarning]) -> Forecast:
    assumed: Grade = "assumed"
    rests_on_nothing = forecast.grade is not None and not _NOTHING_MEASURED.isdisjoint(warnings)
    return replace(forecast, grade=assumed) if rests_on_nothing else forecast
