"""Alert rules as data. `alerts.config` reads them from a file."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from rlscope.analysis.result import Severity
from rlscope.document import LEFT_OUT, computed_field

Direction = Literal["above", "below"]
RuleKind = Literal["data_quality", "alarm", "hint"]

INTERVAL_NS: Final = 10_000_000_000
"""Between two evaluations unless the rules say otherwise: about as often as workers flush."""
WARM_UP_STEPS: Final = 3
"""The first step waits after no step before it; the wait after it may be for the first fill of the queue."""


@dataclass(frozen=True, slots=True)
class RuleWindow:
    """Window of a metric at each evaluation: a duration, or a number of optimizer steps.

    The other of the two is None. Both are None for the whole run, which is evaluated once, at its end.
    """

    length_ns: int | None
    """Duration."""
    steps: int | None = None
    """Number of optimizer steps."""


WHOLE_RUN: Final = RuleWindow(None)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule."""

    name: str
    """Name of the rule."""
    metric: str
    """A name of `metrics.METRICS`."""
    direction: Direction
    """Side of the threshold on which the condition holds."""
    threshold: float
    """In the unit of the metric; the condition holds strictly beyond it."""
    window: RuleWindow
    """Window of the metric at each evaluation."""
    for_ns: int = 0
    """Time for which the condition must hold before the rule fires."""
    keep_firing_for_ns: int = 0
    """Time for which it keeps firing after the condition last held."""
    kind: RuleKind = "hint"
    """Kind of the rule: data quality, alarm or hint."""
    min_evidence: Annotated[int | None, LEFT_OUT] = None
    """Least evidence in the window, in what the metric counts; with less there is no data. None: the metric's own."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """Labels of the rule, including `severity`."""
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])
    """Texts of the rule, with places for values."""

    @classmethod
    def over_run(
        cls, name: str, metric: str, direction: Direction, threshold: float, severity: Severity = "critical"
    ) -> "Rule":
        """Return an alarm over the whole run after warm-up.

        It has no minimum evidence, because a question about one run deserves an answer.
        """
        labels = {"severity": severity}
        return cls(name, metric, direction, threshold, WHOLE_RUN, kind="alarm", min_evidence=1, labels=labels)

    @computed_field
    @property
    def severity(self) -> Severity:
        """Severity of the rule: its label of that name."""
        return self.labels["severity"]  # type: ignore[return-value]  # `alerts.config` accepts nothing else

    def holds(self, value: float) -> bool:
        """Whether a value is beyond the threshold; a value equal to it is not."""
        return value > self.threshold if self.direction == "above" else value < self.threshold


@dataclass(frozen=True, slots=True)
class RuleSet:
    """The rules of one file, and when they are evaluated."""

    rules: tuple[Rule, ...]
    interval_ns: int = INTERVAL_NS
    warm_up_steps: int = WARM_UP_STEPS
