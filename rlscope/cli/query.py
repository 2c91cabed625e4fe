"""`rlscope query` and `rlscope queries`: run a built-in query or ad-hoc SQL, and list the built-in queries."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

import rlscope
from rlscope.cli.app import STDIN, RunFolder, duration_option, folded, output_option


def _there(file: Path | None) -> Path | None:
    if file is not None and str(file) != STDIN and not file.is_file():
        raise typer.BadParameter(f"no file {str(file)!r}")
    return file


Timeout = Annotated[float, duration_option("--timeout", "1m", "Time limit of your SELECT, for example 90s or 5m.")]


def query(
    run_dir: RunFolder,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|SQL", help="Name of a built-in query (`rlscope queries` lists them), or one SELECT in quotes."
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("-f", "--file", metavar="FILE|-", callback=_there, help="File with one SELECT; - is stdin."),
    ] = None,
    table_format: Annotated[
        Literal["text", "csv", "json", "parquet"], typer.Option("--format", help="Output format.")
    ] = "text",
    output: Annotated[Path | None, output_option("Output file.", "stdout")] = None,
    timeout_s: Timeout = 60.0,
    memory_mb: Annotated[
        int, typer.Option("--max-memory-mb", min=50, help="Memory limit of your SELECT, in MB.")
    ] = 1000,
    arguments: Annotated[
        list[str] | None, typer.Option("--arg", metavar="NAME=VALUE", help="Argument of the query. Repeatable.")
    ] = None,
) -> None:
    """Print the result of a built-in query, or of ad-hoc SQL, over the tables of a run."""
    from rlscope.trace.adhoc import is_sql, own_sql, parse_arguments, write_table

    if (name is None) == (file is None):
        raise typer.BadParameter("pass the NAME of a query, a SELECT in quotes, or -f with a file of SQL")
    given = parse_arguments(arguments or [])
    typed = name if name is not None and is_sql(name) else file
    sql = None if typed is None else own_sql(typed, given)
    with rlscope.open(run_dir) as run:
        frame = run.query(name or "", **given) if sql is None else run.sql(sql, time_s=timeout_s, memory_mb=memory_mb)
    write_table(frame, table_format, output)


def queries() -> None:
    """List the built-in queries and the question that each of them answers."""
    from rlscope.trace.questions import questions

    for question in questions().values():
        print(folded(f"{question.name:26} {question.question}", Console(), hanging=27))
