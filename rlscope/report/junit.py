"""What rules came to as JUnit XML, a test case a rule, for the many CI systems that read it."""

from xml.etree import ElementTree

from rlscope.alerts.alert import Severity, at_least
from rlscope.alerts.whole_run import RuleOutcome, RuleReport
from rlscope.alerts.wording import condition
from rlscope.report.rule_report import sentence, stretch


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
