"""What rules came to, written for a terminal, a program, a page of Markdown, and the annotations of GitHub Actions.

JUnit is `junit`'s. Each takes the same report; only wording and shape differ.

What rules came to as JUnit XML, a test case a rule, for the many CI systems that read it.
"""

import json
from typing import TYPE_CHECKING, Final

from rlscope import format as fmt
from rlscope.alerts.evaluate import condition
from rlscope.alerts.offline import RuleOutcome, RuleReport
from rlscope.alerts.types import Rule
from rlscope.analysis.result import Alert, Severity
from rlscope.pipeline import failed
from rlscope.reports.text import rules

if TYPE_CHECKING:
    from rlscope.reports.documents.layouts import Json

from xml.etree import ElementTree

from rlscope.analysis.result import at_least

SCHEMA_VERSION: Final = 1
_GITHUB_LEVELS: Final[dict[Severity, str]] = {"info": "notice", "warning": "warning", "critical": "error"}


def as_text(report: RuleReport, fail_on: Severity) -> str:
    """One paragraph a firing, then what could not be judged."""
    lines = [_headline(report)]
    for rule, alert in _fired(report):
        lines.append(f"\n{alert.severity.upper():8}  {alert.rule}  {stretch(report, rule, alert)}")
        lines.append(f"          {sentence(rule, alert)}")
        lines.extend(f"          {key}: {text}" for key, text in alert.annotations.items())
    lines.extend(_unjudged_lines(report))
    lines.extend(f"note: {note}" for note in report.notes)
    if failed(report, fail_on):
        lines.append(f"\nfailed: a rule of severity {fail_on} or above fired")
    return "\n".join(lines)


def as_markdown(report: RuleReport, fail_on: Severity) -> str:
    """A table of the firings under a heading, for a comment or a job's summary."""
    # The other formats do without what the words of an analysis need: the model, which is slow to import.
    from rlscope.reports.markdown import plain_words, table

    said = (*_unjudged_lines(report), *(f"note: {note}" for note in report.notes))
    lines = [f"### {'❌' if failed(report, fail_on) else '✅'} {plain_words(_headline(report))}", ""]
    firings = rules.in_words(_fired(report), report.start_ns, report.end_ns)
    lines += [*table(rules.FiredRule._fields, firings), *(f"{plain_words(each)}\n" for each in said)]
    return "\n".join(lines).rstrip()


def as_github(report: RuleReport, fail_on: Severity) -> str:
    """A workflow command a firing, which GitHub Actions shows on the job, and the headline."""
    commands = [
        f"::{_GITHUB_LEVELS[alert.severity]} title={_escaped(alert.rule, is_property=True)}::"
        + _escaped(" ".join((f"{stretch(report, rule, alert)}:", sentence(rule, alert), *alert.annotations.values())))
        for rule, alert in _fired(report)
    ]
    return "\n".join([*commands, _headline(report), *_unjudged_lines(report)])


def as_json(report: RuleReport, fail_on: Severity) -> str:
    """Everything, numbers as measured."""
    return json.dumps(
        {
            "schema_version": SCHEMA_VERSION,
            "run_id": report.run_id,
            "start_ns": report.start_ns,
            "end_ns": report.end_ns,
            "fail_on": fail_on,
            "failed": failed(report, fail_on),
            "rules": [_rule_document(outcome) for outcome in report.outcomes],
            "alerts": [alert_document(alert) for alert in report.alerts],
            "notes": list(report.notes),
        },
        indent=2,
        allow_nan=False,
    )


def alert_document(alert: Alert) -> "dict[str, Json]":
    """One firing, for every document that holds some."""
    return {
        "rule": alert.rule,
        "severity": alert.severity,
        "labels": dict(alert.labels),
        "annotations": dict(alert.annotations),
        "value": fmt.finite(alert.value),
        "worst_value": fmt.finite(alert.worst_value),
        "evidence": alert.evidence,
        "held_since_ns": alert.held_since_ns,
        "start_ns": alert.start_ns,
        "end_ns": alert.end_ns,
        "cost_gpu_s": fmt.finite(alert.cost_gpu_s),
        "fingerprint": alert.fingerprint,
    }


