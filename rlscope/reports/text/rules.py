"""Alert rules as text: which fired, for `check` and every format of an analysis, and the list of `rlscope rules`."""

import textwrap
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from rlscope import format as fmt
from rlscope.alerts.config import built_in_rules
from rlscope.alerts.durations import write_duration, write_window
from rlscope.alerts.evaluate import condition, evidence, written
from rlscope.alerts.metrics import METRICS
from rlscope.alerts.types import WHOLE_RUN, Rule, RuleSet
from rlscope.analysis.result import SEVERITIES, Alert, AnalysisResult
from rlscope.reports.blocks import Callout

TITLE: Final = "Alerts, built-in rules"
"""The heading in an analysis, which evaluates only the built-in rules."""
NONE_FIRED: Final = 'No built-in rule fired. Run "rlscope check" for the rules that had too little data.'


def fired_rules(analysis: AnalysisResult) -> list[Callout]:
    """The first alert of each rule in an analyzed run, highest severity first, then by time."""
    rules, start_ns = {rule.name: rule for rule in built_in_rules().rules}, analysis.run.started_ns
    times, firsts = Counter(alert.rule for alert in analysis.alerts), dict[str, tuple[Rule, Alert]]()
    for rule, alert in gravest_first((rules[alert.rule], alert) for alert in analysis.alerts):
        # What to do next stands in the analysis itself.
        said = {name: text for name, text in alert.annotations.items() if name != "next"}
        firsts.setdefault(rule.name, (rule, replace(alert, annotations=said)))
    told = in_words(firsts.values(), start_ns, start_ns + round(analysis.run.duration_s * 1e9))
    more = {name: f", and {fmt.counted(count - 1, 'more time')}" for name, count in times.items() if count > 1}
    return [replace(each, when=each.when + more.get(each.title, "")) for each in told]


def gravest_first(fired: Iterable[tuple[Rule, Alert]]) -> list[tuple[Rule, Alert]]:
    """Alerts by severity, highest first, then by time."""
    return sorted(fired, key=lambda pair: (-SEVERITIES.index(pair[1].severity), pair[1].start_ns))


def in_words(fired: Iterable[tuple[Rule, Alert]], start_ns: int, end_ns: int) -> list[Callout]:
    """The alerts of a run from start_ns to end_ns, UTC epoch, as text."""
    return [
        Callout(alert.severity, alert.rule, when=stretch(rule, alert, start_ns, end_ns), text=_what(rule, alert))
        for rule, alert in fired
    ]


def _what(rule: Rule, alert: Alert) -> str:
    """The value with its evidence, and the annotations; what these say already is not said again."""
    said = list(alert.annotations.values())
    if alert.worst_value in (None, alert.value) and any(written(rule, alert.value) in text for text in said):
        return "; ".join([*said, f"out of {evidence(rule, alert.evidence)}"] if alert.evidence else said)
    return "; ".join((measured(rule, alert), *said))


def stretch(rule: Rule, alert: Alert, start_ns: int, end_ns: int) -> str:
    """When it fired, relative to the run's start; its last tick can be shortly after the run's end."""
    if alert.evaluated_over_s is not None:
        return _judged_length(rule, alert.evaluated_over_s)
    if rule.window == WHOLE_RUN:
        return "at the end of the run"
    begin, end = (
        fmt.duration(None if instant_ns is None else (min(instant_ns, end_ns) - start_ns) / 1e9)
        for instant_ns in (alert.start_ns, alert.end_ns)
    )
    return f"from {begin} to the end of the run" if alert.end_ns is None else f"from {begin} to {end}"


def _judged_length(rule: Rule, judged_s: float) -> str:
    """The part of the run that the rule was evaluated over, and why it is not the rule's window."""
    after = "" if rule.kind == "data_quality" else " after warm-up"
    whole = f"evaluated as a whole ({fmt.duration(judged_s)}{after})"
    window, length_ns = write_window(rule.window), rule.window.length_ns
    if not rule.for_ns or (length_ns is not None and judged_s * 1e9 < length_ns):
        return f"{whole}: the run is shorter than the rule's {window} window"
    return f"{whole}: the run is too short for {write_duration(rule.for_ns)} of the condition over {window}"


def judged_condition(rule: Rule, alert: Alert) -> str:
    """The condition over what it was judged over."""
    return condition(rule if alert.evaluated_over_s is None else replace(rule, window=WHOLE_RUN))


def measured(rule: Rule, alert: Alert) -> str:
    """The last value for which the condition was true, the worst value, and the evidence."""
    worst = "" if alert.worst_value in (None, alert.value) else f" (worst {written(rule, alert.worst_value)})"
    counted = f", over {evidence(rule, alert.evidence)}" if alert.evidence else ""
    return f"{written(rule, alert.value)}{worst}{counted}"


_LEAST_WIDTH: Final = 20


def as_text(rules: RuleSet, width: int | None = None) -> str:
    """Every metric with its unit and meaning, then every rule with its condition; wrapped to width if given."""
    metrics = [_line(f"  {each.name:33} {each.unit.replace('_per_', '/'):9} ", each.meaning, width) for each in METRICS]
    listed: list[str] = []
    for rule in rules.rules:
        held = f", for {write_duration(rule.for_ns)}" if rule.for_ns else ""
        listed.append(_line(f"  {rule.name:24} {rule.severity:9} {rule.kind:13} ", condition(rule) + held, width))
    return "\n".join(
        ["Metrics:", *metrics, "", f"Rules, evaluated every {write_duration(rules.interval_ns)}:", *listed]
    )


def _line(head: str, words: str, width: int | None) -> str:
    """One entry; text that does not fit continues below it, if the terminal is wide enough."""
    if width is None or width - len(head) < _LEAST_WIDTH:
        return head + words
    return textwrap.fill(words, width, initial_indent=head, subsequent_indent=" " * len(head), break_long_words=False)
