"""Provides the connection for a user's SQL, which has the tables of the run and cannot open any file.

The rows are passed as Arrow data, which pyarrow reads from the checked files. DuckDB's file system is disabled on this
connection, and so is everything that takes a path: functions that read, list or describe files, files as tables,
writing, extensions and spilling. There is no list of forbidden names that could be incomplete.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from duckdb import DuckDBPyConnection
from rlscope_otel.schema import TABLES

from rlscope.trace import execution
from rlscope.trace.execution import SqlLimits
from rlscope.trace.footers import read_schema
from rlscope.trace.questions import OPENED, macros_sql

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset

_SETTINGS: Final = {
    "temp_directory": "",
    "secret_directory": "none",
    "allow_persistent_secrets": "false",
}
_LOCK: Final = (
    "SET disabled_filesystems = 'LocalFileSystem'",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)


class LockedConnection:
    """A connection that is built from the run's own connection on first use, and rebuilt for other limits."""

    def __init__(self, source: DuckDBPyConnection, stored: Mapping[str, Sequence[Path]]) -> None:
        """Set the sources of the tables.

        source: connection with the tables that are not `stored`. stored: by table, files with exactly the contract's
        types.
        """
        self._source = source
        self._stored = stored
        self._built: tuple[SqlLimits, DuckDBPyConnection] | None = None

    def open(self, limits: SqlLimits) -> DuckDBPyConnection:
        """Return the connection. Raises duckdb.Error if the run's rows cannot be read."""
        if self._built is not None and self._built[0] == limits and not execution.is_stuck(self._built[1]):
            return self._built[1]
        self.close()
        connection = execution.connect({**_SETTINGS, "memory_limit": f"{limits.memory_mb}MB"})
        for name in (*TABLES, "workers", *OPENED):
            connection.from_arrow(self._rows(name)).create_view(name)
        connection.execute(macros_sql())
        for statement in _LOCK:
            connection.execute(statement)
        self._built = limits, connection
        return connection

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._built is not None:
            execution.close(self._built[1])
            self._built = None

    def _rows(self, name: str) -> "pa.Table | Dataset":
        # The import is slow if pandas is installed, and an analysis runs no SQL of a user.
        from pyarrow.dataset import dataset
        from pyarrow.fs import LocalFileSystem

        paths = self._stored.get(name)
        if not paths:
            return self._source.table(name).to_arrow_table()
        files = [str(path) for path in paths]
        return dataset(files, schema=read_schema(name), format="parquet", filesystem=LocalFileSystem())
