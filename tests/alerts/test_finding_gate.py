"""`check --fail-on-finding`: the findings of the analysis as a gate, in every format, without the model."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import rlscope
from rlscope.analysis.result import Severity
from rlscope.errors import ArgumentError
from rlscope.pipeline import analyze
from rlscope.reports.check import CheckReport
from tests.cli.command import invoke
from tests.kept import TRACES
from tests.trace_folder import activity, delivery_row, sample_row, train_row, worker, write_run

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


@pytest.fixture(scope="module")
def report(starved: Path) -> CheckReport:
    """What is said of it where a critical finding fails."""
    return rlscope.check(starved, fail_if=CALM, fail_on_finding="critical")


def test_the_findings_are_those_of_the_analysis(starved: Path, report: CheckReport) -> None:
    assert report.findings == analyze(starved, also_ask=()).findings
    assert [(each.rule, each.severity) for each in report.findings or ()] == [
        ("starved_trainer", "critical"),
        ("long_tail", "warning"),
    ]


def test_the_findings_of_a_log_that_reports_staleness_itself_are_those_of_the_analysis() -> None:
    log = TRACES / "imported" / "verl_console.log"
    assert rlscope.check(log, fail_on_finding="critical").findings == rlscope.analyze(log, page=False).findings


@pytest.mark.parametrize(
    ("found", "severity", "fails"),
    [
        (["critical", "warning"], "critical", True),
        (["warning"], "critical", False),
        (["warning"], "warning", True),
        (["info"], "warning", False),
    ],
)
def test_a_finding_at_or_above_the_severity_fails(
    found: list[Severity], severity: Severity, fails: bool, report: CheckReport
) -> None:
    (first, *_) = report.findings or ()
    findings = tuple(replace(first, severity=each) for each in found)
    checked = replace(report, findings=findings, fail_on_finding=severity)
    assert (checked.failed(), json.loads(checked.to_text("json"))["failed"]) == (fails, fails)


def test_every_format_has_the_findings_and_says_that_one_failed(report: CheckReport) -> None:
    text = report.to_text("text")
    assert text.splitlines()[0].endswith(": 0 of 1 rule fired, 2 findings")
    assert "\nCRITICAL  starved_trainer  finding: Starved trainer\n          Over the whole run, " in text
    assert text.endswith("\nfailed: there is a finding of severity critical or above")
    document = json.loads(report.to_text("json"))
    assert (document["failed"], document["fail_on"], document["fail_on_finding"]) == (True, "critical", "critical")
    assert [each["rule"] for each in document["findings"]] == ["starved_trainer", "long_tail"]
    assert document["findings"][0]["cost_gpu_s"] == 60.0
    assert report.to_text("markdown").startswith("#### ❌ ")
    assert "| critical | starved\\_trainer | Over the whole run, " in report.to_text("markdown")


def test_a_check_that_was_not_asked_for_findings_has_none_and_fails_on_none(starved: Path) -> None:
    plain = rlscope.check(starved, fail_if=CALM)
    document = json.loads(plain.to_text("json"))
    assert (plain.findings, document["findings"], document["fail_on_finding"]) == (None, None, None)
    assert not plain.failed()


def test_an_unknown_severity_is_refused(starved: Path) -> None:
    with pytest.raises(ArgumentError, match="fail_on_finding"):
        rlscope.check(starved, fail_on_finding="bad")  # type: ignore[arg-type]


def test_the_command_exits_with_3(starved: Path) -> None:
    assert invoke("check", starved, "--fail-if", CALM, "--fail-on-finding", "warning").exit_code == 3
