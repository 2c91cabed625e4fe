"""Appends to the journals of one worker, one after the other for each table.

Nothing stays open between two appends, so that a fork copies no descriptor. An append that fails leaves the journal as
it was. If that fails too, or if somebody changed or removed the file, the rows go to the next journal, because a reader
takes nothing after the first batch that is not whole.
"""

import os
import time
import zlib
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from rlscope_otel import forks, journal, schema

_FULL_BYTES = 32 * 2**20
"""A journal of that size is closed."""
_AGED_S = 3600.0
_AGED_BYTES = 4 * 2**20
"""One of that age and size too, however slowly it grows."""


class Owner(NamedTuple):
    """The run and the worker that record."""

    run_id: str
    worker_id: str


class OpenJournal:
    """A journal that this process began."""

    def __init__(self, folder: Path, owner: Owner, number: int, first_row: int) -> None:
        """The file comes with its first batch. first_row: number of its first row among all rows of the table."""
        self.table, self.number, self.first_row = folder.name, number, first_row
        self.path = folder / f"{schema.FileNumber(owner.worker_id, number).stem}{journal.SUFFIX}"
        self.closed_path = self.path.with_suffix(".parquet")
        own = (owner.run_id, self.table, owner.worker_id, number)
        self.stamp: dict[str, str | int] = dict(zip(schema.STAMP_KEYS, own, strict=True))
        self.rows = self.bytes = 0
        self.is_spoilt = False
        """Whether something may follow the last batch that a reader would not take."""
        self._head = journal.head(self.table, self.stamp)
        self.head_bytes, self.head_crc32 = len(self._head), zlib.crc32(self._head)
        self._began_s = time.monotonic()

    @property
    def age_s(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._began_s

    @property
    def is_intact(self) -> bool:
        """Whether the file is as the last append left it."""
        try:
            return not self.is_spoilt and (not self.bytes or self.path.stat().st_size == self.bytes)
        except OSError:
            return False

    def append(self, batch: pa.RecordBatch) -> None:
        """Append a batch. Raises OSError; the batch is then not in the journal, which may be spoilt."""
        with forks.writing():
            message = journal.sealed(batch, self.first_row + self.rows, self.head_crc32)
            content = message if self.bytes else self._head + message
            if not self.bytes:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            self._write(content)
        self.bytes += len(content)
        self.rows += batch.num_rows

    def _write(self, content: bytes) -> None:
        flags = os.O_WRONLY | os.O_CLOEXEC | (0 if self.bytes else os.O_CREAT | os.O_EXCL)
        try:
            descriptor = os.open(self.path, flags, 0o644)
        except FileExistsError:  # Somebody else's, since it was not there before.
            self.is_spoilt = True
            raise
        try:
            try:
                written = 0
                while written < len(content):
                    written += os.pwrite(descriptor, content[written:], self.bytes + written)
            finally:
                os.close(descriptor)
        except OSError:
            self._restore()
            raise

    def _restore(self) -> None:
        try:
            if self.bytes:
                os.truncate(self.path, self.bytes)
            else:
                self.path.unlink()
        except OSError:
            self.is_spoilt = True


class Journals:
    """The journals of one worker and table."""

    def __init__(self, folder: Path) -> None:
        self.rows = 0
        """Number of rows in all of them."""
        self._folder = folder
        self._number = 0
        self._open: OpenJournal | None = None
        self._ended: list[OpenJournal] = []

    def append(self, batch: pa.RecordBatch, owner: Owner) -> None:
        """Append a batch to the open journal, or begin the next one. Raises OSError; the batch is then in none."""
        if self._open is not None and not self._open.is_intact:
            self.end()
        self._open = self._open or self._next(owner)
        self._open.append(batch)
        self.rows += batch.num_rows

    def end(self) -> None:
        """Append no more to the open journal."""
        if self._open is not None and self._open.rows:
            self._ended.append(self._open)
        self._open = None

    def ended(self) -> list[OpenJournal]:
        """Take the journals that are to be closed."""
        current = self._open
        if current is not None and (
            current.bytes >= _FULL_BYTES or (current.bytes >= _AGED_BYTES and current.age_s >= _AGED_S)
        ):
            self.end()
        ended, self._ended = self._ended, []
        return ended

    def _next(self, owner: Owner) -> OpenJournal:
        """A journal whose number no file has yet."""
        while True:
            self._number += 1
            found = OpenJournal(self._folder, owner, self._number, self.rows)
            if not (found.path.exists() or found.closed_path.exists()):
                return found
