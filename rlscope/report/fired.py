"""The alert rules that fired in an analysed run, in words: for the card and for the page."""

from typing import NamedTuple

from rlscope.alerts.alert import Alert
from rlscope.analysis import Analysis
from rlscope.report import numbers

NONE_FIRED = "No built-in rule fired, or there was too little to judge."


class FiredRule(NamedTuple):
    """One firing in words."""

    rule: str
    severity: str
    when: str
    said: str
    """The rule's own annotations."""
    cost: str
    """Empty where the rule's metric has no price."""


def fired_rules(analysis: Analysis) -> list[FiredRule]:
    """Every firing, in the order in which they began."""
    return [
        FiredRule(
            rule=alert.rule,
            severity=alert.severity,
            when=_when(analysis, alert),
            said="; ".join(alert.annotations.values()),
            cost="" if alert.cost_gpu_s is None else numbers.gpu_time(alert.cost_gpu_s),
        )
        for alert in analysis.alerts
    ]


def _when(analysis: Analysis, alert: Alert) -> str:
    begin, end = (_since_start(analysis, instant_ns) for instant_ns in (alert.start_ns, alert.end_ns))
    return f"from {begin} on" if alert.end_ns is None else f"{begin} to {end}"


def _since_start(analysis: Analysis, instant_ns: int | None) -> str:
    """From the run's start; a tick may be an instant after its end."""
    since_s = None if instant_ns is None else (instant_ns - analysis.run.started_ns) / 1e9
    return numbers.duration(None if since_s is None else min(since_s, analysis.run.duration_s))
