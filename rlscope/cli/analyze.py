"""`rlscope analyze`: print the card and write the report."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import rlscope
from rlscope.cli.app import (
    Also,
    AnswerFormat,
    JsonTo,
    Ray,
    RunPath,
    output_option,
    print_answer,
    progress_on,
    refuse_both_on_stdout,
    write_json,
    write_page,
)
from rlscope.cli.imported import with_import_options

Page = Annotated[Path | None, output_option("The HTML report.", "PATH/report.html, ./report.html for a file")]
NoPage = Annotated[bool, typer.Option("--no-page", help="Do not write the HTML report, the slowest part.")]
Quiet = Annotated[
    bool, typer.Option("-q", "--quiet", is_eager=True, help="Print only errors. Files are still written.")
]
Card = Annotated[
    AnswerFormat, typer.Option("--format", help="What to print: the card, Markdown for a pull request, or JSON.")
]
Cap = Annotated[
    int | None,
    typer.Option(
        min=0,
        show_default="the run's cap",
        help="Maximum sample staleness of a recommended layout (p95, in versions).",
    ),
]
PerNode = Annotated[int, typer.Option(min=1, help="GPUs per node. Recommended layouts move only whole nodes.")]


@with_import_options
def analyze(
    path: RunPath,
    output: Page = None,
    json_to: JsonTo = None,
    card_format: Card = "text",
    max_staleness: Cap = None,
    gpus_per_node: PerNode = 1,
    also: Also = None,
    *,
    options: "rlscope.ImportOptions",
    ray: Ray = None,
    no_page: NoPage = False,
    quiet: Quiet = False,
) -> None:
    """Print where the GPU time went and what to change; write the HTML report.

    PATH is a run folder, or a file of a run recorded without hooks: a console log, a .wandb file or its folder,
    TensorBoard events, JSON lines, or a CSV export. docs/importers.md lists the files of each framework.
    """
    _refuse_contradictions(output, json_to, card_format, no_page, quiet)
    notes = Console(stderr=True, quiet=quiet)
    with progress_on(notes) as progress:
        analysis = rlscope.analyze(path, max_staleness, gpus_per_node, also or (), progress, options, ray, not no_page)
    out = write_json(json_to, analysis, notes)
    if not quiet:
        print_answer(analysis, out, card_format)
    if not no_page:
        write_page(analysis, output or analysis.page_path, notes)


def _refuse_contradictions(
    output: Path | None, json_to: str | None, card_format: AnswerFormat, no_page: bool, quiet: bool
) -> None:
    refuse_both_on_stdout(json_to, card_format)
    if quiet and card_format != "text":
        raise typer.BadParameter("--quiet prints nothing, so --format has no effect; pass only one of them")
    if no_page and output is not None:
        raise typer.BadParameter("--no-page writes no report, so --output has no effect; pass only one of them")
