"""`rlscope compact`: merge the many small files of a run into a few large ones."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import rlscope
from rlscope import format as fmt
from rlscope.cli.app import progress_on
from rlscope.text_out import for_terminal

_MOST_NAMED = 5


def compact(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Folder of the recorded run (RLSCOPE_RUN_DIR).")],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", show_default="in place", help="New folder for the compacted run."),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Read each merged file again and compare its rows before removing the originals."
        ),
    ] = False,
) -> None:
    """Merge the many small files of a run into a few of 128 to 256 MB. Results do not change.

    Safe to run while the run is recorded, and to interrupt: files are removed only after the file that replaces them is
    complete.
    """
    notes = Console(stderr=True)
    with progress_on(notes) as progress:
        done = rlscope.compact(run_dir, out, verify=verify, progress=progress)
    before, after = (fmt.counted(files, "file", "files") for files in (done.files_before, done.files_after))
    sizes = f"{fmt.size(done.bytes_before)} before, {fmt.size(done.bytes_after)} after"
    print(for_terminal(f"{done.path}: {before} became {after} ({sizes}){'; rows verified' if verify else ''}"))
    notices = (
        [f"removed {fmt.counted(done.leftovers, 'file', 'files')} of an interrupted compaction"]
        if done.leftovers
        else []
    )
    if done.recording:
        notices.append(f"still recording, so the newest files were not merged: {_some(done.recording)}")
    notices += [f"not merged: {each.path}: {each.why}" for each in done.left[:_MOST_NAMED]]
    if len(done.left) > _MOST_NAMED:
        notices.append(f"not merged: {fmt.count(len(done.left) - _MOST_NAMED)} more files")
    for notice in notices:
        notes.print(for_terminal(f"note: {notice}"), highlight=False, soft_wrap=True, markup=False)


def _some(names: tuple[str, ...]) -> str:
    more = f" and {fmt.count(len(names) - _MOST_NAMED)} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more
