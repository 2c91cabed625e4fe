"""The rules that a run is held to, as facts. Reading them from a file is the business of `rule_files`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from rlscope.analysis.result import Severity

Direction = Literal["above", "below"]
RuleKind = Literal["data_quality", "alarm", "hint"]
Reduction = Literal["mean", "min", "max", "sum", "last"]

INTERVAL_NS: Final = 10_000_000_000
"""From one tick to the next unless the rules say otherwise: as often as workers flush, about."""
WARM_UP_STEPS: Final = 3
"""One step has no step before it to wait after; two have one wait, which may be the first fill of the queue."""


@dataclass(frozen=True, slots=True)
class RuleWindow:
    """How far back from a tick a metric looks: a time, or a number of optimizer steps.

    The other of the two is None; both are for the whole run, which is looked at once, at its end.
    """

    length_ns: int | None
    steps: int | None = None


WHOLE_RUN: Final = RuleWindow(None)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule."""

    name: str
    metric: str | None
    """A name of `metrics.METRICS`; None for a rule with SQL of its own."""
    sql: str | None
    """The user's own SELECT with the columns at_ns and value; None for a rule with a metric."""
    direction: Direction
    threshold: float
    """In the unit of the metric; the condition holds strictly beyond it."""
    window: RuleWindow
    for_ns: int = 0
    """How long the condition must hold before the rule fires."""
    keep_firing_for_ns: int = 0
    """How long it goes on firing after the condition last held."""
    kind: RuleKind = "hint"
    min_evidence: int = 1
    """Least of what the metric counts in its window; with less there is no data."""
    reduction: Reduction = "mean"
    """What becomes of the values of the user's own SELECT within a window."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def severity(self) -> Severity:
        """The label of that name."""
        return self.labels["severity"]  # type: ignore[return-value]  # the reader of rules let nothing else in

    def holds(self, value: float) -> bool:
        """Whether a value is beyond the threshold; one exactly on it is not."""
        return value > self.threshold if self.direction == "above" else value < self.threshold


@dataclass(frozen=True, slots=True)
class RuleSet:
    """The rules of one file, and when they are evaluated."""

    rules: tuple[Rule, ...]
    interval_ns: int = INTERVAL_NS
    warm_up_steps: int = WARM_UP_STEPS
