"""Runs what DuckDB computes so that Ctrl-C, SIGTERM and limits can end it.

A signal's handler waits until the main thread is back in Python, and DuckDB may not come back for minutes. So the work
is done on a thread of its own, while the caller waits where signals reach it.
"""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from duckdb import DuckDBPyConnection

from rlscope.errors import QueryError

_T = TypeVar("_T")

_LOOKS_EVERY_S: Final = 0.05
_PATIENCE_S: Final = 0.5
"""For DuckDB to notice an interruption; inside one call of a function it does not."""
_OVERHEAD_BYTES: Final = 400 * 10**6
"""What a process may grow by beside the memory that DuckDB counts."""
_stuck: Final[set[int]] = set()
"""Connections that did not come back, by id. They stay referenced by the thread that waits for them."""


@dataclass(frozen=True, slots=True)
class SqlLimits:
    """How long a user's SELECT may run, and how much memory it may take."""

    time_s: float = 60.0
    memory_mb: int = 1000
    """Of its intermediate results, and again of its answer, in 10^6 bytes."""

    @property
    def memory_bytes(self) -> int:
        """The same in bytes."""
        return self.memory_mb * 10**6


class _Job(Generic[_T]):
    """Work on a thread of its own, and what came of it."""

    def __init__(self, work: Callable[[], _T]) -> None:
        self.done = threading.Event()
        self._work = work
        self._results: list[_T] = []
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name="rlscope-sql", daemon=True).start()

    def _run(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as error:  # Whatever it is, the thread that waits raises it.
            self._error = error
        finally:
            self.done.set()

    def result(self) -> _T:
        """What the work returned, or raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._results[0]


def interruptible(connection: DuckDBPyConnection, work: Callable[[], _T]) -> _T:
    """The result of work on a connection; an exception that a signal raises meanwhile interrupts the connection."""
    if threading.current_thread() is not threading.main_thread():
        return work()
    job = _Job(work)
    try:
        job.done.wait()
    except BaseException:
        _interrupt(connection, job)
        raise
    return job.result()


def limited(connection: DuckDBPyConnection, work: Callable[[], _T], limits: SqlLimits) -> _T:
    """The result of work on a connection within limits. Raises QueryError once one of them is passed."""
    job, started_s, started_bytes = _Job(work), time.monotonic(), _resident_bytes()
    try:
        while not job.done.wait(_LOOKS_EVERY_S):
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
    """Close a connection; one that did not come back is left to the end of the process."""
    if not is_stuck(connection):
        connection.close()


def is_stuck(connection: DuckDBPyConnection) -> bool:
    """Whether work on this connection did not come back when it was interrupted."""
    return id(connection) in _stuck


def is_anything_stuck() -> bool:
    """Whether some work did not come back when it was interrupted: the process must end without waiting for it."""
    return bool(_stuck)


def _interrupt(connection: DuckDBPyConnection, job: "_Job[_T]") -> None:
    connection.interrupt()
    if not job.done.wait(_PATIENCE_S):
        _stuck.add(id(connection))


def _resident_bytes() -> int:
    """Memory of this process; 0 where the system does not say."""
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
    """The error of a SELECT that needs more memory than it may take."""
    return QueryError.of(
        "SQL error",
        found=f"a SELECT that needs more than {limits.memory_mb:,} MB of memory",
        expected="an answer within the memory limit",
        next_step="Add a WHERE or GROUP BY, or raise the limit: `rlscope query --max-memory-mb`, or memory_mb= of "
        "`Run.sql`.",
    )
