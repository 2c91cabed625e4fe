"""Files of one worker in the folder of one table, and the files to merge next. No I/O.

A merged file waits with others of its level until the oldest has waited for that level's interval. Then all of them
become one file of the next level. Only files with consecutive numbers are merged, so that a range never has a hole.
"""

from collections.abc import Sequence
from typing import NamedTuple

from rlscope_otel.schema import chained_checksum, joined_checksum


class Levels(NamedTuple):
    """When files are merged. Level 0 is a flush; without intervals nothing is merged."""

    intervals_s: tuple[float, ...]
    """Waiting times of files of levels 0, 1, ... A file of the last level is never merged again."""
    max_bytes: int
    """Maximum total size of files that are merged."""


class StoredFile(NamedTuple):
    """A complete file: a flush, or several that were merged."""

    first: int
    """The number of the first flushed file in it."""
    last: int
    files: int
    """Number of flushed files in it."""
    rows: int
    bytes: int
    checksum: int
    """`chained_checksum` over the flushed files, from 0 on."""
    level: int
    since_s: float
    """When it came to this level, by the monotonic clock."""

    @classmethod
    def flushed(cls, sequence: int, rows: int, size_bytes: int, crc32: int, now_s: float) -> "StoredFile":
        """A file that was just flushed."""
        return cls(sequence, sequence, 1, rows, size_bytes, chained_checksum(0, sequence, crc32), 0, now_s)

    @classmethod
    def of(cls, parts: Sequence["StoredFile"], size_bytes: int, now_s: float) -> "StoredFile":
        """The file that others of one level were merged into."""
        checksum = 0
        for part in parts:
            checksum = joined_checksum(checksum, part.checksum, part.files)
        return cls(
            first=parts[0].first,
            last=parts[-1].last,
            files=sum(part.files for part in parts),
            rows=sum(part.rows for part in parts),
            bytes=size_bytes,
            checksum=checksum,
            level=parts[0].level + 1,
            since_s=now_s,
        )


class TableFiles:
    """The files of one table in the order of their numbers."""

    def __init__(self, levels: Levels) -> None:
        self.files: list[StoredFile] = []
        self._levels = levels

    def add(self, file: StoredFile) -> None:
        """A file was flushed."""
        if self._levels.intervals_s:
            self.files.append(file)

    def due(self, now_s: float, last: int) -> tuple[StoredFile, ...]:
        """The files to merge now, two or more, or none. last: the last number that may be merged."""
        for level, interval_s in enumerate(self._levels.intervals_s):
            while True:
                at = self._oldest(level, now_s - interval_s, last)
                if at is None:
                    break
                parts = self._together(at, last)
                if len(parts) > 1:
                    return parts
                # Nothing to merge it with: as it is, it is a file of the next level.
                self.files[at] = self.files[at]._replace(level=level + 1, since_s=now_s)
        return ()

    def replace(self, parts: Sequence[StoredFile], whole: StoredFile) -> None:
        """Parts were merged into one file."""
        at = self.files.index(parts[0])
        self.files[at : at + len(parts)] = [whole]

    def leave(self, parts: Sequence[StoredFile]) -> None:
        """Never merge these: one of them is not what was written."""
        final = len(self._levels.intervals_s)
        self.files = [file._replace(level=final) if file in parts else file for file in self.files]

    def forget(self) -> None:
        """The files are no longer there."""
        self.files.clear()

    def _oldest(self, level: int, until_s: float, last: int) -> int | None:
        for at, file in enumerate(self.files):
            if file.level == level and file.since_s <= until_s and file.last <= last:
                return at
        return None

    def _together(self, at: int, last: int) -> tuple[StoredFile, ...]:
        """The file at an index, and those after it of the same level that may be merged with it."""
        level, size_bytes, parts = self.files[at].level, 0, list[StoredFile]()
        for file in self.files[at:]:
            size_bytes += file.bytes
            if file.level != level or file.last > last or (parts and size_bytes > self._levels.max_bytes):
                break
            parts.append(file)
        return tuple(parts)
