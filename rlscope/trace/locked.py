"""The connection that a user's SQL runs on: it holds the tables of the run and can open no file at all.

The rows are handed over as Arrow, and pyarrow reads them from the files that were checked. DuckDB's own file system is
switched off on this connection, and with it everything that names a path: functions that read, list or describe files,
files as tables, writing, extensions and spilling. Nothing here is a list of names that are forbidden.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import duckdb
import pyarrow as pa
from duckdb import DuckDBPyConnection
from rlscope_otel.schema import arrow_schema

from rlscope.trace import execution
from rlscope.trace.clocks import RECORDED
from rlscope.trace.execution import SqlLimits

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset

_SETTINGS: Final = {
    "temp_directory": "",
    "secret_directory": "none",
    "allow_persistent_secrets": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
}
_LOCK: Final = (
    "SET enable_progress_bar = false",
    "SET disabled_filesystems = 'LocalFileSystem'",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)
_VIEWS: Final = f"SELECT view_name FROM duckdb_views() WHERE NOT internal AND NOT starts_with(view_name, '{RECORDED}')"


class LockedConnection:
    """Built from the run's own connection when it is first asked for, and again for other limits."""

    def __init__(
        self,
        source: DuckDBPyConnection,
        stored: Mapping[str, Sequence[Path]],
        kept_tables: Sequence[str],
        macros: Callable[[], str],
    ) -> None:
        """source: what the tables are read from that are not `stored` as they are, in files of the contract's types.

        kept_tables: tables of source that are handed over beside its views. macros: the SQL that makes them.
        """
        self._source = source
        self._stored = stored
        self._kept_tables = kept_tables
        self._macros = macros
        self._built: tuple[SqlLimits, DuckDBPyConnection] | None = None

    def open(self, limits: SqlLimits) -> DuckDBPyConnection:
        """The connection. Raises duckdb.Error where the run's rows cannot be read."""
        if self._built is not None and self._built[0] == limits and not execution.is_stuck(self._built[1]):
            return self._built[1]
        self.close()
        connection = duckdb.connect(config={**_SETTINGS, "memory_limit": f"{limits.memory_mb}MB"})
        for name in self._names():
            connection.from_arrow(self._rows(name)).create_view(name)
        connection.execute(self._macros())
        for statement in _LOCK:
            connection.execute(statement)
        self._built = limits, connection
        return connection

    def close(self) -> None:
        """Close what was built."""
        if self._built is not None:
            execution.close(self._built[1])
            self._built = None

    def has_lost_files(self) -> bool:
        """Return whether a file of the tables was removed since the run was opened."""
        return not all(path.exists() for paths in self._stored.values() for path in paths)

    def _names(self) -> list[str]:
        views = [str(row[0]) for row in self._source.execute(_VIEWS).fetchall()]
        return [*views, *self._kept_tables]

    def _rows(self, name: str) -> "pa.Table | Dataset":
        # Slow to import where there is pandas; an analysis asks no SQL of a user.
        from pyarrow.dataset import dataset
        from pyarrow.fs import LocalFileSystem

        paths = self._stored.get(name)
        if not paths:
            return self._source.table(name).to_arrow_table()
        fields = [pa.field(field.name, field.type) for field in arrow_schema(name)]
        files = [str(path) for path in paths]
        return dataset(files, schema=pa.schema(fields), format="parquet", filesystem=LocalFileSystem())
