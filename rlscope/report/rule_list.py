"""The metrics that rules may name, and rules, as text."""

import textwrap
from typing import Final

from rlscope.alerts.metrics import METRICS
from rlscope.alerts.rule import Rule, RuleSet
from rlscope.alerts.spans import write_duration
from rlscope.alerts.wording import condition

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
