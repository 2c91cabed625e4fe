"""Compacted files: which flushed files of which workers each one stands for, and which files it makes superfluous.

A compacted file is named `compacted.CRC32.parquet`, by the checksum of its own bytes, and lists its segments in its
footer. A segment is the rows of consecutive files of one worker, so that the counts and checksums in the worker files
hold as before.
"""

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol, cast

from rlscope_otel.schema import FileNumbers, joined_checksum

SEGMENTS_KEY: Final = "rlscope.segments"
"""Metadata of a compacted file: its segments in the order of their rows, as a JSON list of lists."""
_NAME: Final = re.compile(r"compacted\.([0-9a-f]{8})\.parquet")
_MOST_FLUSHED: Final = 10**7
"""Files in one segment: seven months of flushes every 2 s."""
_READ_BYTES: Final = 1 << 22


class Segment(NamedTuple):
    """Rows in one stretch of a compacted file, of consecutive files of one worker."""

    run_id: str
    """Of the recorder's stamp; empty where the files had none."""
    numbers: FileNumbers
    """The worker, and the numbers of the first and the last of those files."""
    files: int
    """How many they were."""
    checksum: int
    """`schema.chained_checksum` over them, from 0 on."""
    rows: int
    first_ns: int | None
    """The earliest and the latest time in the rows, where the footers had them."""
    last_ns: int | None

    def is_followed_by(self, other: "Segment") -> bool:
        """Whether the other one is of the same worker and begins where this one ends."""
        mine, its = self.numbers, other.numbers
        return (self.run_id, mine.worker_id, mine.last + 1) == (other.run_id, its.worker_id, its.first)

    def joined(self, other: "Segment") -> "Segment":
        """Both as one; the other one has to follow."""
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
        """The first and the last time, by name."""
        return {"first_ns": self.first_ns, "last_ns": self.last_ns}

    @property
    def owner(self) -> tuple[str, str]:
        """What its files belong to besides the table."""
        return self.run_id, self.numbers.worker_id


def encoded(segments: Iterable[Segment]) -> str:
    """The segments as the footer holds them."""
    return json.dumps([[each.run_id, *each.numbers, *each[2:]] for each in segments], separators=(",", ":"))


def decoded(metadata: Mapping[bytes, bytes], rows: int) -> tuple[Segment, ...]:
    """The segments that a footer lists; empty for a file that was not compacted.

    rows: of the file. Raises ValueError for a list that cannot be.
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
    # What follows from the number of files takes memory for each of them.
    if not 0 < files <= min(last - first + 1, _MOST_FLUSHED):
        raise ValueError("its segment list has more files than file numbers")
    return Segment(values[0], FileNumbers(values[1], first, last), files, checksum, rows, *times)


def compacted_name(crc32: int) -> str:
    """The name of a compacted file with that checksum."""
    return f"compacted.{crc32:08x}.parquet"


def is_compacted_name(name: str) -> bool:
    """Whether a file is named as a compacted one."""
    return _NAME.fullmatch(name) is not None


def is_as_named(path: Path) -> bool:
    """Whether a compacted file's content agrees with the checksum in its name. Reads it whole; raises OSError."""
    found = _NAME.fullmatch(path.name)
    return found is not None and file_crc32(path) == int(found[1], 16)


def file_crc32(path: Path) -> int:
    """The CRC-32 of a file, read piece by piece."""
    crc32 = 0
    with path.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            crc32 = zlib.crc32(piece, crc32)
    return crc32


class Stands(Protocol):
    """A stored file, or a segment of one, for `superfluous`."""

    @property
    def path(self) -> Path:
        """Where it is."""
        ...

    @property
    def segment(self) -> Segment | None:
        """The segment; None for a file that was not compacted."""
        ...

    @property
    def claim(self) -> tuple[tuple[str, str], FileNumbers] | None:
        """The run and worker, and the numbers that it stands for; None where nothing says them."""
        ...


def superfluous(stored: Sequence[Stands]) -> set[Path]:
    """The files of a table whose rows are all in a compacted file too.

    A compaction that was cut off may leave such files: it removes them only when the compacted file has its name.
    """
    compacted: dict[Path, list[Segment]] = {}
    for file in stored:
        if file.segment is not None:
            compacted.setdefault(file.path, []).append(file.segment)
    kept: dict[tuple[str, str], list[FileNumbers]] = {}
    result: set[Path] = set()
    # The larger ones first, so that of two with the same rows one stays.
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
