"""Outcome of the alert rules over a run: as JSON, and as text for people, pull requests and CI systems.

All formats take the same report and differ in wording and shape alone. An alert has the same shape in every document.
Only `as_markdown` needs the model, which is slow to import.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal
from xml.etree import ElementTree

from pydantic import ConfigDict

from rlscope import format as fmt
from rlscope.alerts.evaluate import condition
from rlscope.alerts.offline import RuleOutcome, RuleReport
from rlscope.alerts.types import Rule, RuleKind
from rlscope.analysis.result import Alert, Finding, Severity, at_least
from rlscope.reports.documents import SCHEMA_VERSION, Document, Figure
from rlscope.reports.text import findings, rules
from rlscope.text_out import for_github, for_markdown, for_terminal, for_xml, one_line

_GITHUB_LEVELS: Final[dict[Severity, str]] = {"info": "notice", "warning": "warning", "critical": "error"}


class AlertJson(Document):
    """One period in which one rule fired."""

    rule: str
    """Name of the rule."""
    severity: Severity
    """Severity of the rule."""
    labels: Mapping[str, str]
    """Labels of the rule, including `severity`."""
    annotations: Mapping[str, str]
    """Annotations of the rule, with the values filled in."""
    value: Figure
    """Value of the metric when the condition last held, in the metric's unit."""
    worst_value: Figure
    """Value furthest beyond the threshold while the rule fired, in the metric's unit."""
    evidence: int
    """Amount of data behind the value, in the metric's unit of evidence."""
    held_since_ns: int
    """First evaluation at which the condition held, in UTC epoch nanoseconds."""
    start_ns: int
    """When the rule began to fire, in UTC epoch nanoseconds; the end of warm-up if the rule was evaluated once over the
    whole run."""
    end_ns: int | None
    """When the alert was resolved, in UTC epoch nanoseconds; null if it was still firing at the end."""
    cost_gpu_s: Figure
    """GPU-seconds lost while the rule fired; null if the metric has no cost."""
    evaluated_over_s: Figure
    """Length of the run after warm-up, in seconds, if the run is shorter than the rule's window and the rule was
    evaluated once over all of it; null if the rule was evaluated at its ticks."""
    fingerprint: str
    """Identifier of the rule and its labels, 16 hexadecimal digits, independent of values and times."""


class CheckFindingJson(Document):
    """One problem found by the diagnosis."""

    rule: str
    """Name of the finding."""
    severity: Severity
    """Severity of the finding."""
    title: str
    """The finding in a few words."""
    sentence: str
    """The finding with its evidence, in words."""
    cost_gpu_s: Figure
    """GPU-seconds lost to the problem; null if the cost cannot be computed."""


class RuleOutcomeJson(Document):
    """Outcome of one rule over the run."""

    name: str
    """Name of the rule."""
    kind: RuleKind
    """Kind of the rule: data quality, alarm or hint."""
    metric: str | None
    """Metric that the rule evaluates; null for a rule with its own SQL."""
    sql: str | None
    """The rule's own SELECT; null for a rule with a metric."""
    condition: str
    """The condition in words: metric, window, comparison and threshold."""
    severity: Severity
    """Severity of the rule."""
    fired: int
    """Number of times the rule fired."""
    ticks: int
    """Number of evaluations over the run."""
    evaluated_ticks: int
    """Number of evaluations with enough data to decide. If 0, the rule carries no information about the run."""
    evaluated_over_s: Figure
    """Length of the run after warm-up, in seconds, if the run is shorter than the rule's window and the rule was
    evaluated once over all of it; null if the rule was evaluated at its ticks or not at all."""


class CheckDocument(Document):
    """Output of `rlscope check --format json`: all rules, all periods in which one fired, and the findings."""

    model_config = ConfigDict(title="rlscope check --format json")

    schema_version: Literal[1]
    """Version of this contract."""
    run_id: str
    """Identifier of the run."""
    start_ns: int
    """Start of the run's first worker, in UTC epoch nanoseconds."""
    end_ns: int
    """Time of the last report from any worker, in UTC epoch nanoseconds."""
    fail_on: Severity
    """Lowest severity at which a firing rule fails the check."""
    fail_on_finding: Severity | None
    """Lowest severity at which a finding fails the check; null if findings cannot fail it."""
    failed: bool
    """Whether a rule of severity `fail_on` or higher fired, or a finding has severity `fail_on_finding` or higher."""
    rules: tuple[RuleOutcomeJson, ...]
    """All rules that were evaluated, in the order of the rule set."""
    alerts: tuple[AlertJson, ...]
    """All periods in which a rule fired, by start time."""
    findings: tuple[CheckFindingJson, ...] | None
    """Problems found by the diagnosis, the most expensive first; null if the diagnosis did not run."""
    notes: tuple[str, ...]
    """Data that could not be read, one sentence each."""


