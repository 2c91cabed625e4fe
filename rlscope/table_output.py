"""Writes a frame as text, CSV, JSON or Parquet, to a file or to stdout."""

import sys
from enum import StrEnum
from pathlib import Path

import polars as pl

from rlscope.errors import RlscopeError


class TableFormat(StrEnum):
    """How a table is written."""

    TEXT = "text"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


def write_table(frame: pl.DataFrame, table_format: TableFormat, output: Path | None) -> None:
    """Write the whole frame; stdout when output is None. Raises RlscopeError for a file that cannot be written."""
    content = _encoded(frame, table_format)
    if output is None:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    try:
        output.write_bytes(content)
    except OSError as error:
        raise RlscopeError.of(
            output,
            found=error.strerror or str(error),
            expected="a file that can be written",
            next_step="Name another with -o.",
        ) from error


def _encoded(frame: pl.DataFrame, table_format: TableFormat) -> bytes:
    match table_format:
        case TableFormat.TEXT:
            return _text(frame).encode()
        case TableFormat.CSV:
            return _flat(frame).write_csv().encode()
        case TableFormat.JSON:
            return (frame.write_json() + "\n").encode()
        case TableFormat.PARQUET:
            from io import BytesIO

            buffer = BytesIO()
            frame.write_parquet(buffer)
            return buffer.getvalue()


def _text(frame: pl.DataFrame) -> str:
    """Every row and every column in full: a table that is cut short answers another question."""
    with pl.Config(
        tbl_rows=-1,
        tbl_cols=-1,
        tbl_width_chars=10_000,
        fmt_str_lengths=1_000,
        tbl_hide_dataframe_shape=True,
        tbl_hide_column_data_types=True,
        tbl_formatting="ASCII_MARKDOWN",
    ):
        return f"{frame}\n"


def _flat(frame: pl.DataFrame) -> pl.DataFrame:
    """CSV holds no nested values: they are written as JSON text."""
    nested = [name for name, kind in frame.schema.items() if kind.is_nested()]
    columns = [pl.Series(name, [_json(value) for value in frame[name]], dtype=pl.String) for name in nested]
    return frame.with_columns(columns)


def _json(value: object) -> str | None:
    import json

    return None if value is None else json.dumps(value.to_list() if isinstance(value, pl.Series) else value)
