# Polars names numpy in its signatures, and numpy is not installed: hence the unknown member types.
# pyright: reportUnknownMemberType=false
"""Frames made ready to draw: seconds since the run's start instead of epochs, few enough rows, few enough digits.

A frame that is too long is coarsened, never cut or sampled: rows are put together in equal stretches of time or steps,
by their mean, and by their maximum where the column is a maximum.
"""

from typing import Final

import polars as pl

MARKS_MAX: Final = 3_000
_KEYS: Final = ("role", "state", "reason", "worker_id", "queue")


def drawable(frame: pl.DataFrame, started_ns: int, marks_max: int = MARKS_MAX) -> pl.DataFrame:
    """The frame with its `*_ns` columns as seconds since the start, coarsened to at most about `marks_max` rows."""
    frame = _in_seconds(frame, started_ns)
    along = next((name for name in ("bucket_start_s", "step", "version") if name in frame.columns), None)
    if along is None or frame.is_empty():
        return frame
    width = bucket_width(frame, along)
    if frame.height > marks_max:
        width *= -(-frame.height // marks_max)
        frame = _coarsened(frame, along, width)
    if along == "bucket_start_s":
        frame = frame.with_columns(bucket_end_s=pl.col(along) + width)
    return frame


def bucket_width(frame: pl.DataFrame, along: str) -> float:
    """The distance between neighbouring values of a column; 1 where it has fewer than two."""
    steps = frame.select(pl.col(along).cast(pl.Float64).unique().sort().diff().min()).item()
    return 1.0 if steps is None else float(steps)


def rounded(frame: pl.DataFrame, digits: int = 5) -> pl.DataFrame:
    """Floats to so many significant digits: a picture needs no more, and the page gets smaller."""
    return frame.with_columns(pl.selectors.float().round_sig_figs(digits))


def _in_seconds(frame: pl.DataFrame, started_ns: int) -> pl.DataFrame:
    times = [name for name in frame.columns if name.endswith("_ns")]
    return frame.with_columns(
        ((pl.col(name) - started_ns) / 1e9).alias(name.removesuffix("_ns") + "_s") for name in times
    ).drop(times)


def _coarsened(frame: pl.DataFrame, along: str, width: float) -> pl.DataFrame:
    keys = [name for name in _KEYS if name in frame.columns]
    stretch = (pl.col(along) / width).floor() * width
    rest = [name for name in frame.columns if name not in (*keys, along)]
    return (
        frame.group_by(*keys, stretch.alias(along), maintain_order=True)
        .agg(_together(name) for name in rest)
        .select(frame.columns)
        .sort(along, *keys)
    )


def _together(name: str) -> pl.Expr:
    """GPU-seconds add up; a maximum stays one; everything else is a mean."""
    column = pl.col(name)
    if name == "gpu_s":
        return column.sum()
    return column.max() if "max" in name.split("_") else column.mean()
