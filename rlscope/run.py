"""An open run, which answers queries until it is closed."""

from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import Self

import polars as pl

from rlscope.errors import QueryError
from rlscope.format import repr_of
from rlscope.importers.join import resolve
from rlscope.trace.adhoc import answer
from rlscope.trace.execution import SqlLimits
from rlscope.trace.query import Argument, ask_own
from rlscope.trace.store import OpenRun, open_run


class Run:
    """An open run, returned by `rlscope.open`. It is a context manager that runs built-in queries and ad-hoc SQL."""

    def __init__(self, path: str | PathLike[str]) -> None:
        # Keep the folder: a temporary one is removed with its last reference.
        self._stack, self._folder = ExitStack(), resolve(Path(path))
        self._run = self._stack.enter_context(open_run(self._folder.path))
        self._is_open = True

    @property
    def path(self) -> Path:
        """Absolute path of the run's folder."""
        return self._run.folder

    @property
    def run_id(self) -> str:
        """Id of the run, from its run.json."""
        return self._run.run_id

    def query(self, name: str, /, **arguments: Argument) -> pl.DataFrame:
        """Run a built-in query; `rlscope queries` lists them.

        Args:
            name: Name of the query.
            **arguments: Arguments of the query. The defaults cover the whole run.

        Returns:
            The rows. Column names carry their unit, and the header of the query's SQL file explains each column.

        Raises:
            QueryError: The query, or one of its arguments, does not exist.
            UnreadableDataError: A file of the run is damaged.
        """
        return answer(self._opened(), name, arguments)

    def sql(self, text: str, *, time_s: float = 60.0, memory_mb: int = 1000) -> pl.DataFrame:
        """Run one SELECT over the run's tables, on a connection that cannot open files.

        Args:
            text: One SELECT statement.
            time_s: Time limit, in seconds.
            memory_mb: Memory limit, in MB.

        Raises:
            QueryError: The text is not exactly one SELECT, DuckDB rejects it, or it exceeds a limit.
        """
        return ask_own(self._opened(), text, SqlLimits(time_s, memory_mb))

    def close(self) -> None:
        """Close the connection. Leaving the `with` block does this too."""
        self._is_open = False
        self._stack.close()

    def _opened(self) -> OpenRun:
        if not self._is_open:
            raise QueryError.of(
                f"run {self.run_id}",
                found="a closed run",
                expected="an open run",
                next_step="Query it inside its `with` block.",
            )
        return self._run

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr_of("Run", self.run_id, str(self.path) + ("" if self._is_open else " (closed)"))
