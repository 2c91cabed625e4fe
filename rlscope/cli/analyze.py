"""`rlscope analyze`: the verdict card and the page."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rlscope.cli.app import STDOUT, RunFolder, app, print_or_write, write_text


@app.command()
def analyze(
    run_dir: RunFolder,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where the page goes. [default: RUN_DIR/report.html]")
    ] = None,
    json_to: Annotated[
        str | None, typer.Option("--json", metavar="FILE|-", help="Write the analysis as JSON; - is stdout.")
    ] = None,
    max_staleness: Annotated[
        int | None, typer.Option(min=0, help="Recommend no layout with older tokens. [default: the run's cap]")
    ] = None,
    gpus_per_node: Annotated[int, typer.Option(min=1, help="Move GPUs by whole nodes of so many.")] = 1,
) -> None:
    """Print the verdict card and write the page."""
    from rlscope.analyze import analyze as analyze_folder
    from rlscope.look_ahead import Wishes
    from rlscope.report.html import render
    from rlscope.report.json_document import as_document
    from rlscope.report.terminal import print_card

    notes = Console(stderr=True)
    with notes.status("opening the run") as status:
        wishes = Wishes(max_staleness, gpus_per_node)
        analysis = analyze_folder(run_dir, progress=status.update, wishes=wishes)
        status.update("drawing the page")
        page = write_text(output or run_dir / "report.html", render(analysis))
    if json_to is not None:
        text = json.dumps(as_document(analysis), indent=2, allow_nan=False)
        print_or_write(json_to, text)
    print_card(analysis, notes if json_to == STDOUT else Console())
    notes.print(f"wrote {page}", highlight=False, soft_wrap=True)
