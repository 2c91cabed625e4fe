"""`rlscope import`: turn the logs and metrics of a run without hooks into a run folder."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

import rlscope
from rlscope.cli.app import folded, note_written
from rlscope.cli.imported import with_import_options


@with_import_options
def import_(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH... RUN_DIR", help="Files or folders of one run, followed by the run folder to write."
        ),
    ],
    options: "rlscope.ImportOptions",
) -> None:
    """Convert the logs and metrics of a framework into a run folder, which every command accepts."""
    from rlscope.importers.join import import_run

    if len(paths) < 2:
        raise typer.BadParameter("pass the file or folder to import, followed by the run folder to write")
    first, *others, run_dir = paths
    options = replace(options, with_files=(*others, *options.with_files))
    notes = Console(stderr=True)
    total = sum(path.stat().st_size for path in (first, *others, *options.engine_logs) if path.is_file())
    bar = Progress(TextColumn("reading"), BarColumn(), DownloadColumn(), console=notes, transient=True)
    with bar:
        task = bar.add_task("reading", total=total or None)
        imported = import_run(first, run_dir, options, lambda size: bar.advance(task, size))
    for file in imported.files:
        print(f"{file.name}: {file.lines:,} lines or records, {file.bad_lines:,} of them unreadable")
    for note in imported.notes:
        print(folded(note if note.endswith(".") else f"{note}.", Console()))
    note_written(notes, run_dir)
