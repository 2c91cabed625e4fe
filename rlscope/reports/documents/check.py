"""What alert rules came to over a run: as a JSON document, and for people, pull requests and CI systems.

Each format takes the same report; only wording and shape differ. One firing has one shape in every document. Nothing
here needs the model, which is slow to import, but `as_markdown`.
"""

from collections.abc import Mapping
from typing import Final, Literal
from xml.etree import ElementTree

from pydantic import ConfigDict

from rlscope import format as fmt
from rlscope.alerts.evaluate import condition
from rlscope.alerts.offline import RuleOutcome, RuleReport
from rlscope.alerts.types import Rule, RuleKind
from rlscope.analysis.result import Alert, Severity, at_least
from rlscope.reports.documents import SCHEMA_VERSION, Document, Figure
from rlscope.reports.text import rules

_GITHUB_LEVELS: Final[dict[Severity, str]] = {"info": "notice", "warning": "warning", "critical": "error"}


class AlertJson(Document):
    """One stretch of time in which one rule fired."""

    rule: str
    """Name of the rule."""
    severity: Severity
    """Severity of the rule."""
    labels: Mapping[str, str]
    """Labels of the rule, `severity` among them."""
    annotations: Mapping[str, str]
    """Texts of the rule with the values filled in."""
    value: Figure
    """The metric when the condition last held, in the metric's unit."""
    worst_value: Figure
    """The value furthest beyond the threshold while the rule fired, in the metric's unit."""
    evidence: int
    """How much the value was computed from, in the metric's unit of evidence."""
    held_since_ns: int
    """First evaluation at which the condition held, in UTC epoch nanoseconds."""
    start_ns: int
    """When the rule began to fire, in UTC epoch nanoseconds."""
    end_ns: int | None
    """When the alert was resolved, in UTC epoch nanoseconds; null if it still fired at the end."""
    cost_gpu_s: Figure
    """GPU-seconds lost while the rule fired; null if the metric has no cost."""
    fingerprint: str
    """Identifier of the rule with its labels, 16 hexadecimal digits; it does not depend on values and times."""


class RuleOutcomeJson(Document):
    """What one rule came to over the run."""

    name: str
    """Name of the rule."""
    kind: RuleKind
    """Kind of the rule: data quality, alarm or hint."""
    metric: str | None
    """Metric that the rule evaluates; null for a rule with SQL of its own."""
    sql: str | None
    """The rule's own SELECT; null for a rule with a metric."""
    condition: str
    """The condition in words: metric, window, comparison and threshold."""
    severity: Severity
    """Severity of the rule."""
    fired: int
    """Number of times that the rule fired."""
    ticks: int
    """Number of evaluations over the run."""
    judged_ticks: int
    """Number of evaluations with enough data to decide; with 0 the rule says nothing about the run."""


class CheckDocument(Document):
    """What `rlscope check --format json` prints: every rule, and every stretch in which one fired."""

    model_config = ConfigDict(title="rlscope check --format json")

    schema_version: Literal[2]
    """Version of this contract."""
    run_id: str
    """Identifier of the run."""
    start_ns: int
    """Start of the run's first worker, in UTC epoch nanoseconds."""
    end_ns: int
    """Last moment that any worker reported, in UTC epoch nanoseconds."""
    fail_on: Severity
    """Lowest severity at which a firing rule fails the check."""
    failed: bool
    """Whether a rule of severity `fail_on` or higher fired."""
    rules: tuple[RuleOutcomeJson, ...]
    """Every rule that was evaluated, in the order of the rules."""
    alerts: tuple[AlertJson, ...]
    """Every stretch in which a rule fired, by its start."""
    notes: tuple[str, ...]
    """What could not be read, one sentence each."""


def _outcome(outcome: RuleOutcome) -> RuleOutcomeJson:
    """The outcome of one rule."""
    rule = outcome.rule
    return RuleOutcomeJson(
        name=rule.name,
        kind=rule.kind,
        metric=rule.metric,
        sql=rule.sql,
        condition=condition(rule),
        severity=rule.severity,
        fired=len(outcome.alerts),
        ticks=outcome.ticks,
        judged_ticks=outcome.judged_ticks,
    )


def check_document(report: RuleReport, fail_on: Severity) -> CheckDocument:
    """The whole report; fail_on: the lowest severity that fails the check."""
    return CheckDocument(
        schema_version=SCHEMA_VERSION,
        run_id=report.run_id,
        start_ns=report.start_ns,
        end_ns=report.end_ns,
        fail_on=fail_on,
        failed=report.reaches(fail_on),
        rules=tuple(_outcome(outcome) for outcome in report.outcomes),
        alerts=tuple(AlertJson.read(alert) for alert in report.alerts),
        notes=report.notes,
    )


def as_json(report: RuleReport, fail_on: Severity) -> str:
    """Everything, numbers as measured."""
    return check_document(report, fail_on).as_json()


def as_text(report: RuleReport, fail_on: Severity) -> str:
    """One paragraph a firing, then what could not be judged."""
    lines = [_headline(report)]
    for rule, alert in _fired(report):
        lines.append(f"\n{alert.severity.upper():8}  {alert.rule}  {stretch(report, rule, alert)}")
        lines.append(f"          {sentence(rule, alert)}")
        lines.extend(f"          {key}: {text}" for key, text in alert.annotations.items())
    lines.extend(_unjudged_lines(report))
    lines.extend(f"note: {note}" for note in report.notes)
    if report.reaches(fail_on):
        lines.append(f"\nfailed: a rule of severity {fail_on} or above fired")
    return "\n".join(lines)


def as_markdown(report: RuleReport, fail_on: Severity) -> str:
    """A table of the firings under a heading, for a comment or a job's summary."""
    # The other formats do without what the words of an analysis need: the model, which is slow to import.
    from rlscope.reports.markdown import plain_words, table

    said = (*_unjudged_lines(report), *(f"note: {note}" for note in report.notes))
    lines = [f"### {'❌' if report.reaches(fail_on) else '✅'} {plain_words(_headline(report))}", ""]
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


def stretch(report: RuleReport, rule: Rule, alert: Alert) -> str:
    """When it fired, from the run's start on."""
    return rules.stretch(rule, alert, report.start_ns, report.end_ns)


def sentence(rule: Rule, alert: Alert) -> str:
    """The condition, the value, what it was counted from and what it cost."""
    cost = "" if alert.cost_gpu_s is None else f"; it cost {fmt.gpu_time(alert.cost_gpu_s)}"
    return f"{condition(rule)}: {rules.measured(rule, alert)}{cost}"


def unjudged(report: RuleReport) -> tuple[RuleOutcome, ...]:
    """The rules that had too little data in this run."""
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
