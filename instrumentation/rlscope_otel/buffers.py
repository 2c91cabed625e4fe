"""Rows waiting to be written: one bounded list of tuples per table.

Adding a row is one length check and one `list.append`, which is atomic, so no thread waits for another. The writer
reads a prefix and deletes it only once it is on disk; it never swaps the list, so no append can miss it.
A full buffer refuses the newest row and counts it.
"""

import threading
from collections.abc import Callable
from typing import Final

MOST_ROWS: Final = 200_000
"""Maximum rows in memory per table."""
ROWS_PER_BATCH: Final = 50_000
"""A buffer of so many rows is written at once."""
Row = tuple[object, ...]
"""The columns of a table in schema order, without `worker_id`, which is added when the rows are written."""


class RowBuffer:
    """The rows of one table that are not on disk yet."""

    __slots__ = ("_closed", "_drop_lock", "_limit", "_pressed_at", "_rows", "_wake", "dropped")

    def __init__(self, limit: int, pressed_at: int, wake: Callable[[], None]) -> None:
        self.dropped = 0
        self._rows: list[Row] = []
        self._limit = limit
        self._pressed_at = min(limit, pressed_at)
        self._wake = wake
        self._closed = False
        # Re-entrant: a signal handler may drop a row while its own thread is dropping one.
        self._drop_lock = threading.RLock()

    def add(self, row: Row) -> None:
        """Keep a row, or count it when the buffer is full; does nothing once closed."""
        if len(self._rows) < self._pressed_at or self._admit():
            self._rows.append(row)

    def drop(self, count: int = 1) -> None:
        """Count rows that will never be written."""
        with self._drop_lock:
            self.dropped += count

    def oldest(self, count: int) -> list[Row]:
        """Up to `count` rows from the front, left where they are."""
        return self._rows[:count]

    def discard(self, count: int) -> None:
        """Forget rows from the front: they are on disk, or lost."""
        del self._rows[:count]

    def close(self) -> None:
        """Take no more rows; what is held can still be written."""
        self._closed = True
        self._pressed_at = -1

    def abandon(self) -> None:
        """Close and forget everything: the rows belong to the process that this one was forked from."""
        self.close()
        self._drop_lock = threading.RLock()
        self._rows = []
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._rows)

    def _admit(self) -> bool:
        """Decide on a row that came when the buffer was closed, full, or long enough to be written now."""
        if self._closed:
            return False
        self._wake()
        if len(self._rows) < self._limit:
            return True
        self.drop()
        return False
