"""The metrics that rules may name, and rules, as text."""

from rlscope.alerts.metrics import METRICS
from rlscope.alerts.rule import Rule, RuleSet
from rlscope.alerts.spans import write_duration
from rlscope.alerts.wording import condition


def as_text(rules: RuleSet) -> str:
    """Every metric with its unit and meaning, then every rule with what it asks."""
    metrics = [f"  {metric.name:33} {metric.unit.replace('_per_', '/'):9} {metric.meaning}" for metric in METRICS]
    listed = [f"  {rule.name:24} {rule.severity:9} {rule.kind:13} {_asked(rule)}" for rule in rules.rules]
    return "\n".join(["Metrics:", *metrics, "", f"Rules, every {write_duration(rules.interval_ns)}:", *listed])


def _asked(rule: Rule) -> str:
    held = f", for {write_duration(rule.for_ns)}" if rule.for_ns else ""
    return condition(rule) + held
