"""The command: parse, call one public function, print. Data goes to stdout, everything else to stderr."""

import json
import sys
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from rlscope.errors import RlscopeError
from rlscope.table_output import TableFormat, write_table

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    help="Where the GPU-seconds of an asynchronous RL run went, how old its tokens were, and what to change.",
)

RunFolder = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The folder that RLSCOPE_RUN_DIR named.")]
_STDOUT: Final = "-"


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """Where the GPU-seconds of an asynchronous RL run went, how old its tokens were, and what to change."""
    if version:
        from importlib.metadata import version as installed

        print(installed("rlscope"))
        raise typer.Exit


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
        page = _write_text(output or run_dir / "report.html", render(analysis))
    if json_to is not None:
        text = json.dumps(as_document(analysis), indent=2, allow_nan=False)
        _print_or_write(json_to, text)
    print_card(analysis, notes if json_to == _STDOUT else Console())
    notes.print(f"wrote {page}", highlight=False, soft_wrap=True)


@app.command()
def query(
    run_dir: RunFolder,
    name: Annotated[str | None, typer.Argument(help="A question; `rlscope queries` lists them.")] = None,
    file: Annotated[
        Path | None, typer.Option("-f", "--file", exists=True, dir_okay=False, help="Your own SELECT instead.")
    ] = None,
    table_format: Annotated[TableFormat, typer.Option("--format", help="How the table is written.")] = TableFormat.TEXT,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write here instead of stdout.")] = None,
    arguments: Annotated[
        list[str] | None, typer.Option("--arg", metavar="NAME=VALUE", help="An argument of the question; repeatable.")
    ] = None,
) -> None:
    """Print the answer to one question, or to your own SELECT."""
    from rlscope.own_query import answer, parse_arguments

    if (name is None) == (file is None):
        raise typer.BadParameter("give the NAME of a question, or -f with a file of your own SQL")
    frame = answer(run_dir, name, file, parse_arguments(arguments or []))
    write_table(frame, table_format, output)


@app.command()
def queries() -> None:
    """List the questions there are, from their headers."""
    from rlscope.query_files import questions

    for question in questions().values():
        print(f"{question.name:26} {question.question}")


def main() -> None:
    """Run the command; what the user can mend becomes a message and exit code 1."""
    try:
        app()
    except RlscopeError as error:
        Console(stderr=True).print(f"rlscope: {error}", style="red", highlight=False, soft_wrap=True, markup=False)
        sys.exit(1)


def _print_or_write(target: str, text: str) -> None:
    if target == _STDOUT:
        print(text)
    else:
        _write_text(Path(target), text + "\n")


def _write_text(path: Path, text: str) -> Path:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RlscopeError.of(
            path, found=str(error), expected="a file that can be written", next_step="Name another with -o or --json."
        ) from error
    return path
