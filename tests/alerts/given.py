"""Rules as tests need them."""

from dataclasses import replace
from typing import Any

from rlscope.alerts.types import Rule, RuleWindow
from rlscope.analysis.result import Severity

S = 1_000_000_000


def rule(
    name: str, metric: str | None, above: float, window: RuleWindow, severity: Severity = "warning", **more: Any
) -> Rule:
    """A hint that fires above a value."""
    return replace(Rule(name, metric, None, "above", above, window, labels={"severity": severity}), **more)
