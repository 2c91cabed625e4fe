"""`rlscope check`: evaluate alert rules on a run, alone or against a baseline, for people and for CI."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

import rlscope
from rlscope.cli.app import STDOUT, Ray, RunFolder, checked_output, folded, print_or_write

FIRED = 3
"""Exit code if a rule of severity --fail-on or higher fired, or a finding reaches --fail-on-finding."""


ReportFormat = Literal["text", "json", "markdown"]
FailOn = Literal["info", "warning", "critical"]
"""Lowest severity that fails the check."""
RulesFile = Annotated[
    Path | None,
    typer.Option(
        "--rules", exists=True, dir_okay=False, show_default="the built-in rules", help="Alert rules, in TOML."
    ),
]
FailOnOption = Annotated[FailOn, typer.Option("--fail-on", help="Exit 3 if a rule of this severity or higher fired.")]

FailOnFindingOption = Annotated[
    FailOn | None,
    typer.Option(
        "--fail-on-finding",
        show_default="findings are not checked",
        help="Also exit 3 if `rlscope analyze` would report a finding of this severity or higher.",
    ),
]


def check(
    run_dir: RunFolder,
    rules: RulesFile = None,
    fail_on: FailOnOption = "critical",
    fail_on_finding: FailOnFindingOption = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-if",
            metavar="'METRIC > NUMBER'",
            help="Add a critical rule over the whole run, for example 'staleness.tokens.p95 > 4' or, with --baseline, "
            "'throughput.steady_tokens_per_s < 0.95 * baseline'. Without --rules it replaces the built-in rules. "
            "Repeatable.",
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            show_default="none",
            help="Run, or JSON of an analysis, to compare with. Adds the built-in regression rules.",
        ),
    ] = None,
    ray: Ray = None,
    report_format: Annotated[ReportFormat, typer.Option("--format", help="Output format.")] = "text",
    output: Annotated[
        str,
        typer.Option("-o", "--output", metavar="FILE|-", callback=checked_output, help="Output file; - is stdout."),
    ] = STDOUT,
) -> None:
    """Evaluate alert rules on a run and list every firing. Exits 3 if one reaches --fail-on."""
    checked = rlscope.check(run_dir, rules, fail_if or (), fail_on_finding, baseline, ray)
    text = checked.to_text(report_format, fail_on)
    if output == STDOUT and report_format == "text":
        text = folded(text, Console())
    print_or_write(output, text)
    if checked.failed(fail_on):
        raise typer.Exit(FIRED)