def stretch(report: RuleReport, rule: Rule, alert: Alert) -> str:
    """When it fired, from the run's start on."""
    return rules.stretch(rule, alert, report.start_ns, report.end_ns)


def sentence(rule: Rule, alert: Alert) -> str:
    """The condition, the value, what it was counted from and what it cost."""
    cost = "" if alert.cost_gpu_s is None else f"; it cost {fmt.gpu_time(alert.cost_gpu_s)}"
    return f"{condition(rule)}: {rules.measured(rule, alert)}{cost}"


def unjudged(report: RuleReport) -> tuple[RuleOutcome, ...]:
    """The rules that say nothing of this run."""
    return tuple(outcome for outcome in report.outcomes if not outcome.judged_ticks)


def _headline(report: RuleReport) -> str:
    count = sum(bool(outcome.alerts) for outcome in report.outcomes)
    length = fmt.duration((report.end_ns - report.start_ns) / 1e9)
    rules = fmt.counted(len(report.outcomes), "rule", "rules")
    return f"run {report.run_id}, {length}: {count} of {rules} fired"


def _fired(report: RuleReport) -> list[tuple[Rule, Alert]]:
    return rules.gravest_first((outcome.rule, alert) for outcome in report.outcomes for alert in outcome.alerts)


def _unjudged_lines(report: RuleReport) -> list[str]:
    names = ", ".join(outcome.rule.name for outcome in unjudged(report))
    return [f"\nnot judged (warm-up, or too little to go by): {names}"] if names else []


def _rule_document(outcome: RuleOutcome) -> "dict[str, Json]":
    rule = outcome.rule
    return {
        "name": rule.name,
        "kind": rule.kind,
        "metric": rule.metric,
        "sql": rule.sql,
        "condition": condition(rule),
        "severity": rule.severity,
        "fired": len(outcome.alerts),
        "ticks": outcome.ticks,
        "judged_ticks": outcome.judged_ticks,
    }


def _escaped(text: str, *, is_property: bool = False) -> str:
    """As GitHub's workflow commands are escaped."""
    marks = [("%", "%25"), ("\r", "%0D"), ("\n", "%0A")] + ([(":", "%3A"), (",", "%2C")] if is_property else [])
    for mark, escape in marks:
        text = text.replace(mark, escape)
    return text


def as_junit(report: RuleReport, fail_on: Severity) -> str:
    """A rule that fired at or above fail_on is a failure, one that could not be judged is skipped."""
    cases = [_case(report, outcome, fail_on) for outcome in report.outcomes]
    suite = ElementTree.Element(
        "testsuite",
        name=f"rlscope check {report.run_id}",
        tests=str(len(cases)),
        failures=str(sum(case.find("failure") is not None for case in cases)),
        errors="0",
        skipped=str(sum(case.find("skipped") is not None for case in cases)),
    )
    suite.extend(cases)
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


def _case(report: RuleReport, outcome: RuleOutcome, fail_on: Severity) -> ElementTree.Element:
    rule = outcome.rule
    case = ElementTree.Element("testcase", classname=f"rlscope.{rule.kind}", name=_printable(rule.name))
    told = [
        "\n".join((f"{stretch(report, rule, alert)}: {sentence(rule, alert)}", *alert.annotations.values()))
        for alert in outcome.alerts
    ]
    if told:
        fails = at_least(rule.severity, fail_on)
        kind = "failure" if fails else "system-out"
        element = ElementTree.SubElement(case, kind)
        element.text = _printable("\n\n".join(told))
        if fails:
            element.set("message", _printable(f"{rule.severity}: {condition(rule)}"))
    elif not outcome.judged_ticks:
        ElementTree.SubElement(case, "skipped", message="not judged: warm-up, or too little to go by")
    return case


def _printable(text: str) -> str:
    """Without the characters that XML 1.0 has no way to write."""
    return "".join(char for char in text if char in "\t\n\r" or char >= " ")
