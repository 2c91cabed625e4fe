"""The texts of a rule with its values filled in, each written in the metric's unit."""

from typing import Final

from rlscope.alerts.evaluation import RuleState
from rlscope.alerts.metrics import BY_NAME
from rlscope.alerts.rule import Rule
from rlscope.alerts.spans import write_duration, write_window
from rlscope.report.numbers import count, quantity, significant

_WRITTEN_AS: Final = {
    "versions": "value_versions",
    "ratio": "value_ratio",
    "s": "value_s",
    "tokens_per_s": "value_tokens_per_s",
}
"""Names whose ending says to `quantity` how to write them."""


_COUNTED_IN: Final = {"gpu_s": "evidence_gpu_s", "s": "evidence_s", "tokens": "evidence_tokens"}


def written(rule: Rule, value: float | None) -> str:
    """A value of the rule's metric with its unit."""
    unit = BY_NAME[rule.metric].unit if rule.metric is not None else ""
    if unit in _WRITTEN_AS:
        return quantity(_WRITTEN_AS[unit], value)
    return significant(value)


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
        "evidence": count(state.evidence),
        "worker": state.worker_id or "no worker",
        "run": run_id,
    }
    return {key: text.format_map(fields) for key, text in rule.annotations.items()}


def evidence(rule: Rule, value: float) -> str:
    """What a value was counted from, with its unit."""
    if rule.metric is None:
        return f"{count(value)} rows"
    unit = BY_NAME[rule.metric].evidence
    return quantity(_COUNTED_IN[unit], value) if unit in _COUNTED_IN else f"{count(value)} {unit}"