def _outcome(outcome: RuleOutcome) -> RuleOutcomeJson:
    """Return the outcome of one rule."""
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
        evaluated_ticks=outcome.evaluated_ticks,
        evaluated_over_s=outcome.evaluated_over_s,
    )


def _finding(finding: Finding) -> CheckFindingJson:
    return CheckFindingJson(
        rule=finding.rule,
        severity=finding.severity,
        title=findings.title(finding),
        sentence=findings.sentence(finding),
        cost_gpu_s=finding.cost_gpu_s,
    )


def check_document(report: RuleReport, fail_on: Severity) -> CheckDocument:
    """Return the whole report; fail_on: the lowest severity of an alert that fails the check."""
    return CheckDocument(
        schema_version=SCHEMA_VERSION,
        run_id=report.run_id,
        start_ns=report.start_ns,
        end_ns=report.end_ns,
        fail_on=fail_on,
        fail_on_finding=report.fail_on_finding,
        failed=report.fails(fail_on),
        rules=tuple(_outcome(outcome) for outcome in report.outcomes),
        alerts=tuple(AlertJson.read(alert) for alert in report.alerts),
        findings=None if report.findings is None else tuple(_finding(finding) for finding in report.findings),
        notes=report.notes,
    )


def as_json(report: RuleReport, fail_on: Severity) -> str:
    """Return the whole report as JSON, with numbers as measured."""
    return check_document(report, fail_on).as_json()


def as_text(report: RuleReport, fail_on: Severity) -> str:
    """Return one paragraph per alert and per finding, then the rules that lacked data."""
    lines = [_headline(report)]
    for rule, alert in _fired(report):
        lines.append(f"\n{alert.severity.upper():8}  {one_line(alert.rule)}  {stretch(report, rule, alert)}")
        lines.append(f"          {sentence(rule, alert)}")
        lines.extend(f"          {key}: {text}" for key, text in alert.annotations.items())
    for finding in report.findings or ():
        lines.append(f"\n{finding.severity.upper():8}  {_found(finding)}")
        lines.append(f"          {findings.sentence(finding)}")
    lines.extend(_limits(report))
    lines.extend(f"note: {one_line(note)}" for note in report.notes)
    if report.reaches(fail_on):
        lines.append(f"\nfailed: a rule of severity {fail_on} or above fired")
    if report.failed_on_finding:
        lines.append(f"\nfailed: there is a finding of severity {report.fail_on_finding} or above")
    return for_terminal("\n".join(lines))


def as_markdown(report: RuleReport, fail_on: Severity) -> str:
    """Return tables of the alerts and findings under a heading, for a comment or a job summary."""
    # Importing this imports the model, which is slow and which the other formats do not need.
    from rlscope.reports.markdown import table

    said = (*_limits(report), *(f"note: {note}" for note in report.notes))
    lines = [f"### {'❌' if report.fails(fail_on) else '✅'} {for_markdown(_headline(report))}", ""]
    firings = rules.in_words(_fired(report), report.start_ns, report.end_ns)
    found = [(each.severity, each.rule, findings.sentence(each)) for each in report.findings or ()]
    lines += [*table(rules.FiredRule._fields, firings), *table(("severity", "finding", "what"), found)]
    lines += [f"{for_markdown(each)}\n" for each in said]
    return "\n".join(lines).rstrip()


def as_github(report: RuleReport, fail_on: Severity) -> str:
    """Return a GitHub Actions workflow command per alert and per finding, then the headline."""
    commands = [
        f"::{_GITHUB_LEVELS[alert.severity]} title={for_github(alert.rule, is_property=True)}::"
        + for_github(" ".join((f"{stretch(report, rule, alert)}:", sentence(rule, alert), *alert.annotations.values())))
        for rule, alert in _fired(report)
    ]
    commands += [
        f"::{_GITHUB_LEVELS[finding.severity]} title={for_github(finding.rule, is_property=True)}::"
        + for_github(f"{findings.title(finding)}: {findings.sentence(finding)}")
        for finding in report.findings or ()
    ]
    return for_terminal("\n".join([*commands, _headline(report), *_limits(report)]))


