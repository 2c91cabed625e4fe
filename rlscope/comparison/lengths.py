"""Computes how much of a length change dropping and a changed cap explain, and the length factor for the model.

Long samples take longest and are dropped as stale first, so a change that increases staleness makes trained samples
shorter than generated ones. This is an effect of the change.

A lower cap cuts the part of the baseline's length distribution above it. A higher cap frees the responses that the old
cap cut. The baseline cannot show how long they get, so the measured increase is attributed to the cap, up to the length
at which all of them would reach the new cap. Any remainder beyond noise has another cause.
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
"""Maximum length factor: a mean that needs a larger one is at the cap."""
_TOLERANCE: Final = 1e-6


@dataclass(frozen=True, slots=True)
class CapChange:
    """The different response length caps of two runs, in tokens; None for no cap."""

    before: int | None
    after: int | None

    @property
    def is_lower(self) -> bool:
        """Whether the other run's cap is below the baseline's."""
        return self.after is not None and (self.before is None or self.after < self.before)


@dataclass(frozen=True, slots=True)
class LengthCredit:
    """The causes of a measured change of the mean trained response length; each part plus 1 is a factor."""

    of_cap: float
    """Relative change that the cap explains; 0 if the cap did not change."""
    beyond: float | None
    """Relative change that neither cap nor dropping explains; None if it is within noise."""
    of_dropping: float = 0.0
    """Relative change because long samples are dropped more or less often; generated lengths are unaffected."""

    @property
    def explained(self) -> float:
        """Relative change that the cap and dropping explain together."""
        return (1.0 + self.of_cap) * (1.0 + self.of_dropping) - 1.0

    @property
    def of_generated(self) -> float:
        """Relative change of the mean generated length, due to the cap and beyond it."""
        return (1.0 + self.of_cap) * (1.0 + (self.beyond or 0.0)) - 1.0


def cap_change(before: ComparedRun, after: ComparedRun) -> CapChange | None:
    """Return both caps; None unless both runs state theirs and they differ."""
    if CAP in one_sided_settings(before, after):
        return None
    caps = [run.settings.get(CAP) for run in (before, after)]
    known = [cap for cap in caps if cap is None or (isinstance(cap, int) and not isinstance(cap, bool) and cap > 0)]
    return CapChange(known[0], known[1]) if len(known) == 2 and known[0] != known[1] else None


def law_of(run: ComparedRun) -> LengthLaw | None:
    """Return the length distribution in a run's model; None without a model."""
    return None if run.model is None else run.model.calibration.system.workload.lengths


def dropping_change(before: ComparedRun, after: ComparedRun) -> float:
    """Return the relative change of the mean trained length that dropping causes."""
    return (1.0 + after.dropping_ratio) / (1.0 + before.dropping_ratio) - 1.0


def length_credit(
    law: LengthLaw | None, cap: CapChange | None, measured: Difference, of_dropping: float = 0.0
) -> LengthCredit:
    """Divide a measured change of the mean length among its causes.

    Without a law, any change in the direction of the cap is attributed to it. measured: the difference of the mean
    trained response length between the runs, as a ratio.
    """

    def generated(change: float) -> float:
        return (1.0 + change) / (1.0 + of_dropping) - 1.0

    change = generated(measured.change or 0.0)
    least, most = (0.0, 0.0) if cap is None else _explained(law, cap)
    of_cap = min(max(change, least), most)
    low, high, is_tested = measured.low, measured.high, measured.is_significant or of_cap != 0.0
    is_outside = low is not None and high is not None and not generated(low) <= of_cap <= generated(high)
    is_beyond = is_outside and is_tested and abs(change - of_cap) > _TOLERANCE
    return LengthCredit(of_cap, (1.0 + change) / (1.0 + of_cap) - 1.0 if is_beyond else None, of_dropping)


def _explained(law: LengthLaw | None, cap: CapChange) -> tuple[float, float]:
    """Return the smallest and the largest relative change of the mean that the cap can cause."""
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
    """Return the model input for a changed cap.

    is_measured: whether the other run's lengths are known to differ. With a higher cap, responses are then scaled by
    the change that it explains, because a cut length distribution does not show how long responses would get.
    """
    if cap.is_lower or not is_measured or credit.of_cap <= 0.0:
        return Change(max_output_tokens=_cap_tokens(law, cap.after, 1.0))
    factor = length_factor(law, cap.after, credit.of_cap)
    return Change(max_output_tokens=_cap_tokens(law, cap.after, factor), length_factor=factor)


def _cap_tokens(law: LengthLaw, max_output_tokens: int | None, factor: float) -> int:
    """Return the cap; without one, a value above the longest response of the law."""
    return math.ceil(law.max_tokens * max(1.0, factor)) + 1 if max_output_tokens is None else max_output_tokens


def length_factor(law: LengthLaw, max_output_tokens: int | None, change: float) -> float:
    """Return the factor on every response that changes the mean by `change`, after cutting at the cap."""
    wanted = law.mean_tokens * (1.0 + change)
    uncut = replace(law, max_output_tokens=None)

    def excess(log_factor: float) -> float:
        scaled = uncut.scaled(math.exp(log_factor))
        return (scaled if max_output_tokens is None else scaled.with_cap(max_output_tokens)).mean_tokens - wanted

    low, high = -math.log(_MOST_FACTOR), math.log(_MOST_FACTOR)
    if excess(high) <= 0.0:
        return _MOST_FACTOR
    if excess(low) >= 0.0:
        return 1.0 / _MOST_FACTOR
    return math.exp(root(excess, low, high, tolerance=_TOLERANCE))
