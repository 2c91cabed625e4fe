"""`rlscope analyze`: the verdict card and the page; `rlscope report`: the page, or a picture for a slide."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rlscope.cli.app import STDOUT, Also, RunFolder, app, print_or_write, write_bytes, write_text


class CardFormat(StrEnum):
    """How the analysis is printed."""

    TEXT = "text"
    MARKDOWN = "markdown"
    JSON = "json"


@app.command()
def analyze(
    run_dir: RunFolder,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where the page goes. [default: RUN_DIR/report.html]")
    ] = None,
    json_to: Annotated[
        str | None, typer.Option("--json", metavar="FILE|-", help="Write the analysis as JSON; - is stdout.")
    ] = None,
    card_format: Annotated[
        CardFormat, typer.Option("--format", help="What is printed: the card, Markdown for a pull request, or JSON.")
    ] = CardFormat.TEXT,
    max_staleness: Annotated[
        int | None, typer.Option(min=0, help="Recommend no layout with older tokens. [default: the run's cap]")
    ] = None,
    gpus_per_node: Annotated[int, typer.Option(min=1, help="Move GPUs by whole nodes of so many.")] = 1,
    also: Also = None,
) -> None:
    """Print the verdict card and write the page."""
    from rlscope.analysis.advise import Constraints
    from rlscope.pipeline import analyze as analyze_folder
    from rlscope.reports.documents.analysis import analysis_document
    from rlscope.reports.markdown import as_markdown
    from rlscope.reports.page.html import render
    from rlscope.reports.terminal.card import print_card

    if json_to == STDOUT and card_format is not CardFormat.TEXT:
        raise typer.BadParameter("--json - and --format both print to stdout: give one of them")
    notes = Console(stderr=True)
    with notes.status("opening the run") as status:
        constraints = Constraints(max_staleness, gpus_per_node, tuple(also or ()))
        analysis = analyze_folder(run_dir, progress=status.update, constraints=constraints)
        status.update("drawing the page")
        page = write_text(output or run_dir / "report.html", render(analysis))
    document = analysis_document(analysis).as_json()
    if json_to is not None:
        print_or_write(json_to, document)
    if card_format is CardFormat.TEXT:
        print_card(analysis, notes if json_to == STDOUT else Console())
    else:
        print(as_markdown(analysis) if card_format is CardFormat.MARKDOWN else document)
    notes.print(f"wrote {page}", highlight=False, soft_wrap=True)


@app.command()
def report(
    run_dir: RunFolder,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Where the page goes. [default: RUN_DIR/report.html, without --png]"),
    ] = None,
    png: Annotated[
        Path | None, typer.Option("--png", metavar="FILE", help="Write the first screen as a picture for a slide.")
    ] = None,
    also: Also = None,
) -> None:
    """Write the page, a picture of its first screen, or both."""
    from rlscope.analysis.advise import Constraints
    from rlscope.pipeline import analyze as analyze_folder
    from rlscope.reports.page.html import render
    from rlscope.reports.page.png import as_png

    notes, written = Console(stderr=True), list[Path]()
    with notes.status("opening the run") as status:
        analysis = analyze_folder(run_dir, progress=status.update, constraints=Constraints(also=tuple(also or ())))
        status.update("drawing")
        if png is not None:
            written.append(write_bytes(png, as_png(analysis)))
        if output is not None or png is None:
            written.append(write_text(output or run_dir / "report.html", render(analysis)))
    for path in written:
        notes.print(f"wrote {path}", highlight=False, soft_wrap=True)
