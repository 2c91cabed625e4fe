"""The command and what its subcommands share: arguments that several take, progress, and where text is written."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from rlscope.text_out import as_bytes, for_terminal
from rlscope.trace.adhoc import write_file

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    help="Where the GPU-seconds of an asynchronous RL run went, how stale its tokens were, and what to change.",
)


def _note_many_files(folder: Path) -> Path:
    """Say on stderr what a run of very many small files will cost, before the work."""
    from rlscope.trace.files import many_files_note

    note = many_files_note(folder)
    if note is not None:
        Console(stderr=True).print(for_terminal(f"note: {note}"), highlight=False, soft_wrap=True, markup=False)
    return folder


RunFolder = Annotated[
    Path,
    typer.Argument(metavar="RUN_DIR", help="Folder of the recorded run (RLSCOPE_RUN_DIR).", callback=_note_many_files),
]
RunPath = Annotated[
    Path,
    typer.Argument(
        metavar="PATH",
        help="Folder of a recorded run, here or as s3://BUCKET/RUN, or a log or metrics file of an RL framework.",
        callback=_note_many_files,
    ),
]
Also = Annotated[
    list[Path] | None,
    typer.Option(
        "--also",
        metavar="RUN_DIR",
        help="Another run of the same model with a different number of trainer GPUs; shows how training scales. "
        "Repeatable.",
    ),
]
As = Annotated[
    str | None,
    typer.Option("--as", metavar="FRAMEWORK", help="Whose file it is, if its content leaves it open."),
]
Gpus = Annotated[str | None, typer.Option("--gpus", metavar="ROLE=N,...", help="GPUs by role: trainer=8,sampler=8.")]
GpusPerEngine = Annotated[int | None, typer.Option("--gpus-per-engine", min=1, help="GPUs of one engine.")]
UtcOffset = Annotated[
    str | None, typer.Option("--utc-offset", metavar="+HH:MM", help="Time zone of a log that does not name its own.")
]
Year = Annotated[int | None, typer.Option("--year", help="Year of a log that does not name its own.")]
GpuOwner = Annotated[
    list[str] | None,
    typer.Option("--gpu-owner", metavar="N-M=WORKER", help="Worker that owns these GPUs. Repeatable."),
]
With = Annotated[
    list[Path] | None, typer.Option("--with", metavar="PATH", help="Another file of the same run. Repeatable.")
]
EngineLog = Annotated[
    list[str] | None,
    typer.Option("--engine-log", metavar="PATTERN", help="Logs of the inference engines, one per file. Repeatable."),
]
JsonTo = Annotated[
    str | None, typer.Option("--json", metavar="FILE|-", help="Also write the result as JSON; - is stdout.")
]
STDOUT: Final = "-"


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """Where the GPU-seconds of an asynchronous RL run went, how stale its tokens were, and what to change."""
    if version:
        from importlib.metadata import version as installed

        print(installed("rlscope"))
        raise typer.Exit


@contextmanager
def progress_on(notes: Console) -> Generator[Callable[[str], None]]:
    """Shows what is being done, on a terminal."""
    with notes.status("opening the run") as status:
        yield status.update


def print_or_write(target: str, text: str) -> None:
    """Text that ends without a newline, to stdout where the target is a dash. Raises OutputError."""
    if target == STDOUT:
        sys.stdout.buffer.write(as_bytes(text + "\n"))
        sys.stdout.buffer.flush()
    else:
        write_file(Path(target), as_bytes(text + "\n"))


def note_written(notes: Console, path: Path) -> None:
    """Say where a file went."""
    notes.print(f"wrote {for_terminal(str(path))}", highlight=False, soft_wrap=True, markup=False)
