"""`check --fail-on-finding`: the findings of the analysis as a gate, in every format, without the model."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import rlscope
from rlscope.errors import ArgumentError
from rlscope.reports.check import CheckForm
from tests.trace_folder import activity, delivery_row, sample_row, train_row, worker, write_run

TRACES = Path(__file__).parents[2] / "sample_traces"
SECOND_NS = 10**9
CALM = "queue.depth > 100000"
"""A rule that does not fire, so that only findings can fail."""


@pytest.fixture(scope="module")
def starved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose trainers wait for samples most of the time, and a fifth of that for the last of ten."""
    samples = [sample_row(str(number), "t0", [(0, 0, 10)], finished_ns=48 * SECOND_NS) for number in range(9)]
    samples.append(sample_row("last", "t0", [(0, 0, 10)], finished_ns=60 * SECOND_NS))
    return write_run(
        tmp_path_factory.mktemp("starved"),
        [worker("t0", stop_ns=100 * SECOND_NS)],
        activities=[activity("t0", 0, 60 * SECOND_NS, "wait", "samples")],
        train_steps=[train_row("t0", 60 * SECOND_NS, 100 * SECOND_NS)],
        samples=samples,
        deliveries=[delivery_row(sample["sample_id"], "t0", step=1) for sample in samples],
    )


def test_the_findings_are_those_of_the_analysis(starved: Path) -> None:
    found = rlscope.check(starved, fail_if=CALM, fail_on_finding="critical").findings
    assert found == rlscope.analyze(starved).findings
    assert [(each.rule, each.severity) for each in found or ()] == [
        ("starved_trainer", "critical"),
        ("long_tail", "warning"),
    ]


def test_a_check_that_was_not_asked_for_findings_has_none_and_fails_on_none(starved: Path) -> None:
    report = rlscope.check(starved, fail_if=CALM)
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


def told(run: Path, form: CheckForm) -> str:
    return rlscope.check(run, fail_if=CALM, fail_on_finding="critical").to_text(form)


def test_the_text_lists_the_findings_and_says_that_one_failed(starved: Path) -> None:
    text = told(starved, "text")
    assert text.splitlines()[0].endswith(": 0 of 1 rule fired, 2 findings")
    assert "\nCRITICAL  starved_trainer  finding: Starved trainer\n          Over the whole run, " in text
    assert text.endswith("\nfailed: there is a finding of severity critical or above")


def test_json_has_the_findings_and_the_severity(starved: Path) -> None:
    document = json.loads(told(starved, "json"))
    assert (document["failed"], document["fail_on"], document["fail_on_finding"]) == (True, "critical", "critical")
    assert [each["rule"] for each in document["findings"]] == ["starved_trainer", "long_tail"]
    assert document["findings"][0]["cost_gpu_s"] == 60.0
    plain = json.loads(rlscope.check(starved, fail_if=CALM).to_text("json"))
    assert (plain["findings"], plain["fail_on_finding"]) == (None, None)


def test_junit_has_a_case_a_finding_which_fails_from_the_severity_on(starved: Path) -> None:
    suite = ElementTree.fromstring(told(starved, "junit"))
    assert [suite.get(key) for key in ("tests", "failures", "skipped")] == ["3", "1", "1"]
    cases = {case.get("name"): [child.tag for child in case] for case in suite.iter("testcase")}
    assert cases == {CALM: ["skipped"], "starved_trainer": ["failure"], "long_tail": ["system-out"]}


def test_github_has_a_command_a_finding(starved: Path) -> None:
    commands = [line for line in told(starved, "github").splitlines() if line.startswith("::")]
    assert [line.partition("::Starved")[0].partition("::Long")[0] for line in commands] == [
        "::error title=starved_trainer",
        "::warning title=long_tail",
    ]


def test_markdown_has_a_table_of_them(starved: Path) -> None:
    assert told(starved, "markdown").startswith("### ❌ ")
    assert "| critical | starved\\_trainer | Over the whole run, " in told(starved, "markdown")


def test_an_unknown_severity_is_refused(starved: Path) -> None:
    with pytest.raises(ArgumentError, match="fail_on_finding"):
        rlscope.check(starved, fail_on_finding="bad")  # type: ignore[arg-type]


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
