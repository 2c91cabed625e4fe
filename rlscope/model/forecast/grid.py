"""Solve the what-ifs among which the panel of the report chooses, around the current and the recommended layout.

Every point is one `what_if`, so the panel and the command agree. The split changes alone; at the current and at the
recommended split, one other setting changes with it. Points are solved in the order of their use until as many samples
were simulated as a page has time for. Not covered: two other settings at a time.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from rlscope.errors import ImpossibleChangeError
from rlscope.model.forecast.actions import SETTINGS
from rlscope.model.forecast.change import Change
from rlscope.model.forecast.predict import samples_to_simulate
from rlscope.model.forecast.result import ModelResult
from rlscope.model.forecast.what_if import WhatIf, what_if
from rlscope.model.system import Layout, possible_layouts

GridSetting = Literal["max_running", "max_staleness", "publish_every", "max_in_flight_samples"]
"""Settings besides the split, by their name in a `Change`."""
_Asked: TypeAlias = tuple[Layout, GridSetting | None, int | None]
_KEPT_RATIO: Final = 0.5
"""Minimum share of its GPUs that a side keeps. The run says little about what lies beyond."""
_MOST_SPLITS: Final = 8
_MOST_POINTS: Final = 24
"""Maximum number of points: each takes 0.02 s without a simulation."""
_MOST_SAMPLES: Final = 250_000
"""Maximum number of simulated samples, after which no further point is begun: 4 to 10 µs each."""


@dataclass(frozen=True, slots=True, eq=False)
class GridPoint:
    """One what-if."""

    split: Layout
    """The split, with the current limit on running requests."""
    setting: GridSetting | None
    """Setting that changes with the split; None if the split changes alone."""
    value: int | None
    """Value of the setting."""
    answer: WhatIf


def recommended_layout(model: ModelResult) -> Layout | None:
    """Return the layout to use or to try; None if the current one is kept, or if a what-if cannot predict it."""
    advised = model.recommendation
    # A what-if of a synchronous run stays synchronous; every other layout is recommended as an asynchronous one.
    is_another = advised.advice in ("change", "probe") and not model.calibration.synchronous
    return advised.best.layout if is_another else None


@lru_cache(maxsize=4)
def solve_grid(model: ModelResult) -> tuple[GridPoint, ...]:
    """Return the what-ifs, without the current run itself; empty if it has no alternative.

    Cached: a page or a notebook that is drawn again asks for the same ones.
    """
    calibration, steps_per_version = model.calibration, model.calibration.steps_per_version
    workload = calibration.system.workload
    points, simulated_samples = list[GridPoint](), 0
    for split, setting, value in _asked(model)[:_MOST_POINTS]:
        if simulated_samples >= _MOST_SAMPLES:
            break
        change = Change(split.trainer_gpus, split.sampler_gpus)
        with suppress(ImpossibleChangeError):
            answer = what_if(model, change if setting is None else replace(change, **{setting: value}))
            points.append(GridPoint(split, setting, value, answer))
            samples = round(workload.samples_per_step * answer.steps_per_version / steps_per_version)
            if not calibration.synchronous:
                system = replace(calibration.system, workload=replace(workload, samples_per_step=samples))
                simulated_samples += samples_to_simulate(system, split, calibration.settings)
    return tuple(points)


def _asked(model: ModelResult) -> list[_Asked]:
    """Return what to solve: the recommended layout, the splits, and the settings at the current, then at its split."""
    today, best = model.calibration.layout, recommended_layout(model)
    advised = today if best is None else replace(best, max_running=today.max_running)
    asked = list[_Asked]()
    if best is not None and best != advised:
        asked.append((advised, "max_running", best.max_running))
    asked.extend((split, None, None) for split in _splits(model, advised) if split != today)
    values: list[tuple[GridSetting, int]] = [(name, value) for name, tried in _values(model).items() for value in tried]
    asked.extend((split, setting, value) for split in (today, advised) for setting, value in values)
    return list(dict.fromkeys(asked))


def _splits(model: ModelResult, advised: Layout) -> list[Layout]:
    """Return the splits of the current GPUs, evenly thinned, the advised one first."""
    today = model.calibration.layout
    near = [
        each
        for each in possible_layouts(today.gpus, model.model_config.granularity, (today.max_running,))
        if each.trainer_gpus >= _KEPT_RATIO * today.trainer_gpus
        and each.sampler_gpus >= _KEPT_RATIO * today.sampler_gpus
    ]
    thinned = near[:: max(1, math.ceil(len(near) / _MOST_SPLITS))]
    return [advised, *thinned]


def current_values(model: ModelResult) -> Mapping[GridSetting, float | None]:
    """Return the current value of every setting that the grid changes; None for a limit that the run does not have.

    A synchronous run has neither stale samples nor any that wait.
    """
    calibration, admission = model.calibration, model.calibration.system.admission
    running, every = calibration.layout.max_running, calibration.steps_per_version
    if calibration.synchronous:
        return {"max_running": running, "publish_every": every}
    return {
        "max_running": running,
        "max_staleness": admission.max_staleness,
        "publish_every": every,
        "max_in_flight_samples": admission.max_in_flight_samples,
    }


def _values(model: ModelResult) -> dict[GridSetting, list[int]]:
    """Return the values of each setting: half and twice the current one, and those of the recommendations.

    Publications only get rarer. A limit that the run does not have is tried at two values.
    """
    best, batch = recommended_layout(model), model.calibration.system.workload.samples_per_batch
    current, usual = current_values(model), {"max_staleness": 2.0, "max_in_flight_samples": 2.0 * batch}
    values: dict[GridSetting, list[int]] = {}
    for setting, now in current.items():
        tried = [usual[setting], 2.0 * usual[setting]] if now is None else [0.5 * now, 2.0 * now]
        if setting == "publish_every" and now is not None:
            tried = [2.0 * now, 4.0 * now]
        if setting == "max_running" and best is not None:
            tried.append(best.max_running)
        actions = (each.after for each in model.ranking.actions if SETTINGS.get(each.what, each.what) == setting)
        tried += [after for after in actions if isinstance(after, int | float)]
        values[setting] = sorted({round(each) for each in tried} - {0, now})
    return values
