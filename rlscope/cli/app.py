"""The command and what its subcommands share: the folder argument, and where text is written."""

from pathlib import Path
from typing import Annotated, Final

import typer

from rlscope.errors import RlscopeError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    help="Where the GPU-seconds of an asynchronous RL run went, how old its tokens were, and what to change.",
)

RunFolder = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The folder that RLSCOPE_RUN_DIR named.")]
Also = Annotated[
    list[Path] | None,
    typer.Option(
        "--also",
        metavar="RUN_DIR",
        help="Another run of the same model, with other trainer GPUs: it says how training scales. May be repeated.",
    ),
]
STDOUT: Final = "-"


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """Where the GPU-seconds of an asynchronous RL run went, how old its tokens were, and what to change."""
    if version:
        from importlib.metadata import version as installed

        print(installed("rlscope"))
        raise typer.Exit


def print_or_write(target: str, text: str) -> None:
    """Text that ends without a newline, to stdout where the target is a dash. Raises RlscopeError."""
    if target == STDOUT:
        print(text)
    else:
        write_text(Path(target), text + "\n")


def write_text(path: Path, text: str) -> Path:
    """Write a file and return its path. Raises RlscopeError where that is not possible."""
    return write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> Path:
    """Write a file and return its path. Raises RlscopeError where that is not possible."""
    try:
        path.write_bytes(content)
    except OSError as error:
        raise RlscopeError.of(
            path,
            found=error.strerror or str(error),
            expected="a file that can be written",
            next_step="Name another one.",
        ) from error
    return path
