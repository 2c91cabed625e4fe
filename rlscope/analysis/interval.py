"""A stretch of a run in time."""

from typing import NamedTuple


class Interval(NamedTuple):
    """A stretch of the run, UTC epoch, its end not included."""

    start_ns: int
    end_ns: int
