"""Frames prepared for charts: seconds since the run started instead of epochs, few enough rows, few enough digits.

A frame that is too long is aggregated, never truncated or sampled: rows are merged over equal stretches of time or
steps by their mean, or by their maximum for columns of maxima, whose peaks a mean would hide.
"""

from typing import Final

import polars as pl

MARKS_MAX: Final = 3_000
_KEYS: Final = ("worker_id", "queue")
_MOMENTS: Final = ("bucket_start_ns", "bucket_end_ns", "start_ns", "end_ns")


def drawable(frame: pl.DataFrame, started_ns: int, marks_max: int = MARKS_MAX) -> pl.DataFrame:
    """The frame with its `*_ns` columns as seconds since the start, aggregated to at most about `marks_max` rows."""
    along = next((name for name in ("bucket_start_ns", "step") if name in frame.columns), None)
    if along is not None and not frame.is_empty():
        width = _spacing(frame[along])
        if frame.height > marks_max:
            fold = -(-frame.height // marks_max)
            width *= fold
            frame = _coarsened(frame, along, width, fold)
        if along == "bucket_start_ns":
            frame = frame.with_columns(bucket_end_ns=pl.col(along) + width)
    return _in_seconds(frame, started_ns)


def rounded(frame: pl.DataFrame, digits: int = 5) -> pl.DataFrame:
    """Floats rounded to significant digits; NaN and infinity become null."""
    floats = pl.selectors.float()
    return frame.with_columns(pl.when(floats.is_finite()).then(floats.round_sig_figs(digits)))


def _spacing(column: pl.Series) -> int:
    """The smallest distance between values; 1 if there are fewer than two."""
    steps = column.unique().sort().diff().drop_nulls()
    return 1 if steps.is_empty() else int(steps.min())  # pyright: ignore[reportArgumentType]


def stepped(frame: pl.DataFrame, key: str | None = None) -> pl.DataFrame:
    """The frame for a step line that ends at the end of the last bucket before each gap."""
    order = ["bucket_start_s"] if key is None else [key, "bucket_start_s"]
    frame = frame.sort(order)
    following = pl.col("bucket_start_s").shift(-1)
    following = following if key is None else following.over(key)
    last = following.is_null() | (following > pl.col("bucket_end_s"))
    closing = frame.filter(last).with_columns(bucket_start_s=pl.col("bucket_end_s"))
    values = pl.selectors.numeric() - pl.selectors.by_name("bucket_start_s", "bucket_end_s")
    breaking = closing.with_columns(pl.when(False).then(values))
    return pl.concat([frame, closing, breaking]).sort(order, maintain_order=True)


def _in_seconds(frame: pl.DataFrame, started_ns: int) -> pl.DataFrame:
    """Timestamps become seconds since the run started; other nanoseconds are durations."""
    times = [name for name in frame.columns if name.endswith("_ns")]
    return frame.with_columns(
        ((pl.col(name) - (started_ns if name in _MOMENTS else 0)) / 1e9).alias(name.removesuffix("_ns") + "_s")
        for name in times
    ).drop(times)


def _coarsened(frame: pl.DataFrame, along: str, width: int, fold: int) -> pl.DataFrame:
    keys = [name for name in _KEYS if name in frame.columns]
    first = pl.col(along).min()
    stretch = (pl.col(along) - first) // width * width + first
    rest = [name for name in frame.columns if name not in (*keys, along)]
    return (
        frame.group_by(*keys, stretch.alias(along), maintain_order=True)
        .agg(_together(name, frame.schema[name], fold) for name in rest)
        .select(frame.columns)
        .sort(along, *keys)
    )


def _together(name: str, kind: pl.DataType, fold: int) -> pl.Expr:
    """Maximum for maxima and text, mean for everything else.

    A missing bucket counts as zero for a rate, and not at all for a mean.
    """
    column = pl.col(name)
    if name.endswith("_per_s"):
        return column.sum() / fold
    return column.max() if "max" in name.split("_") or kind == pl.String else column.mean()
