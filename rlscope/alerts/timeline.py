"""The parts of a run laid out as arrays, one place a bucket, from which series are made. Pure."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from rlscope.alerts.parts import Family, Parts, Ticks
from rlscope.alerts.readings import Whole


@dataclass(frozen=True, slots=True)
class Timeline:
    """Parts and the stretch of buckets [first_bucket, first_bucket + buckets) that arrays are made for."""

    parts: Parts
    first_bucket: int
    buckets: int
    step_ends_ns: tuple[int, ...] = field(default=())
    """Ends of the optimizer steps that are known, rising."""
    warm_up_end_ns: int | None = None
    """When warm-up is over; None where that is not known yet."""
    residual_ratio: float | None = None
    """What the model's prediction leaves unexplained; None where it was not asked."""

    @property
    def ticks(self) -> Ticks:
        """Where the ticks are."""
        return self.parts.ticks

    @property
    def start_ns(self) -> int:
        """When the first worker began, UTC epoch; the first tick's origin where there is none."""
        return min((worker.start_ns for worker in self.parts.workers), default=self.ticks.origin_ns)

    def rows(self, family: Family) -> pl.DataFrame:
        """The rows of a family that lie in the stretch, `place` counted from its first bucket; empty where missing."""
        frame = self.parts.frames.get(family)
        if frame is None or frame.is_empty():
            return pl.DataFrame()
        place = pl.col("bucket") - self.first_bucket
        return frame.with_columns(place.alias("place")).filter(pl.col("place").is_between(0, self.buckets - 1))

    def sums(self, rows: pl.DataFrame, column: str) -> Whole:
        """The sum of a column of whole numbers, by bucket."""
        sums = np.zeros(self.buckets, dtype=np.int64)
        if len(rows):
            np.add.at(sums, rows["place"].to_numpy(), rows[column].fill_null(0).to_numpy())
        return sums

    def counts(self, rows: pl.DataFrame) -> Whole:
        """How many rows there are, by bucket."""
        counts = np.zeros(self.buckets, dtype=np.int64)
        if len(rows):
            np.add.at(counts, rows["place"].to_numpy(), 1)
        return counts

    def exact_sums(self, rows: pl.DataFrame, column: str) -> list[float]:
        """The sum of a column of floats, by bucket, each rounded once."""
        values: list[list[float]] = [[] for _ in range(self.buckets)]
        if len(rows):
            for place, value in rows.select("place", column).iter_rows():
                values[place].append(value)
        return [math.fsum(some) for some in values]

    def greatest(self, rows: pl.DataFrame, column: str) -> NDArray[np.float64]:
        """The greatest value of a column, by bucket; minus infinity where there is none."""
        greatest = np.full(self.buckets, -np.inf)
        if len(rows):
            np.maximum.at(greatest, rows["place"].to_numpy(), rows[column].cast(pl.Float64).to_numpy())
        return greatest

    def by_level(self, rows: pl.DataFrame, level: str, weight: str) -> tuple[tuple[int, ...], Whole]:
        """The levels of a column, rising, and the sum of another by bucket and level."""
        if rows.is_empty():
            return (), np.zeros((self.buckets, 0), dtype=np.int64)
        levels = rows[level].unique().sort()
        weights = np.zeros((self.buckets, len(levels)), dtype=np.int64)
        columns = np.searchsorted(levels.to_numpy(), rows[level].to_numpy())
        np.add.at(weights, (rows["place"].to_numpy(), columns), rows[weight].to_numpy())
        return tuple(levels.to_list()), weights


def merged(old: pl.DataFrame | None, new: pl.DataFrame, replaced: Iterable[int], keep_from: int) -> pl.DataFrame:
    """Parts with the buckets of one range replaced by others, and those before keep_from let go."""
    buckets = list(replaced)
    fresh = new.filter(pl.col("bucket").is_in(buckets)) if len(new) else new
    if old is None or old.is_empty():
        return fresh
    kept = old.filter(~pl.col("bucket").is_in(buckets) & (pl.col("bucket") >= keep_from))
    # One piece: a piece a look would make every look dearer than the one before.
    return pl.concat([kept, fresh], how="vertical_relaxed", rechunk=True) if len(fresh) else kept
