"""`rlscope export`: write the timeline of a run for other tools."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import rlscope
from rlscope.cli.app import RunFolder, checked_output, note_written, progress_on

MAX_MB = 500
"""Default of `rlscope.exports.perfetto`, repeated here for the help."""


def export(
    run_dir: RunFolder,
    perfetto: Annotated[
        Path,
        typer.Option(
            "--perfetto",
            metavar="FILE",
            callback=checked_output,
            help="Write a Perfetto trace; open it at ui.perfetto.dev.",
        ),
    ],
    from_s: Annotated[
        float | None, typer.Option("--from", metavar="S", help="Start, in seconds since the run started.")
    ] = None,
    to_s: Annotated[
        float | None, typer.Option("--to", metavar="S", help="End, in seconds since the run started.")
    ] = None,
    workers: Annotated[
        list[str] | None, typer.Option("--worker", metavar="ID", help="Show only this worker. Repeatable.")
    ] = None,
    max_mb: Annotated[
        int, typer.Option(min=1, help="Maximum size of the file, in MB. Later events are left out.")
    ] = MAX_MB,
) -> None:
    """Write the timeline of a run as a Perfetto trace: states, batches, queues, weight updates and samples."""
    notes = Console(stderr=True)
    with progress_on(notes) as progress:
        progress("writing the timeline")
        written = rlscope.export_perfetto(
            run_dir, perfetto, from_s=from_s, to_s=to_s, workers=workers or (), max_mb=max_mb
        )
    note_written(notes, written.path)
    for note in written.notes:
        notes.print(f"note: {note}", highlight=False, soft_wrap=True)
