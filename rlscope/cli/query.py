"""`rlscope query` and `rlscope queries`: one question, or ad-hoc SQL."""

from pathlib import Path
from typing import Annotated

import typer

import rlscope
from rlscope.cli.app import RunFolder
from rlscope.trace.adhoc import TableFormat, parse_arguments, read_sql, write_table
from rlscope.trace.questions import questions


def query(
    run_dir: RunFolder,
    name: Annotated[str | None, typer.Argument(help="A question; `rlscope queries` lists them.")] = None,
    file: Annotated[
        Path | None,
        typer.Option("-f", "--file", exists=True, dir_okay=False, help="A file with one SELECT instead."),
    ] = None,
    table_format: Annotated[TableFormat, typer.Option("--format", help="Output format.")] = TableFormat.TEXT,
    output: Annotated[Path | None, typer.Option("-o", "--output", show_default="stdout", help="Output file.")] = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="How long the SELECT of -f may run.")
    ] = 60.0,
    memory_mb: Annotated[
        int, typer.Option("--max-memory-mb", min=50, help="How much memory the SELECT of -f may take.")
    ] = 1000,
    arguments: Annotated[
        list[str] | None, typer.Option("--arg", metavar="NAME=VALUE", help="An argument of the question. Repeatable.")
    ] = None,
) -> None:
    """Print the answer to one question, or to ad-hoc SQL, over the tables of a run."""
    if (name is None) == (file is None):
        raise typer.BadParameter("give the NAME of a question, or -f with a file of SQL")
    given = parse_arguments(arguments or [])
    sql = None if file is None else read_sql(file, given)
    with rlscope.open(run_dir) as run:
        frame = run.query(name or "", **given) if sql is None else run.sql(sql, time_s=timeout_s, memory_mb=memory_mb)
    write_table(frame, table_format, output)


def queries() -> None:
    """List all questions, each with what it answers."""
    for question in questions().values():
        print(f"{question.name:26} {question.question}")
