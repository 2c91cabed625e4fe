"""Rules whose threshold is a baseline run's own value: `throughput.steady_tokens_per_s < 0.95 * baseline`.

The value of the baseline is the metric over its whole run after warm-up, read as a rule reads it. Here are the rules,
and how their thresholds are made; `comparison/gate.py` reads both runs.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rlscope.alerts.config import one_off
from rlscope.alerts.evaluate import written
from rlscope.alerts.metrics import STEADY
from rlscope.alerts.offline import RuleOutcome, RuleReport, evaluate_rules
from rlscope.alerts.types import WHOLE_RUN, Direction, Rule, RuleKind, RuleSet
from rlscope.analysis.result import Severity
from rlscope.errors import RuleError
from rlscope.trace.store import OpenRun

_NUMBER: Final = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_FORM: Final = re.compile(
    rf"(?P<metric>\S+)\s*(?P<sign>[<>])\s*(?:(?P<factor>{_NUMBER})\s*\*\s*)?baseline"
    rf"(?:\s*(?P<side>[+-])\s*(?P<offset>{_NUMBER}))?"
)
_EXPECTED: Final = "'METRIC < 0.95 * baseline', 'METRIC > baseline + 0.1' or 'METRIC > baseline'"


@dataclass(frozen=True, slots=True)
class BaselineRule:
    """A rule with a threshold of factor * baseline + offset."""

    name: str
    metric: str
    direction: Direction
    factor: float = 1.0
    offset: float = 0.0
    severity: Severity = "critical"
    kind: RuleKind = "alarm"
    allows_noise: bool = False
    """Whether the threshold is lowered where both runs' own noise asks for it."""

    def rule(self, value: float, note: str) -> Rule:
        """The rule with its threshold, for a value of the baseline; note: on where it comes from."""
        threshold = self.factor * value + self.offset
        plain = Rule(self.name, self.metric, None, self.direction, threshold, WHOLE_RUN, kind=self.kind,
                     labels={"severity": self.severity})  # fmt: skip
        text = f"{written(plain, value)} in {note}".replace("{", "{{").replace("}", "}}")
        return replace(plain, annotations={"baseline": text})


REGRESSIONS: Final[tuple[BaselineRule, ...]] = (
    # A restart costs more than 5% is worth; where the steps of the runs vary by more, that counts instead.
    BaselineRule("throughput_regressed", STEADY, "below", factor=0.95, allows_noise=True),
    # Versions are whole numbers, so one more may be rounding.
    BaselineRule("staleness_regressed", "staleness.tokens.p95", "above", offset=1.0, severity="warning"),
    # One GPU in ten.
    BaselineRule("trainers_more_idle", "idle.trainer_ratio", "above", offset=0.1, severity="warning"),
    BaselineRule("samplers_more_idle", "idle.sampler_ratio", "above", offset=0.1, severity="warning"),
    BaselineRule("more_dropped_stale", "dropped_stale_ratio", "above", offset=0.05, severity="warning"),
    BaselineRule("weight_updates_regressed", "weight_update.gpu_ratio", "above", offset=0.05, severity="warning"),
)
"""The built-in rules of `rlscope check --baseline`."""


def names_baseline(text: str) -> bool:
    """Whether a rule of the command line is about a baseline."""
    return re.search(r"\bbaseline\b", text) is not None


def baseline_rule(text: str) -> BaselineRule:
    """A critical rule from one line. Raises RuleError for another form or an unknown metric."""
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise RuleError.of(
            f"--fail-if {text!r}",
            found="a baseline in another form",
            expected=_EXPECTED,
            next_step="`rlscope rules` lists the metrics.",
        )
    # The metric is checked where all are, with a threshold that every metric can have.
    metric, sign = found["metric"], found["sign"]
    direction = one_off(f"{metric} {sign} 0").direction
    offset = float(found["offset"] or 0.0) * (-1.0 if found["side"] == "-" else 1.0)
    return BaselineRule(text, metric, direction, float(found["factor"] or 1.0), offset)


def values_of(run: OpenRun, metrics: Sequence[str], rules: RuleSet) -> Mapping[str, float]:
    """Each metric over the whole run, after the warm-up of the rules; those without a value are left out."""
    # A rule that always fires reports the value.
    always = tuple(
        Rule(metric, metric, None, "above", -math.inf, WHOLE_RUN, kind="alarm", labels={"severity": "info"})
        for metric in dict.fromkeys(metrics)
    )
    alerts = evaluate_rules(run, replace(rules, rules=always)).alerts
    return {alert.rule: alert.value for alert in alerts if alert.value is not None}


def with_unjudged(report: RuleReport, missing: Sequence[BaselineRule], baseline: str) -> RuleReport:
    """The report with the rules for which the baseline has no value: they are not judged, and a note says why."""
    outcomes = tuple(RuleOutcome(each.rule(math.nan, baseline), (), 1, 0) for each in missing)
    notes = tuple(f"{each.name}: {baseline} has no value of {each.metric}" for each in missing)
    return replace(report, outcomes=(*report.outcomes, *outcomes), notes=(*report.notes, *notes))
