"""Runs DuckDB work so that Ctrl-C, SIGTERM and limits can end it.

A signal handler runs only when the main thread is back in Python, and DuckDB may not return for minutes. The work
therefore runs on its own thread while the caller waits in Python.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import duckdb
from duckdb import DuckDBPyConnection

from rlscope.errors import QueryError

_T = TypeVar("_T")

_CLOSED_OFF: Final = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
}
_LOOKS_EVERY_S: Final = 0.05
_PATIENCE_S: Final = 0.5
"""Time for DuckDB to notice an interruption; it notices none during a single function call."""
_OVERHEAD_BYTES: Final = 400 * 10**6
"""Growth of the process that is allowed beyond the memory that DuckDB counts."""
_stuck: Final[set[int]] = set()
"""Ids of connections that did not respond to an interruption. Their thread keeps them referenced."""


@dataclass(frozen=True, slots=True)
class SqlLimits:
    """Limits on the running time and memory of a user's SELECT."""

    time_s: float = 60.0
    memory_mb: int = 1000
    """Maximum size of the intermediate results, and again of the answer, in 10^6 bytes."""

    @property
    def memory_bytes(self) -> int:
        """Memory limit in bytes."""
        return self.memory_mb * 10**6


def connect(settings: Mapping[str, str]) -> DuckDBPyConnection:
    """Return a connection that loads no extensions, sees no variables of Python, and shows no progress."""
    connection = duckdb.connect(config={**_CLOSED_OFF, **settings})
    connection.execute("SET enable_progress_bar = false")
    return connection


def _started(work: Callable[[], _T]) -> "Future[_T]":
    """Start work on a thread of its own. An executor would wait at exit for a thread that is stuck."""
    job: Future[_T] = Future()

    def run() -> None:
        try:
            job.set_result(work())
        except BaseException as error:  # The waiting thread raises it, whatever it is.
            job.set_exception(error)

    threading.Thread(target=run, name="rlscope-sql", daemon=True).start()
    return job


def interruptible(connection: DuckDBPyConnection, work: Callable[[], _T]) -> _T:
    """Return the result of work on a connection; an exception from a signal handler interrupts the connection."""
    if threading.current_thread() is not threading.main_thread():
        return work()
    job = _started(work)
    try:
        wait((job,))
    except BaseException:
        _interrupt(connection, job)
        raise
    return job.result()


def limited(connection: DuckDBPyConnection, work: Callable[[], _T], limits: SqlLimits) -> _T:
    """Return the result of work on a connection. Raises QueryError if the work exceeds a limit."""
    job, started_s, started_bytes = _started(work), time.monotonic(), _resident_bytes()
    try:
        while not wait((job,), _LOOKS_EVERY_S).done:
            if time.monotonic() - started_s > limits.time_s:
                raise _too_long(limits)
            # DuckDB's own limit does not see what one function builds.
            if _resident_bytes() - started_bytes > 2 * limits.memory_bytes + _OVERHEAD_BYTES:
                raise too_large(limits)
    except BaseException:
        _interrupt(connection, job)
        raise
    return job.result()


def close(connection: DuckDBPyConnection) -> None:
    """Close a connection; a stuck one is left open until the process ends."""
    if not is_stuck(connection):
        connection.close()


def is_stuck(connection: DuckDBPyConnection) -> bool:
    """Return whether work on this connection did not end when it was interrupted."""
    return id(connection) in _stuck


def is_anything_stuck() -> bool:
    """Return whether any interrupted work is still running; the process must then exit without waiting for it."""
    return bool(_stuck)


def _interrupt(connection: DuckDBPyConnection, job: "Future[_T]") -> None:
    connection.interrupt()
    if not wait((job,), _PATIENCE_S).done:
        _stuck.add(id(connection))


def _resident_bytes() -> int:
    """Return the resident memory of this process in bytes; 0 if the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _too_long(limits: SqlLimits) -> QueryError:
    return QueryError.of(
        "SQL error",
        found=f"a SELECT that ran for {limits.time_s:g} s without an answer",
        expected="an answer within the time limit",
        next_step="Read fewer rows, or raise the limit: `rlscope query --timeout`, or time_s= of `Run.sql`.",
    )


def too_large(limits: SqlLimits) -> QueryError:
    """Return the error for a SELECT that exceeds its memory limit."""
    return QueryError.of(
        "SQL error",
        found=f"a SELECT that needs more than {limits.memory_mb:,} MB of memory",
        expected="an answer within the memory limit",
        next_step="Add a WHERE or GROUP BY, or raise the limit: `rlscope query --max-memory-mb`, or memory_mb= of "
        "`Run.sql`.",
    )
