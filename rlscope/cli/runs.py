"""`rlscope list`: list the runs below a folder, one line each."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

import rlscope
from rlscope.cli.app import STDOUT, note_written, output_option, print_answer, print_or_write, progress_on


def list_(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that contains runs, at any depth.")],
    sort: Annotated[str, typer.Option(help="Column to sort by, for example tokens_per_s.")] = "started_ns",
    reverse: Annotated[bool, typer.Option("--reverse", help="Largest first.")] = False,
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="'COLUMN = VALUE'",
            help="List only runs that match, for example 'bottleneck = samplers', 'tokens_per_s > 5000' or "
            "'path ~ monday'. Repeatable.",
        ),
    ] = None,
    list_format: Annotated[Literal["text", "csv", "json"], typer.Option("--format", help="Output format.")] = "text",
    output: Annotated[Path | None, output_option("Also write the list as an HTML page.")] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Analyze every run again.")] = False,
) -> None:
    """List the runs below a folder: date, layout, rate, bottleneck, staleness, cost and alerts."""
    notes = Console(stderr=True)
    with progress_on(notes, "looking for runs") as progress:
        runs = rlscope.list_runs(
            folder, sort=sort, reverse=reverse, filters=filters or (), cache=not no_cache, progress=progress
        )
    if list_format == "csv":
        print_or_write(STDOUT, runs.to_csv(), is_data=True)
    else:
        print_answer(runs, Console(), list_format)
    if output is not None:
        note_written(notes, runs.to_html(output))
