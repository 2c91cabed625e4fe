"""Outcome of the alert rules over a run for people, pull requests and programs.

All formats take the same report and differ in wording and shape alone.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from rlscope import format as fmt
from rlscope.alerts.offline import RuleOutcome, RuleReport
from rlscope.alerts.types import Rule
from rlscope.analysis.result import SEVERITIES, Alert, Severity
from rlscope.document import Document, dump, extended
from rlscope.errors import check_one_of
from rlscope.reports.answer import InBlocks
from rlscope.reports.blocks import Block, Paragraph, Part, Table
from rlscope.reports.markdown import markdown
from rlscope.reports.text import rules
from rlscope.reports.text.findings import ToldFinding, sentence, title, told
from rlscope.text_out import for_terminal, one_line

CheckForm = Literal["text", "json", "markdown"]


@dataclass(frozen=True, kw_only=True)
class CheckDocument(RuleReport, Document):
    """Output of `rlscope check --format json`: all rules, all periods in which one fired, and the findings."""

    fail_on: Severity
    """Lowest severity at which a firing rule fails the check."""
    failed: bool
    """Whether a rule of severity `fail_on` or higher fired, or a finding has severity `fail_on_finding` or higher."""
    findings: tuple[ToldFinding, ...] | None = None
    """Problems found by the diagnosis, the most expensive first; None if the diagnosis did not run."""


def as_json(report: RuleReport, fail_on: Severity) -> str:
    """Return the whole report as JSON, with numbers as measured."""
    findings = None if report.findings is None else tuple(map(told, report.findings))
    failed = report.fails(fail_on)
    return dump(extended(CheckDocument, report, fail_on=fail_on, failed=failed, findings=findings))


def as_text(report: RuleReport, fail_on: Severity) -> str:
    """Return one paragraph per alert and per finding, then the rules that lacked data."""
    lines = [_headline(report)]
    for rule, alert in _fired(report):
        when = rules.stretch(rule, alert, report.start_ns, report.end_ns)
        lines.append(f"\n{alert.severity.upper():8}  {one_line(alert.rule)}  {when}")
        lines.append(f"          {rules.judged_condition(rule, alert)}: {rules.measured(rule, alert)}")
        lines.extend(f"          {key}: {text}" for key, text in alert.annotations.items())
    for finding in report.findings or ():
        lines.append(f"\n{finding.severity.upper():8}  {finding.rule}  finding: {title(finding)}")
        lines.append(f"          {sentence(finding)}")
    lines.extend(_limits(report))
    lines.extend(f"note: {one_line(note)}" for note in report.warnings)
    if report.reaches(fail_on):
        lines.append(f"\nfailed: a rule of severity {fail_on} or above fired")
    if report.failed_on_finding:
        lines.append(f"\nfailed: there is a finding of severity {report.fail_on_finding} or above")
    return for_terminal("\n".join(lines))


def check_blocks(report: RuleReport, fail_on: Severity) -> list[Block]:
    """Return tables of the alerts and findings under a heading."""
    fired = rules.in_words(_fired(report), report.start_ns, report.end_ns)
    firings = [(each.severity, each.title, each.when, each.text) for each in fired]
    found = [(each.severity, each.rule, sentence(each)) for each in report.findings or ()]
    notes = (*(line.strip() for line in _limits(report)), *(f"note: {note}" for note in report.warnings))
    tables = [Table("Alerts", ("severity", "rule", "when", "what"), firings)] if firings else []
    tables += [Table("Findings", ("severity", "finding", "what"), found)] if found else []
    title = f"{'❌' if report.fails(fail_on) else '✅'} {_headline(report)}"
    return [Part(title, [*tables, *map(Paragraph, notes)])]


def _headline(report: RuleReport) -> str:
    count = sum(bool(outcome.alerts) for outcome in report.rules)
    length = fmt.duration((report.end_ns - report.start_ns) / 1e9)
    rules = fmt.counted(len(report.rules), "rule")
    found = "" if report.findings is None else f", {fmt.counted(len(report.findings), 'finding')}"
    return f"run {one_line(report.run_id)}, {length}: {count} of {rules} fired{found}"


def _fired(report: RuleReport) -> list[tuple[Rule, Alert]]:
    return rules.gravest_first((outcome.rule, alert) for outcome in report.rules for alert in outcome.alerts)


def _limits(report: RuleReport) -> list[str]:
    """Return lines on the rules evaluated once over the whole run and on the rules that lacked data."""
    lines = list[str]()
    quiet = [outcome for outcome in report.rules if outcome.evaluated_over_s is not None and not outcome.alerts]
    if quiet:
        lines.append(f"\ndid not fire over the whole run, which is shorter than their windows: {_names(quiet)}")
    if report.unjudged:
        shares = f"{len(report.unjudged)} of {fmt.counted(len(report.rules), 'rule')}"
        in_doubt = any(outcome.rule.kind == "data_quality" and outcome.alerts for outcome in report.rules)
        why = "warm-up, too little data, or the alerts on data quality" if in_doubt else "warm-up, or too little data"
        lines.append(f"\n{shares} not judged ({why}): {_names(report.unjudged)}")
    return lines


def _names(outcomes: Iterable[RuleOutcome]) -> str:
    return ", ".join(one_line(outcome.rule.name) for outcome in outcomes)


_FORMS: Final[Mapping[CheckForm, Callable[[RuleReport, Severity], str]]] = {
    "text": as_text,
    "json": as_json,
    "markdown": lambda report, fail_on: markdown(check_blocks(report, fail_on)),
}


@dataclass(frozen=True, repr=False)
class CheckReport(InBlocks, RuleReport):
    """Result of alert rules over a whole run, returned by `check`: every firing, and rules without enough data."""

    def failed(self, fail_on: Severity = "critical") -> bool:
        """Return whether a rule of this severity or higher fired, or a finding reached `fail_on_finding`.

        Raises:
            ArgumentError: The severity is unknown.
        """
        check_one_of("fail_on", fail_on, SEVERITIES)
        return self.fails(fail_on)

    def to_text(self, form: CheckForm = "text", fail_on: Severity = "critical") -> str:
        """Return the report as text for a terminal, JSON or Markdown.

        Args:
            form: "text", "json" or "markdown".
            fail_on: Lowest severity that counts as a failure, as in `failed`.

        Raises:
            ArgumentError: The form or the severity is unknown.
        """
        check_one_of("form", form, _FORMS)
        check_one_of("fail_on", fail_on, SEVERITIES)
        return _FORMS[form](self, fail_on)

    def to_json(self) -> str:
        """Return the report as JSON, the document of `rlscope check --format json`."""
        return self.to_text("json")

    @property
    def blocks(self) -> Iterable[Block]:
        """The outcome, with the alerts and findings as tables."""
        return check_blocks(self, "critical")

    def __repr__(self) -> str:
        fired = sum(bool(outcome.alerts) for outcome in self.rules)
        return fmt.repr_of("CheckReport", self.run_id, f"{fired} of {len(self.rules)} rules fired")