def stretch(report: RuleReport, rule: Rule, alert: Alert) -> str:
    """Return the period in which the rule fired, relative to the start of the run."""
    return rules.stretch(rule, alert, report.start_ns, report.end_ns)


def sentence(rule: Rule, alert: Alert) -> str:
    """Return the condition, the value, its evidence and its cost."""
    cost = "" if alert.cost_gpu_s is None else f"; it cost {fmt.gpu_time(alert.cost_gpu_s)}"
    return f"{rules.judged_condition(rule, alert)}: {rules.measured(rule, alert)}{cost}"


def _headline(report: RuleReport) -> str:
    count = sum(bool(outcome.alerts) for outcome in report.outcomes)
    length = fmt.duration((report.end_ns - report.start_ns) / 1e9)
    rules = fmt.counted(len(report.outcomes), "rule", "rules")
    found = "" if report.findings is None else f", {fmt.counted(len(report.findings), 'finding', 'findings')}"
    return f"run {one_line(report.run_id)}, {length}: {count} of {rules} fired{found}"


def _found(finding: Finding) -> str:
    return f"{finding.rule}  finding: {findings.title(finding)}"


def _fired(report: RuleReport) -> list[tuple[Rule, Alert]]:
    return rules.gravest_first((outcome.rule, alert) for outcome in report.outcomes for alert in outcome.alerts)


def _limits(report: RuleReport) -> list[str]:
    """Return lines on the rules evaluated once over the whole run and on the rules that lacked data."""
    lines = list[str]()
    quiet = [outcome for outcome in report.outcomes if outcome.evaluated_over_s is not None and not outcome.alerts]
    if quiet:
        lines.append(f"\ndid not fire over the whole run, which is shorter than their windows: {_names(quiet)}")
    if report.unjudged:
        of = fmt.counted(len(report.outcomes), "rule", "rules")
        names = _names(report.unjudged)
        lines.append(f"\n{len(report.unjudged)} of {of} not judged (warm-up, or too little data): {names}")
    return lines


def _names(outcomes: Iterable[RuleOutcome]) -> str:
    return ", ".join(one_line(outcome.rule.name) for outcome in outcomes)


def as_junit(report: RuleReport, fail_on: Severity) -> str:
    """Return the rules and findings as JUnit test cases.

    A rule that fired at or above fail_on is a failure, and so is a finding that fails the check. A rule that lacked
    data is skipped.
    """
    cases = [_case(report, outcome, fail_on) for outcome in report.outcomes]
    cases += [_finding_case(finding, report.fail_on_finding) for finding in report.findings or ()]
    suite = ElementTree.Element(
        "testsuite",
        name=for_xml(f"rlscope check {report.run_id}"),
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
    case = ElementTree.Element("testcase", classname=f"rlscope.{rule.kind}", name=for_xml(rule.name))
    told = [
        "\n".join((f"{stretch(report, rule, alert)}: {sentence(rule, alert)}", *alert.annotations.values()))
        for alert in outcome.alerts
    ]
    if told:
        fails = at_least(rule.severity, fail_on)
        _tell(case, "\n\n".join(told), f"{rule.severity}: {condition(rule)}" if fails else None)
    elif not outcome.evaluated_ticks:
        ElementTree.SubElement(case, "skipped", message="not judged: warm-up, or too little to go by")
    return case


def _finding_case(finding: Finding, fail_on: Severity | None) -> ElementTree.Element:
    case = ElementTree.Element("testcase", classname="rlscope.finding", name=finding.rule)
    fails = fail_on is not None and at_least(finding.severity, fail_on)
    _tell(case, findings.sentence(finding), f"{finding.severity}: {findings.title(finding)}" if fails else None)
    return case


def _tell(case: ElementTree.Element, text: str, failure: str | None) -> None:
    """Add text to a case: as a failure with its message, or as output."""
    element = ElementTree.SubElement(case, "system-out" if failure is None else "failure")
    element.text = for_xml(text)
    if failure is not None:
        element.set("message", for_xml(failure))


FORMS: Final[Mapping[str, Callable[[RuleReport, Severity], str]]] = {
    "text": as_text,
    "json": as_json,
    "markdown": as_markdown,
    "junit": as_junit,
    "github": as_github,
}
"""Output formats by name. Each takes the report and the lowest severity of an alert that fails the check."""
