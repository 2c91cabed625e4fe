"""The rows of one worker and table that a watch has found."""

from collections.abc import Sequence
from itertools import pairwise

Rows = tuple[int, int]
"""Numbers of the first row of a range and of the row after its last."""


class SeenRows:
    """Rows that were found: ranges of their numbers, or only a count where a writer does not number its rows."""

    def __init__(self) -> None:
        self._ranges: list[Rows] = []
        self.count = 0

    def unseen(self, first: int, end: int) -> Sequence[Rows]:
        """Return what was not found of a range, in order."""
        if not self._ranges or first >= self._ranges[-1][1]:
            return [(first, end)]
        found: list[Rows] = []
        for begin, stop in self._ranges:
            if first < min(begin, end):
                found.append((first, min(begin, end)))
            first = max(first, stop)
        return [*found, (first, end)] if first < end else found

    def add(self, first: int, end: int) -> None:
        """Note a range. Nothing of it was found before."""
        self.count += end - first
        if self._ranges and self._ranges[-1][1] == first:
            self._ranges[-1] = self._ranges[-1][0], end
            return
        merged: list[Rows] = []
        for begin, stop in sorted([*self._ranges, (first, end)]):
            if merged and merged[-1][1] == begin:
                merged[-1] = merged[-1][0], stop
            else:
                merged.append((begin, stop))
        self._ranges = merged

    @property
    def holes(self) -> Sequence[Rows]:
        """Ranges of numbers that were not found, though later ones were."""
        if len(self._ranges) == 1 and not self._ranges[0][0]:
            return ()
        return [(stop, begin) for (_, stop), (begin, _) in pairwise([(0, 0), *self._ranges]) if stop < begin]
