"""Rules whose threshold is a baseline run's own value: `throughput.steady_tokens_per_s < 0.95 * baseline`.

The value of the baseline is the metric over its whole run after warm-up, computed as for a rule. This module holds the
rules and computes their thresholds; `comparison/gate.py` reads both runs.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rlscope.alerts.config import NUMBER, one_off, refused_line
from rlscope.alerts.evaluate import written
from rlscope.alerts.metrics import STEADY
from rlscope.alerts.offline import RuleOutcome, RuleReport, evaluate_rules
from rlscope.alerts.types import WHOLE_RUN, Direction, Rule, RuleSet
from rlscope.analysis.result import Severity
from rlscope.trace.store import OpenRun

_FORM: Final = re.compile(
    rf"(?P<metric>\S+)\s*(?P<sign>[<>])\s*(?:(?P<factor>{NUMBER})\s*\*\s*)?baseline"
    rf"(?:\s*(?P<side>[+-])\s*(?P<offset>{NUMBER}))?"
)


@dataclass(frozen=True, slots=True)
class BaselineRule:
    """A rule with a threshold of factor * baseline + offset."""

    name: str
    metric: str
    direction: Direction
    factor: float = 1.0
    offset: float = 0.0
    severity: Severity = "critical"
    allows_noise: bool = False
    """Whether the threshold is lowered if the noise of the two runs requires it."""

    def rule(self, value: float, note: str) -> Rule:
        """Return the rule with the threshold for a value of the baseline; `note` names the source of the value."""
        threshold = self.factor * value + self.offset
        plain = Rule(self.name, self.metric, self.direction, threshold, WHOLE_RUN, kind="alarm", min_evidence=1,
                     labels={"severity": self.severity})  # fmt: skip
        text = f"{written(plain, value)} in {note}".replace("{", "{{").replace("}", "}}")
        return replace(plain, annotations={"baseline": text})


REGRESSIONS: Final[tuple[BaselineRule, ...]] = (
    # A restart costs more than 5% is worth. If the steps of the runs vary by more, their noise counts instead.
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

_WHY: Final = {
    STEADY: ", which counts response tokens; `rlscope compare` tests the rates of logs, whose tokens include prompts"
}
"""Why a metric may have no value, and what has."""


def baseline_rule(text: str) -> BaselineRule:
    """Return a critical rule from one line. Raises RuleError if its form or its metric is unknown."""
    found = _FORM.fullmatch(text.strip())
    if found is None:
        expected = "'METRIC < 0.95 * baseline', 'METRIC > baseline + 0.1' or 'METRIC > baseline'"
        raise refused_line(text, "a baseline in another form", expected)
    # `one_off` checks the metric, with a threshold that is valid for every metric.
    metric, sign = found["metric"], found["sign"]
    direction = one_off(f"{metric} {sign} 0").direction
    offset = float(found["offset"] or 0.0) * (-1.0 if found["side"] == "-" else 1.0)
    return BaselineRule(text, metric, direction, float(found["factor"] or 1.0), offset)


def values_of(run: OpenRun, metrics: Sequence[str], rules: RuleSet) -> Mapping[str, float]:
    """Return each metric over the whole run after warm-up, without the metrics that have no value."""
    # A rule that always fires reports the value.
    always = tuple(
        Rule(metric, metric, "above", -math.inf, WHOLE_RUN, kind="alarm", min_evidence=1, labels={"severity": "info"})
        for metric in dict.fromkeys(metrics)
    )
    alerts = evaluate_rules(run, replace(rules, rules=always)).alerts
    return {alert.rule: alert.value for alert in alerts if alert.value is not None}


def with_unjudged(report: RuleReport, missing: Sequence[BaselineRule], baseline: str) -> RuleReport:
    """Return the report with the rules for which the baseline has no value: not evaluated, with a note on why."""
    outcomes = tuple(RuleOutcome(each.rule(math.nan, baseline), (), 1, 0) for each in missing)
    warnings = tuple(
        f"{each.name}: {baseline} has no value of {each.metric}{_WHY.get(each.metric, '')}" for each in missing
    )
    return replace(report, rules=(*report.rules, *outcomes), warnings=(*report.warnings, *warnings))
