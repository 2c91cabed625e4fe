"""How much of a changed response length dropping and a changed cap explain, and the length factor for the model.

Long samples take longest and are the first to be dropped as stale, so a change that makes samples staler makes the
trained ones shorter than the generated ones: an effect of the change.

A lower cap cuts what the baseline's own law of lengths has above it. A higher one frees the responses that ran into the
old one: how much longer those get the baseline cannot know, so what was measured is the cap's, up to where all of them
would run into the new one. What is left, beyond noise, has another cause.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

from rlscope.comparison.facts import ComparedRun, one_sided_settings
from rlscope.comparison.statistics import Difference
from rlscope.model.forecast.change import Change
from rlscope.model.lengths import LengthLaw
from rlscope.model.numerics.rootfind import root

CAP: Final = "max_output_tokens"
_MOST_FACTOR: Final = 64.0
"""A mean that no smaller factor reaches lies at the cap."""
_TOLERANCE: Final = 1e-6


@dataclass(frozen=True, slots=True)
class CapChange:
    """The cap on response lengths of two runs that have different ones. None: no cap."""

    before: int | None
    after: int | None

    @property
    def is_lower(self) -> bool:
        """Whether the other run's cap is below the baseline's."""
        return self.after is not None and (self.before is None or self.after < self.before)


@dataclass(frozen=True, slots=True)
class LengthCredit:
    """A measured change of the mean length of trained responses, by where it is from; each part plus 1 is a factor."""

    of_cap: float
    """Relative change that the cap explains; 0 with one cap."""
    beyond: float | None
    """What neither explains; None: nothing beyond noise."""
    of_dropping: float = 0.0
    """Relative change because long samples are dropped more, or less, often; those that were generated have no part."""

    @property
    def explained(self) -> float:
        """Relative change that cap and dropping explain."""
        return (1.0 + self.of_cap) * (1.0 + self.of_dropping) - 1.0

    @property
    def of_generated(self) -> float:
        """Relative change of the generated responses, by the cap and beyond it."""
        return (1.0 + self.of_cap) * (1.0 + (self.beyond or 0.0)) - 1.0


def cap_change(before: ComparedRun, after: ComparedRun) -> CapChange | None:
    """The caps, if both runs state theirs and they differ."""
    if CAP in one_sided_settings(before, after):
        return None
    caps = [run.settings.get(CAP) for run in (before, after)]
    known = [cap for cap in caps if cap is None or (isinstance(cap, int) and not isinstance(cap, bool) and cap > 0)]
    return CapChange(known[0], known[1]) if len(known) == 2 and known[0] != known[1] else None


def law_of(run: ComparedRun) -> LengthLaw | None:
    """Response lengths as the model of a run has them; None without a model."""
    return None if run.model is None else run.model.calibration.system.workload.lengths


def dropping_change(before: ComparedRun, after: ComparedRun) -> float:
    """Relative change of the mean trained length that is due to which samples were dropped."""
    return (1.0 + after.dropping_ratio) / (1.0 + before.dropping_ratio) - 1.0


def length_credit(
    law: LengthLaw | None, cap: CapChange | None, measured: Difference, of_dropping: float = 0.0
) -> LengthCredit:
    """Share a measured change of the mean length out. Without a law all that has the direction of the cap is its own.

    measured: the difference of the mean length of trained responses between the runs, a ratio.
    """

    def generated(change: float) -> float:
        return (1.0 + change) / (1.0 + of_dropping) - 1.0

    change = generated(measured.change or 0.0)
    least, most = (0.0, 0.0) if cap is None else _explained(law, cap)
    of_cap = min(max(change, least), most)
    interval, is_tested = measured.interval, measured.is_significant or of_cap != 0.0
    is_outside = interval is not None and not generated(interval.low) <= of_cap <= generated(interval.high)
    is_beyond = is_outside and is_tested and abs(change - of_cap) > _TOLERANCE
    return LengthCredit(of_cap, (1.0 + change) / (1.0 + of_cap) - 1.0 if is_beyond else None, of_dropping)


def _explained(law: LengthLaw | None, cap: CapChange) -> tuple[float, float]:
    """The least and the most that the cap can have changed the mean by."""
    if law is None:
        return (-1.0 + _TOLERANCE, 0.0) if cap.is_lower else (0.0, math.inf)
    if cap.is_lower and cap.after is not None:
        cut = law.with_cap(cap.after).mean_tokens / law.mean_tokens - 1.0
        return cut, cut
    if not law.capped_ratio or cap.before is None:
        return 0.0, 0.0
    if cap.after is None:
        return 0.0, math.inf
    return 0.0, law.capped_ratio * (cap.after - cap.before) / law.mean_tokens


def change_of_cap(law: LengthLaw, cap: CapChange, credit: LengthCredit, *, is_measured: bool) -> Change:
    """What the model is asked for a changed cap.

    is_measured: whether the lengths of the other run are known to differ; a higher cap is then asked with as much
    longer responses as it explains, because a law that was cut does not say how they go on.
    """
    if cap.is_lower or not is_measured or credit.of_cap <= 0.0:
        return Change(max_output_tokens=_cap_tokens(law, cap.after, 1.0))
    factor = length_factor(law, cap.after, credit.of_cap)
    return Change(max_output_tokens=_cap_tokens(law, cap.after, factor), length_factor=factor)


def _cap_tokens(law: LengthLaw, cap_tokens: int | None, factor: float) -> int:
    """The cap, or without one more than any response of the law has."""
    return math.ceil(law.max_tokens * max(1.0, factor)) + 1 if cap_tokens is None else cap_tokens


def length_factor(law: LengthLaw, cap_tokens: int | None, change: float) -> float:
    """The factor on every response that changes the mean by `change` after the cap cut them."""
    wanted = law.mean_tokens * (1.0 + change)
    uncut = replace(law, cap_tokens=None)

    def excess(log_factor: float) -> float:
        scaled = uncut.scaled(math.exp(log_factor))
        return (scaled if cap_tokens is None else scaled.with_cap(cap_tokens)).mean_tokens - wanted

    low, high = -math.log(_MOST_FACTOR), math.log(_MOST_FACTOR)
    if excess(high) <= 0.0:
        return _MOST_FACTOR
    if excess(low) >= 0.0:
        return 1.0 / _MOST_FACTOR
    return math.exp(root(excess, low, high, tolerance=_TOLERANCE))
