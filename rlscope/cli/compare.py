"""`rlscope compare`: runs beside a baseline, with intervals, causes and what was promised."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import rlscope
from rlscope.cli.app import STDOUT, JsonTo, note_written, print_or_write, progress_on


class ComparisonFormat(StrEnum):
    """How the comparison is printed."""

    TEXT = "text"
    MARKDOWN = "markdown"
    JSON = "json"


def compare(
    baseline: Annotated[
        Path,
        typer.Argument(metavar="BASELINE", help="The run to compare with: a folder, or the JSON of an analysis."),
    ],
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="The runs to compare, in the same forms.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", show_default="none", help="The HTML page with paired charts.")
    ] = None,
    png: Annotated[Path | None, typer.Option("--png", metavar="FILE", help="A PNG of the first pair.")] = None,
    json_to: JsonTo = None,
    comparison_format: Annotated[
        ComparisonFormat,
        typer.Option("--format", help="What to print: the card, Markdown for a pull request, or JSON."),
    ] = ComparisonFormat.TEXT,
) -> None:
    """Compare runs with a baseline: what differs, whether that is more than noise, and what it is from."""
    from rlscope.reports.terminal.comparison import print_comparison

    if json_to == STDOUT and comparison_format is not ComparisonFormat.TEXT:
        raise typer.BadParameter("--json - and --format both print to stdout: give one of them")
    notes = Console(stderr=True)
    with progress_on(notes) as progress:
        comparison = rlscope.compare(baseline, *runs, progress=progress)
        progress("drawing")
        written = [comparison.to_html(output)] if output is not None else []
        written += [comparison.to_png(png)] if png is not None else []
    if json_to is not None:
        print_or_write(json_to, comparison.to_json())
    if comparison_format is ComparisonFormat.TEXT:
        print_comparison(comparison.result, notes if json_to == STDOUT else Console())
    else:
        is_json = comparison_format is ComparisonFormat.JSON
        print(comparison.to_json() if is_json else comparison.to_markdown())
    for path in written:
        note_written(notes, path)
