"""Which files a worker's part of a run is copied in: the merged ones as they are, and the small ones since as one.

The files in the store never overlap each other in part: each lies inside another one or apart from it. So a reader, who
leaves out a file whose numbers lie inside those of another, meets each row once, at every moment of a copy. No I/O.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from rlscope_otel.schema import FileNumbers


def outermost(files: Iterable[FileNumbers]) -> list[FileNumbers]:
    """The files of one worker that lie inside no other, in order."""
    kept: list[FileNumbers] = []
    for file in sorted(files, key=lambda each: (each.first, -each.last)):
        if not kept or file.last > kept[-1].last:
            kept.append(file)
    return kept


def grouped(
    files: Mapping[FileNumbers, int], stored: Iterable[FileNumbers], max_bytes: int
) -> list[tuple[FileNumbers, ...]]:
    """The files of one worker and table in groups, each to become one file of the store.

    files: their sizes, in bytes; none overlaps another. stored: the files that the store has. Files next to each other
    that were flushed and not merged yet make a group, as long as they have no more than max_bytes together.
    """
    order = sorted(files)
    if not order:
        return []
    cuts = _cuts_of_sizes(order, files, max_bytes)
    cuts = _laminar(order, cuts, sorted(stored))
    ends = sorted({0, *cuts, len(order)})
    return [tuple(order[start:end]) for start, end in pairwise(ends)]


def whole(group: Sequence[FileNumbers]) -> FileNumbers:
    """The numbers of a group as one file."""
    return FileNumbers(group[0].worker_id, group[0].first, group[-1].last)


def _cuts_of_sizes(order: Sequence[FileNumbers], files: Mapping[FileNumbers, int], max_bytes: int) -> set[int]:
    """The places between files where one group ends and the next begins."""
    cuts: set[int] = set()
    size_bytes = files[order[0]]
    for place, (before, file) in enumerate(pairwise(order), start=1):
        size_bytes += files[file]
        is_flushed = before.first == before.last and file.first == file.last
        if not is_flushed or file.first != before.last + 1 or size_bytes > max_bytes:
            cuts.add(place)
            size_bytes = files[file]
    return cuts


def _laminar(order: Sequence[FileNumbers], cuts: set[int], stored: Sequence[FileNumbers]) -> set[int]:
    """The cuts changed so that every stored file is inside one group, or consists of whole ones.

    A stored file that a cut divides has its own ends cut too; where one of them lies inside a file that was merged
    since, the cuts within it are taken away instead.
    """
    changed = True
    joined: set[int] = set()
    while changed:
        changed = False
        for file in stored:
            inside = {
                place for place in cuts if order[place - 1].last >= file.first and order[place].first <= file.last
            }
            if not inside:
                continue
            ends = _ends(order, file)
            wanted = None if ends is None or ends & joined else cuts | ends
            if wanted is None:
                joined |= inside
                wanted = cuts - inside
            changed = changed or wanted != cuts
            cuts = wanted
    return cuts


def _ends(order: Sequence[FileNumbers], file: FileNumbers) -> set[int] | None:
    """The places at which a stored file begins and ends; None where one is within a file of today."""
    for each in order:
        if each.first < file.first <= each.last or each.first <= file.last < each.last:
            return None
    start = sum(each.last < file.first for each in order)
    end = sum(each.last <= file.last for each in order)
    return {place for place in (start, end) if 0 < place < len(order)}
