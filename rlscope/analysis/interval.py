"""Time intervals of a run, and the share of a timeline's buckets inside them."""

from typing import NamedTuple

import polars as pl


class Interval(NamedTuple):
    """An interval of the run, UTC epoch, without its end."""

    start_ns: int
    end_ns: int

    def clip(self, timeline: pl.DataFrame, bucket_ns: int) -> pl.DataFrame:
        """Return the rows of a timeline (bucket_start_ns, gpu_s, ...) inside the interval, with `gpu_s` inside it.

        A bucket (of length bucket_ns) that crosses an edge counts by its share inside.
        """
        start_ns = pl.col("bucket_start_ns")
        overlap_ns = pl.min_horizontal(start_ns + bucket_ns, pl.lit(self.end_ns)) - pl.max_horizontal(
            start_ns, pl.lit(self.start_ns)
        )
        return timeline.filter(overlap_ns > 0).with_columns(pl.col("gpu_s") * overlap_ns / bucket_ns)
