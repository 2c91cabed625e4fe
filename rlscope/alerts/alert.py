"""What evaluation says of a rule: that it fires, since when, with which value, and what that cost. No wording."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Severity = Literal["info", "warning", "critical"]
SEVERITIES: Final[tuple[Severity, ...]] = ("info", "warning", "critical")
"""From what only informs to what must wake somebody."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One stretch of time in which one rule fires."""

    rule: str
    severity: Severity
    labels: Mapping[str, str]
    """The labels of the rule, `severity` among them."""
    annotations: Mapping[str, str]
    """The texts of the rule, with values filled in."""
    value: float | None
    """The metric when the condition last held, in the metric's unit."""
    start_ns: int
    """The tick at which it began to fire, UTC epoch."""
    end_ns: int | None
    """The tick at which it was resolved; None while it fires."""
    cost_gpu_s: float | None
    """GPU-seconds lost to it up to its last tick; None where the metric has no price."""
    held_since_ns: int = 0
    """The first tick at which the condition held; start_ns less what the rule waits `for`."""
    worst_value: float | None = None
    """The value furthest beyond the threshold while it fired."""
    evidence: int = 0
    """What the value was counted from when the condition last held, in the metric's unit of evidence."""

    @property
    def fingerprint(self) -> str:
        """16 hex digits that stay the same for a rule and its labels, whatever the value and the time."""
        identity = json.dumps([self.rule, sorted(self.labels.items())])
        return hashlib.sha256(identity.encode()).hexdigest()[:16]


def at_least(severity: Severity, floor: Severity) -> bool:
    """Whether a severity is as grave as another or graver."""
    return SEVERITIES.index(severity) >= SEVERITIES.index(floor)
