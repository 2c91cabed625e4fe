"""Divides a change of response lengths among its causes: a changed cap, dropping, and anything else.

Long samples take longest and are dropped as stale first, so a change that increases staleness makes trained samples
shorter than generated ones. This is an effect of the change. If the cap changed, a significant change in its direction
is attributed to it.
"""

import math
from dataclasses import dataclass
from typing import Final

from rlscope.comparison.facts import ComparedRun, one_sided_settings
from rlscope.comparison.statistics import Difference
from rlscope.model.forecast.change import Change
from rlscope.model.forecast.result import ModelResult

CAP: Final = "max_output_tokens"


@dataclass(frozen=True, slots=True)
class LengthChange:
    """The causes of a measured change of the mean trained response length; each part plus 1 is a factor."""

    of_cap: float
    """Relative change due to the cap; 0 if the cap did not change."""
    beyond: float | None
    """Relative change that neither cap nor dropping explains; None if it is within noise."""
    of_dropping: float
    """Relative change because long samples are dropped more or less often; generated lengths are unaffected."""


def length_change(before: ComparedRun, after: ComparedRun, measured: Difference) -> LengthChange:
    """Divide the change of the mean length. measured: that of the trained responses, as a ratio."""
    of_dropping = (1.0 + after.dropping_ratio) / (1.0 + before.dropping_ratio) - 1.0

    def generated(change: float) -> float:
        return (1.0 + change) / (1.0 + of_dropping) - 1.0

    change = generated(measured.change or 0.0)
    if change * _direction_of_cap(before, after) > 0.0:
        return LengthChange(change, None, of_dropping)
    low, high = measured.low, measured.high
    is_outside = low is not None and high is not None and not generated(low) <= 0.0 <= generated(high)
    return LengthChange(0.0, change if is_outside and measured.is_significant else None, of_dropping)


def _direction_of_cap(before: ComparedRun, after: ComparedRun) -> int:
    """Return 1 if the other run has a higher cap or none, -1 if it has a lower one, else 0."""
    if CAP in one_sided_settings(before, after):
        return 0
    caps = [run.settings.get(CAP) for run in (before, after)]
    first, then = (math.inf if cap is None else cap for cap in caps)
    if not isinstance(first, int | float) or not isinstance(then, int | float):
        return 0
    return (then > first) - (then < first)


def cap_input(model: ModelResult, max_output_tokens: int | None, of_cap: float) -> Change:
    """Return the model input for a changed cap.

    A lower cap cuts the baseline's own lengths. How long the responses get that the old cap cut is known from the other
    run only, so under a higher cap, all are scaled by the measured change.
    """
    if of_cap > 0.0 or max_output_tokens is None:
        return scaled(model, 1.0 + max(of_cap, 0.0))
    return Change(max_output_tokens=max_output_tokens)


def scaled(model: ModelResult | None, factor: float) -> Change:
    """Return the model input for a change of all lengths by a factor; no cap cuts them again if they get longer."""
    if model is None or factor < 1.0:
        return Change(length_factor=factor)
    longest = model.calibration.system.workload.lengths.max_tokens
    return Change(length_factor=factor, max_output_tokens=math.ceil(longest * factor) + 1)
