"""What a rule returns: an illness, how bad it is, the numbers that show it, and what it cost. No wording."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Severity = Literal["info", "warning", "critical"]
Quantity = int | float | str | None


@dataclass(frozen=True, slots=True)
class Finding:
    """One illness found in a run."""

    rule: str
    """The rule's name: the name of its module."""
    severity: Severity
    cost_gpu_s: float | None
    """GPU-seconds that the illness took; None when it cannot be priced."""
    evidence: Mapping[str, Quantity]
    """Numbers that the sentence is made of, each with its unit in its name."""
    start_ns: int | None
    """Start of the interval that the evidence covers, UTC epoch; None when it has no interval."""
    end_ns: int | None
