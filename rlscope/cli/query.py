"""`rlscope query` and `rlscope queries`: one question, or one's own SELECT."""

from pathlib import Path
from typing import Annotated

import typer

from rlscope.cli.app import RunFolder, app
from rlscope.trace.adhoc import TableFormat, write_table


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
    from rlscope.trace.adhoc import answer, parse_arguments

    if (name is None) == (file is None):
        raise typer.BadParameter("give the NAME of a question, or -f with a file of your own SQL")
    frame = answer(run_dir, name, file, parse_arguments(arguments or []))
    write_table(frame, table_format, output)


@app.command()
def queries() -> None:
    """List the questions there are, from their headers."""
    from rlscope.trace.questions import questions

    for question in questions().values():
        print(f"{question.name:26} {question.question}")
