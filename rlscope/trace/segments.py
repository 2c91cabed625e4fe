"""Compacted files: the flushed files that each one stands for, and the files that it makes superfluous.

A compacted file is named `compacted.CRC32.parquet` after the checksum of its bytes, and lists its segments in its
footer. A segment holds the rows of consecutive files of one worker, so the counts and checksums in the worker files
remain valid.
"""

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol, cast

from rlscope_otel.schema import FileNumbers, joined_checksum

SEGMENTS_KEY: Final = "rlscope.segments"
"""Metadata key of a compacted file's segments, in the order of their rows, as a JSON list of lists."""
_NAME: Final = re.compile(r"compacted\.([0-9a-f]{8})\.parquet")
_MOST_FLUSHED: Final = 10**7
"""Maximum number of files in one segment: seven months of flushes every 2 s."""
_READ_BYTES: Final = 1 << 22


class Segment(NamedTuple):
    """Consecutive rows of a compacted file that come from consecutive files of one worker."""

    run_id: str
    """Run id from the recorder's stamp; empty if the files had none."""
    numbers: FileNumbers
    """The worker, and the numbers of the first and last of those files."""
    files: int
    """Number of those files."""
    checksum: int
    """`schema.chained_checksum` over those files, starting from 0."""
    rows: int
    first_ns: int | None
    """Earliest time in the rows; None if the footers lack it."""
    last_ns: int | None
    """Latest time in the rows; None if the footers lack it."""

    def is_followed_by(self, other: "Segment") -> bool:
        """Return whether another segment is from the same worker and begins where this one ends."""
        mine, its = self.numbers, other.numbers
        return (self.run_id, mine.worker_id, mine.last + 1) == (other.run_id, its.worker_id, its.first)

    def joined(self, other: "Segment") -> "Segment":
        """Return this segment and the one that follows it as one segment."""
        times = [each for each in (self.first_ns, self.last_ns, other.first_ns, other.last_ns) if each is not None]
        timed = len(times) == 4
        return Segment(
            self.run_id,
            self.numbers._replace(last=other.numbers.last),
            self.files + other.files,
            joined_checksum(self.checksum, other.checksum, other.files),
            self.rows + other.rows,
            min(times) if timed else None,
            max(times) if timed else None,
        )

    @property
    def times(self) -> dict[str, int | None]:
        """First and last time, by field name."""
        return {"first_ns": self.first_ns, "last_ns": self.last_ns}

    @property
    def owner(self) -> tuple[str, str]:
        """Run id and worker id of its files."""
        return self.run_id, self.numbers.worker_id


def encoded(segments: Iterable[Segment]) -> str:
    """Return the segments in the form that the footer holds."""
    return json.dumps([[each.run_id, *each.numbers, *each[2:]] for each in segments], separators=(",", ":"))


def decoded(metadata: Mapping[bytes, bytes], rows: int) -> tuple[Segment, ...]:
    """Return the segments that a footer lists; empty if the file is not a compacted one.

    rows: number of rows in the file. Raises ValueError if the list is invalid.
    """
    text = metadata.get(SEGMENTS_KEY.encode())
    if text is None:
        return ()
    listed = json.loads(text)
    segments = tuple(_segment(each) for each in listed) if isinstance(listed, list) else ()
    if sum(each.rows for each in segments) != rows:
        raise ValueError(f"its segments list {sum(each.rows for each in segments):,} rows, but it holds {rows:,}")
    return segments


def _segment(listed: object) -> Segment:
    values = cast("list[object]", listed) if isinstance(listed, list) else []
    if len(values) != 9 or not isinstance(values[0], str) or not isinstance(values[1], str):
        raise ValueError("its segment list is malformed")
    numbers = [value for value in values[2:7] if isinstance(value, int) and not isinstance(value, bool)]
    times = [value if isinstance(value, int) and abs(value) < 1 << 63 else None for value in values[7:]]
    if len(numbers) != 5 or not 0 < numbers[0] <= numbers[1] < 1 << 62 or min(numbers) < 0 or numbers[3] >= 1 << 32:
        raise ValueError("its segment list has impossible numbers")
    first, last, files, checksum, rows = numbers
    # `joined_checksum` takes memory for each file, so the number must be bounded.
    if not 0 < files <= min(last - first + 1, _MOST_FLUSHED):
        raise ValueError("its segment list has more files than file numbers")
    return Segment(values[0], FileNumbers(values[1], first, last), files, checksum, rows, *times)


def compacted_name(crc32: int) -> str:
    """Return the name of a compacted file with that checksum."""
    return f"compacted.{crc32:08x}.parquet"


def is_compacted_name(name: str) -> bool:
    """Return whether a file is named like a compacted one."""
    return _NAME.fullmatch(name) is not None


def is_as_named(path: Path) -> bool:
    """Return whether a compacted file matches the checksum in its name. Reads the whole file; raises OSError."""
    found = _NAME.fullmatch(path.name)
    return found is not None and file_crc32(path) == int(found[1], 16)


def file_crc32(path: Path) -> int:
    """Return the CRC-32 of a file, which is read in pieces."""
    crc32 = 0
    with path.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            crc32 = zlib.crc32(piece, crc32)
    return crc32


class Stands(Protocol):
    """A stored file, or a segment of one, for `superfluous`."""

    @property
    def path(self) -> Path:
        """Path of the file."""
        ...

    @property
    def segment(self) -> Segment | None:
        """The segment; None if the file is not a compacted one."""
        ...

    @property
    def claim(self) -> tuple[tuple[str, str], FileNumbers] | None:
        """The run and worker, and the numbers that it stands for; None if unknown."""
        ...


def superfluous(stored: Sequence[Stands]) -> set[Path]:
    """Return the files of a table whose rows are also all in a compacted file.

    An interrupted compaction may leave such files: it removes them only after the compacted file has its final name.
    """
    compacted: dict[Path, list[Segment]] = {}
    for file in stored:
        if file.segment is not None:
            compacted.setdefault(file.path, []).append(file.segment)
    kept: dict[tuple[str, str], list[FileNumbers]] = {}
    result: set[Path] = set()
    # Larger files come first, so that exactly one of two files with the same rows stays.
    for path in sorted(compacted, key=lambda path: (-sum(each.files for each in compacted[path]), path)):
        segments = compacted[path]
        if all(_is_within(each.numbers, kept.get(each.owner, ())) for each in segments):
            result.add(path)
        else:
            for each in segments:
                kept.setdefault(each.owner, []).append(each.numbers)
    return result | set(_flushed_within(stored, kept))


def _flushed_within(stored: Sequence[Stands], kept: Mapping[tuple[str, str], Sequence[FileNumbers]]) -> Iterator[Path]:
    for file in stored:
        if file.segment is None and file.claim is not None:
            owner, numbers = file.claim
            if _is_within(numbers, kept.get(owner, ())):
                yield file.path


def _is_within(numbers: FileNumbers, others: Iterable[FileNumbers]) -> bool:
    return any(other.first <= numbers.first and numbers.last <= other.last for other in others)
