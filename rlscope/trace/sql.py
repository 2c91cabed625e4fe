"""Texts of SQL: names, values, and a table that takes the place of another."""

from collections.abc import Iterable

from duckdb import DuckDBPyConnection


def quoted(name: str) -> str:
    """Return a column's name in SQL."""
    return f'"{name}"'


def literals(texts: Iterable[str]) -> str:
    """Return texts as SQL values, separated by commas."""
    return ", ".join("'" + text.replace("'", "''") + "'" for text in texts)


def set_aside(connection: DuckDBPyConnection, table: str, prefix: str) -> str:
    """Rename a table or a view by a prefix; return which of the two it is."""
    found = connection.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = ?", [table]).fetchall()
    kind = "TABLE" if found else "VIEW"
    connection.execute(f"ALTER {kind} {table} RENAME TO {prefix}{table}")
    return kind
