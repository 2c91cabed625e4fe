"""Ranges of whole numbers: numbers of rows, or times in ns. Each is its first number and the one after its last."""

from collections.abc import Iterable, Iterator

Range = tuple[int, int]


def joined(ranges: Iterable[Range]) -> list[Range]:
    """Return ranges in order, with those that touch or overlap as one. ranges: by their start."""
    found: list[Range] = []
    for first, end in ranges:
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((first, end))
    return found


def holes_in(ranges: Iterable[Range], end: int = 0) -> Iterator[Range]:
    """Yield what no range holds, from 0 up to the last of them or to `end`. ranges: by their start."""
    reached = 0
    for first, after in (*ranges, (end, end)):
        if first > reached:
            yield reached, first
        reached = max(reached, after)
