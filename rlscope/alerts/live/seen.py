"""The rows of one worker and table that a watch has found."""

from collections.abc import Sequence

from rlscope.trace.ranges import Range, holes_in, joined


class SeenRows:
    """Rows that were found: ranges of their numbers, or only a count where a writer does not number its rows."""

    def __init__(self) -> None:
        self._ranges: list[Range] = []
        self.count = 0

    def unseen(self, first: int, end: int) -> Sequence[Range]:
        """Return what was not found of a range, in order."""
        if not self._ranges or first >= self._ranges[-1][1]:
            return [(first, end)]
        missing = ((max(first, start), min(end, stop)) for start, stop in holes_in(self._ranges, end))
        return [(start, stop) for start, stop in missing if start < stop]

    def add(self, first: int, end: int) -> None:
        """Note a range. Nothing of it was found before."""
        self.count += end - first
        if self._ranges and self._ranges[-1][1] == first:
            self._ranges[-1] = self._ranges[-1][0], end
            return
        self._ranges = joined(sorted([*self._ranges, (first, end)]))
