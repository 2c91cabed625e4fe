"""What each side of a layout loses, by cause, and the one word for it.

Both sides are measured against the same sequence of limits, so the causes of a side add up with its work to 1 exactly.
A loss of the samplers is one of capacity: an engine that decodes a smaller batch than it could loses some while it is
never idle. Not covered: tails, stragglers and noise, which no steady state has.
"""

from dataclasses import dataclass, fields
from typing import Final, Literal

import numpy as np

from rlscope.model.sampler_limits import Levels
from rlscope.model.system import Layout, Reals

Regime = Literal["balanced", "samplers", "trainers", "weight_updates", "environment", "admission", "staleness_cap"]
"""What the layout waits for. trainers: surplus generation is held back or thrown away. admission: the cap on samples
in flight."""

BALANCED_LOSS_RATIO: Final = 0.10
"""One GPU in ten, as in the verdict of a run: below this no change of layout pays for itself."""


@dataclass(frozen=True, slots=True)
class SideLosses:
    """Shares of one side's GPU time, 0..1, by what they wait for."""

    samplers: float = 0.0
    """Of the trainers: they would wait if nothing but the engines' speed held the samplers."""
    trainers: float = 0.0
    """Of the samplers: what they could make beyond what is trained on."""
    weight_updates: float = 0.0
    environment: float = 0.0
    admission: float = 0.0
    staleness_cap: float = 0.0

    @property
    def total_ratio(self) -> float:
        """All of them."""
        return sum(getattr(self, cause.name) for cause in fields(self))


def trainer_losses(levels: Levels, train_s: Reals, blocked_s: float, step_s: Reals) -> list[SideLosses]:
    """Waits for samples, charged to the limits that cause them, and the time in which publishing blocks the trainers.

    All in seconds of one step; train_s has blocked_s in it.
    """
    reached = [np.maximum(level, train_s) for level in _limits(levels)]
    samplers, updates, admission, environment, staleness = np.diff(np.stack([train_s, *reached]), axis=0) / step_s
    columns = (samplers, np.zeros_like(step_s), updates + blocked_s / step_s, environment, admission, staleness)
    return [SideLosses(*map(float, row)) for row in zip(*columns, strict=True)]


def sampler_losses(levels: Levels, train_s: Reals, step_s: Reals) -> list[SideLosses]:
    """Capacity that nobody could use or that a limit takes away, in shares of the samplers' time.

    Up to the trainers' own pace it is the trainers that a surplus waits for, whatever else holds it back: without that
    limit the step would be no shorter. Engines that take new weights lose that time in any case.
    """
    hardware, updates, *limits = _limits(levels)
    reached = [np.maximum(level, train_s) for level in (updates, *limits)]
    stages = np.stack([hardware, updates, *reached])
    weight_updates, trainers, admission, environment, staleness = np.diff(stages, axis=0) / step_s
    columns = (np.zeros_like(step_s), trainers, weight_updates, environment, admission, staleness)
    return [SideLosses(*map(float, row)) for row in zip(*columns, strict=True)]


def regime_of(layout: Layout, trainers: SideLosses, samplers: SideLosses) -> Regime:
    """balanced when neither side loses more than BALANCED_LOSS_RATIO; else the cause that costs the most GPU time."""
    if max(trainers.total_ratio, samplers.total_ratio) <= BALANCED_LOSS_RATIO:
        return "balanced"
    causes: tuple[Regime, ...] = ("samplers", "trainers", "weight_updates", "environment", "admission", "staleness_cap")
    lost = [
        layout.trainer_gpus * getattr(trainers, cause) + layout.sampler_gpus * getattr(samplers, cause)
        for cause in causes
    ]
    return causes[int(np.argmax(lost))]


def _limits(levels: Levels) -> tuple[Reals, Reals, Reals, Reals, Reals]:
    return (levels.hardware_s, levels.updates_s, levels.admission_s, levels.environment_s, levels.staleness_s)
