"""`rlscope compare`: compare runs with a baseline: intervals, causes, and predictions put to the test."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import rlscope
from rlscope.cli.app import (
    AnswerFormat,
    JsonTo,
    output_option,
    print_answer,
    progress_on,
    refuse_both_on_stdout,
    write_json,
    write_page,
)


def compare(
    baseline: Annotated[
        Path,
        typer.Argument(metavar="BASELINE", help="Run to compare with: its folder or its log."),
    ],
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Runs to compare: folders or logs.")],
    output: Annotated[Path | None, output_option("The HTML report with paired charts.")] = None,
    json_to: JsonTo = None,
    comparison_format: Annotated[
        AnswerFormat,
        typer.Option("--format", help="What to print: the card, Markdown for a pull request, or JSON."),
    ] = "text",
) -> None:
    """Compare runs with a baseline: what changed and why, and whether it is significant."""
    refuse_both_on_stdout(json_to, comparison_format)
    notes = Console(stderr=True)
    with progress_on(notes) as progress:
        comparison = rlscope.compare(baseline, *runs, progress=progress)
    print_answer(comparison, write_json(json_to, comparison, notes), comparison_format)
    if output is not None:
        write_page(comparison, output, notes)
