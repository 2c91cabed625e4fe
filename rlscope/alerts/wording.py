"""The texts of a rule with its values filled in, each written in the metric's unit."""

from typing import Final

from rlscope.alerts.evaluation import RuleState
from rlscope.alerts.metrics import BY_NAME
from rlscope.alerts.rule import Rule
from rlscope.alerts.spans import write_duration, write_window
from rlscope.report import numbers

_WRITTEN_AS: Final = {
    "versions": "value_versions",
    "ratio": "value_ratio",
    "s": "value_s",
    "tokens_per_s": "value_tokens_per_s",
}
"""Names whose ending says to `numbers.quantity` how to write them."""


def written(rule: Rule, value: float | None) -> str:
    """A value of the rule's metric with its unit."""
    unit = BY_NAME[rule.metric].unit if rule.metric is not None else ""
    if unit in _WRITTEN_AS:
        return numbers.quantity(_WRITTEN_AS[unit], value)
    return numbers.significant(value)


def condition(rule: Rule) -> str:
    """What the rule asks: metric, window, comparison, threshold."""
    subject = rule.metric or "own SELECT"
    sign = ">" if rule.direction == "above" else "<"
    return f"{subject} over {write_window(rule.window)} {sign} {written(rule, rule.threshold)}"


def annotations(rule: Rule, state: RuleState, run_id: str) -> dict[str, str]:
    """The rule's annotations as they read now."""
    fields = {
        "rule": rule.name,
        "metric": rule.metric or "own SELECT",
        "value": written(rule, state.value),
        "worst": written(rule, state.worst_value),
        "threshold": written(rule, rule.threshold),
        "window": write_window(rule.window),
        "for": write_duration(rule.for_ns),
        "evidence": numbers.count(state.evidence),
        "worker": state.worker_id or "no worker",
        "run": run_id,
    }
    return {key: text.format_map(fields) for key, text in rule.annotations.items()}
