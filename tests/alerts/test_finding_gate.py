"""`check --fail-on-finding`: the findings of the analysis as a gate, in every format, without the model."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import rlscope
from rlscope.answers import CheckForm
from rlscope.errors import ArgumentError

TRACES = Path(__file__).parents[2] / "sample_traces"
STARVED = TRACES / "starved_trainer"
CALM = "queue.depth > 100000"
"""A rule that does not fire, so that only findings can fail."""


def test_the_findings_are_those_of_the_analysis() -> None:
    found = rlscope.check(STARVED, fail_if=CALM, fail_on_finding="critical").findings
    assert found == rlscope.analyze(STARVED).findings
    assert [(each.rule, each.severity) for each in found or ()] == [
        ("starved_trainer", "critical"),
        ("long_tail", "warning"),
    ]


def test_a_check_that_was_not_asked_for_findings_has_none_and_fails_on_none() -> None:
    report = rlscope.check(STARVED, fail_if=CALM)
    assert (report.findings, report.failed()) == (None, False)


@pytest.mark.parametrize(
    ("run", "severity", "fails"),
    [
        ("starved_trainer", "critical", True),
        ("starved_trainer", "warning", True),
        ("capped_staleness", "critical", False),
        ("capped_staleness", "warning", True),
    ],
)
def test_a_finding_at_or_above_the_severity_fails(run: str, severity: str, fails: bool) -> None:
    report = rlscope.check(TRACES / run, fail_if=CALM, fail_on_finding=severity)  # type: ignore[arg-type]
    assert report.failed() is fails
    assert json.loads(report.to_text("json"))["failed"] is fails


def told(form: CheckForm) -> str:
    return rlscope.check(STARVED, fail_if=CALM, fail_on_finding="critical").to_text(form)


def test_the_text_lists_the_findings_and_says_that_one_failed() -> None:
    text = told("text")
    assert text.splitlines()[0].endswith(": 0 of 1 rule fired, 2 findings")
    assert "\nCRITICAL  starved_trainer  finding: Starved trainer\n          Trainers waited " in text
    assert text.endswith("\nfailed: there is a finding of severity critical or above")


def test_json_has_the_findings_and_the_severity() -> None:
    document = json.loads(told("json"))
    assert (document["failed"], document["fail_on"], document["fail_on_finding"]) == (True, "critical", "critical")
    assert [each["rule"] for each in document["findings"]] == ["starved_trainer", "long_tail"]
    assert document["findings"][0]["cost_gpu_s"] > 30
    plain = json.loads(rlscope.check(STARVED, fail_if=CALM).to_text("json"))
    assert (plain["findings"], plain["fail_on_finding"]) == (None, None)


def test_junit_has_a_case_a_finding_which_fails_from_the_severity_on() -> None:
    suite = ElementTree.fromstring(told("junit"))
    assert [suite.get(key) for key in ("tests", "failures", "skipped")] == ["3", "1", "0"]
    cases = {case.get("name"): [child.tag for child in case] for case in suite.iter("testcase")}
    assert cases == {CALM: [], "starved_trainer": ["failure"], "long_tail": ["system-out"]}


def test_github_has_a_command_a_finding() -> None:
    commands = [line for line in told("github").splitlines() if line.startswith("::")]
    assert [line.partition("::Starved")[0].partition("::Long")[0] for line in commands] == [
        "::error title=starved_trainer",
        "::warning title=long_tail",
    ]


def test_markdown_has_a_table_of_them() -> None:
    assert told("markdown").startswith("### ❌ ")
    assert "| critical | starved\\_trainer | Trainers waited " in told("markdown")


def test_an_unknown_severity_is_refused() -> None:
    with pytest.raises(ArgumentError, match="fail_on_finding"):
        rlscope.check(STARVED, fail_on_finding="bad")  # type: ignore[arg-type]


@pytest.mark.parametrize(("severity", "code"), [("critical", 0), ("warning", 3)])
def test_the_command_exits_with_3_and_loads_no_model(severity: str, code: int) -> None:
    program = (
        "import sys; from rlscope.cli import app\n"
        "try: app(sys.argv[1:])\n"
        "except SystemExit as end: code = end.code\n"
        "heavy = {'scipy', 'altair', 'jinja2'} & {name.split('.')[0] for name in sys.modules}\n"
        "print(); print(code, sorted(heavy))"
    )
    arguments = ["check", str(TRACES / "capped_staleness"), "--fail-if", CALM, "--fail-on-finding", severity]
    ended = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == f"{code} []"
