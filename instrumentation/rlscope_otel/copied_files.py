"""Grouping of a worker's files for the copy: merged files are copied as they are, the small files after them as one.

Two files in the store never overlap partially: one contains the other, or they are disjoint. A reader leaves out a file
that lies inside another one, so it reads each row once at any moment of a copy. No I/O.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from rlscope_otel.schema import FileNumbers


def outermost(files: Iterable[FileNumbers]) -> list[FileNumbers]:
    """Return the files of one worker that no other file contains, in order."""
    kept: list[FileNumbers] = []
    for file in sorted(files, key=lambda each: (each.first, -each.last)):
        if not kept or file.last > kept[-1].last:
            kept.append(file)
    return kept


def grouped(
    files: Mapping[FileNumbers, int], stored: Iterable[FileNumbers], max_bytes: int
) -> list[tuple[FileNumbers, ...]]:
    """Group the files of one worker and table. Each group becomes one file of the store.

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
    """Return the file numbers that cover a group."""
    return FileNumbers(group[0].worker_id, group[0].first, group[-1].last)


def _cuts_of_sizes(order: Sequence[FileNumbers], files: Mapping[FileNumbers, int], max_bytes: int) -> set[int]:
    """Return the cuts between groups."""
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
    """Return the cuts, changed so that every stored file is inside one group or consists of whole groups.

    If a cut divides a stored file, its ends become cuts too. If one of its ends lies inside a file that was merged
    since, the cuts within the stored file are removed instead.
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
    """Return the cuts at which a stored file starts and ends. None if one of them lies inside a current file."""
    for each in order:
        if each.first < file.first <= each.last or each.first <= file.last < each.last:
            return None
    start = sum(each.last < file.first for each in order)
    end = sum(each.last <= file.last for each in order)
    return {place for place in (start, end) if 0 < place < len(order)}
