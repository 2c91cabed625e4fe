"""`rlscope check`: rules over a run, for people and for CI."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rlscope.cli.app import STDOUT, RunFolder, app, print_or_write

FIRED = 3
"""The exit code when something at or above --fail-on fired."""


class ReportFormat(StrEnum):
    """How the report is written."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    JUNIT = "junit"
    GITHUB = "github"


class FailOn(StrEnum):
    """Which severities fail the check."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


RulesFile = Annotated[
    Path | None, typer.Option("--rules", exists=True, dir_okay=False, help="TOML or YAML. [default: built-in rules]")
]
FailOnOption = Annotated[FailOn, typer.Option("--fail-on", help="Exit 3 when this severity or a graver one fired.")]


@app.command()
def check(
    run_dir: RunFolder,
    rules: RulesFile = None,
    fail_on: FailOnOption = FailOn.CRITICAL,
    fail_if: Annotated[
        list[str] | None,
        typer.Option("--fail-if", metavar="'METRIC > NUMBER'", help="A critical rule over the whole run; repeatable."),
    ] = None,
    report_format: Annotated[ReportFormat, typer.Option("--format", help="How to write it.")] = ReportFormat.TEXT,
    output: Annotated[str, typer.Option("-o", "--output", metavar="FILE|-", help="Where to write it.")] = STDOUT,
) -> None:
    """Hold a run to rules: every stretch in which one fired. Exit 0, or 3 when something fired that must not."""
    from rlscope.pipeline import check as check_folder
    from rlscope.pipeline import failed, rules_to_check
    from rlscope.reports.documents import check

    write = {
        ReportFormat.TEXT: check.as_text,
        ReportFormat.JSON: check.as_json,
        ReportFormat.MARKDOWN: check.as_markdown,
        ReportFormat.JUNIT: check.as_junit,
        ReportFormat.GITHUB: check.as_github,
    }[report_format]
    report = check_folder(run_dir, rules_to_check(rules, fail_if or []))
    print_or_write(output, write(report, fail_on.value))
    if failed(report, fail_on.value):
        raise typer.Exit(FIRED)
