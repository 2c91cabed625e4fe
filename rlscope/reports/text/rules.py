"""The alert rules that fired, in words: the same for `check` and for every format of an analysis.

The metrics that rules may name, and rules, as text.
"""

import textwrap
from collections.abc import Iterable
from typing import Final, NamedTuple

from rlscope import format as fmt
from rlscope.alerts.config import built_in_rules
from rlscope.alerts.durations import write_duration
from rlscope.alerts.evaluate import condition, evidence, written
from rlscope.alerts.metrics import METRICS
from rlscope.alerts.types import WHOLE_RUN, Rule, RuleSet
from rlscope.analysis.result import SEVERITIES, Alert, Analysis

TITLE: Final = "Alerts, built-in rules"
"""Of the list in an analysis, which is held to no other rules."""
NONE_FIRED: Final = "No built-in rule fired, or there was too little to judge."


class FiredRule(NamedTuple):
    """One firing in words; the fields name the columns of a table of them."""

    severity: str
    rule: str
    when: str
    what: str
    """The value, and the rule's own annotations."""
    cost: str
    """Empty where the rule's metric has no price."""


def fired_rules(analysis: Analysis) -> list[FiredRule]:
    """Every firing of an analysed run."""
    start_ns = analysis.run.started_ns
    return in_words(fired_built_in(analysis), start_ns, start_ns + round(analysis.run.duration_s * 1e9))


def fired_built_in(analysis: Analysis) -> list[tuple[Rule, Alert]]:
    """The firings of an analysed run with their rules, the gravest first, then by time."""
    rules = {rule.name: rule for rule in built_in_rules().rules}
    return gravest_first((rules[alert.rule], alert) for alert in analysis.alerts)


def gravest_first(fired: Iterable[tuple[Rule, Alert]]) -> list[tuple[Rule, Alert]]:
    """The firings in the order in which a reader wants them: by severity, then by time."""
    return sorted(fired, key=lambda pair: (-SEVERITIES.index(pair[1].severity), pair[1].start_ns))


def in_words(fired: Iterable[tuple[Rule, Alert]], start_ns: int, end_ns: int) -> list[FiredRule]:
    """Firings of a run from start_ns to end_ns, UTC epoch, in words."""
    return [
        FiredRule(
            severity=alert.severity,
            rule=alert.rule,
            when=stretch(rule, alert, start_ns, end_ns),
            what="; ".join((measured(rule, alert), *alert.annotations.values())),
            cost="" if alert.cost_gpu_s is None else fmt.gpu_time(alert.cost_gpu_s),
        )
        for rule, alert in fired
    ]


def stretch(rule: Rule, alert: Alert, start_ns: int, end_ns: int) -> str:
    """When it fired, from the run's start on; the tick that ends a firing may be an instant after the run's end."""
    if rule.window == WHOLE_RUN:
        return "at the end of the run"
    begin, end = (
        fmt.duration(None if instant_ns is None else (min(instant_ns, end_ns) - start_ns) / 1e9)
        for instant_ns in (alert.start_ns, alert.end_ns)
    )
    return f"from {begin}, to the end of the run" if alert.end_ns is None else f"from {begin} to {end}"


def measured(rule: Rule, alert: Alert) -> str:
    """The value when the condition last held, the worst, and what it was counted from."""
    worst = "" if alert.worst_value in (None, alert.value) else f", at worst {written(rule, alert.worst_value)}"
    counted = f", from {evidence(rule, alert.evidence)}" if alert.evidence else ""
    return f"{written(rule, alert.value)}{worst}{counted}"


_LEAST_WIDTH: Final = 20


def as_text(rules: RuleSet, width: int | None = None) -> str:
    """Every metric with its unit and meaning, then every rule with what it asks; folded to a width if any."""
    metrics = [_line(f"  {each.name:33} {each.unit.replace('_per_', '/'):9} ", each.meaning, width) for each in METRICS]
    listed = [_line(f"  {rule.name:24} {rule.severity:9} {rule.kind:13} ", _asked(rule), width) for rule in rules.rules]
    return "\n".join(["Metrics:", *metrics, "", f"Rules, every {write_duration(rules.interval_ns)}:", *listed])


def _line(head: str, words: str, width: int | None) -> str:
    """What does not fit goes on below the words, where a terminal leaves room for some."""
    if width is None or width - len(head) < _LEAST_WIDTH:
        return head + words
    return textwrap.fill(words, width, initial_indent=head, subsequent_indent=" " * len(head), break_long_words=False)


def _asked(rule: Rule) -> str:
    held = f", for {write_duration(rule.for_ns)}" if rule.for_ns else ""
    return condition(rule) + held
