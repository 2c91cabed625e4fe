"""Runs a question, or the user's own SELECT, on an open run, and returns a polars frame."""

from typing import Final

import duckdb
import polars as pl
from duckdb import StatementType

from rlscope.errors import QueryError, UnreadableDataError
from rlscope.query_files import find_question
from rlscope.store import Run

Argument = int | float | str | bool

_READABLE: Final = (StatementType.SELECT, StatementType.EXPLAIN)


def ask(run: Run, name: str, **arguments: Argument) -> pl.DataFrame:
    """The answer to a question of queries/, with the columns of its header.

    Raises QueryError for an unknown question or wrong arguments, UnreadableDataError when a file breaks under it.
    """
    question = find_question(name)
    wanted = {arg.name for arg in question.args}
    if wanted != set(arguments):
        raise QueryError.of(
            f"query {name!r}",
            found="arguments " + (", ".join(sorted(arguments)) or "none"),
            expected=", ".join(sorted(wanted)) or "none",
            next_step="Its header in queries/ says what each means.",
        )
    return _run(run, question.sql, arguments)


def ask_own(run: Run, sql: str) -> pl.DataFrame:
    """The answer to the user's own SELECT. Raises QueryError for anything else, or SQL that DuckDB refuses."""
    try:
        statements = run.connection.extract_statements(sql)
    except duckdb.Error as error:
        raise QueryError(f"your SQL cannot be parsed: {error}") from error
    kinds = [statement.type for statement in statements]
    if len(kinds) != 1 or kinds[0] not in _READABLE:
        raise QueryError.of(
            "your SQL",
            found=", ".join(kind.name for kind in kinds) or "nothing",
            expected="one SELECT",
            next_step="`rlscope queries` shows the tables and questions there are.",
        )
    try:
        return _run(run, sql, {})
    except (duckdb.BinderException, duckdb.CatalogException, duckdb.PermissionException) as error:
        raise QueryError(f"your SQL was refused: {error}") from error


def _run(run: Run, sql: str, arguments: dict[str, Argument]) -> pl.DataFrame:
    try:
        return run.connection.sql(sql, params=arguments or None).pl()
    except (duckdb.IOException, duckdb.InvalidInputException, duckdb.SerializationException) as error:
        raise UnreadableDataError(f"{run.folder}: a file broke while it was read: {error}") from error
