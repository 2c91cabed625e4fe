"""`rlscope analyze`: the verdict card and the page; `rlscope report`: the page, or a picture for a slide."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import rlscope
from rlscope.api import PAGE_NAME
from rlscope.cli.app import STDOUT, Also, JsonTo, RunFolder, note_written, print_or_write, progress_on


class CardFormat(StrEnum):
    """How the analysis is printed."""

    TEXT = "text"
    MARKDOWN = "markdown"
    JSON = "json"


def analyze(
    run_dir: RunFolder,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", show_default="RUN_DIR/report.html", help="The HTML report."),
    ] = None,
    json_to: JsonTo = None,
    card_format: Annotated[
        CardFormat, typer.Option("--format", help="What to print: the summary, Markdown for a pull request, or JSON.")
    ] = CardFormat.TEXT,
    max_staleness: Annotated[
        int | None,
        typer.Option(
            min=0,
            show_default="the run's cap",
            help="Maximum sample staleness (p95, in versions) of a recommended layout.",
        ),
    ] = None,
    gpus_per_node: Annotated[int, typer.Option(min=1, help="GPUs per node; only whole nodes are moved.")] = 1,
    also: Also = None,
) -> None:
    """Print where the GPU time went and what to change; write the HTML report."""
    from rlscope.reports.terminal.card import print_card

    if json_to == STDOUT and card_format is not CardFormat.TEXT:
        raise typer.BadParameter("--json - and --format both print to stdout: give one of them")
    notes = Console(stderr=True)
    with progress_on(notes) as progress:
        analysis = rlscope.analyze(run_dir, max_staleness, gpus_per_node, also or (), progress)
        progress("drawing the page")
        page = analysis.to_html(output or run_dir / PAGE_NAME)
    if json_to is not None:
        print_or_write(json_to, analysis.to_json())
    if card_format is CardFormat.TEXT:
        print_card(analysis.result, notes if json_to == STDOUT else Console())
    else:
        print_or_write(STDOUT, analysis.to_markdown() if card_format is CardFormat.MARKDOWN else analysis.to_json())
    note_written(notes, page)


def report(
    run_dir: RunFolder,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", show_default="RUN_DIR/report.html, or none with --png", help="The HTML report."),
    ] = None,
    png: Annotated[
        Path | None, typer.Option("--png", metavar="FILE", help="Write the first screen as a PNG for a slide.")
    ] = None,
    also: Also = None,
) -> None:
    """Write the HTML report, a PNG of its first screen, or both."""
    notes = Console(stderr=True)
    with progress_on(notes) as progress:
        written = rlscope.report(run_dir, output, png=png, also=also or (), progress=progress)
    for path in written:
        note_written(notes, path)
