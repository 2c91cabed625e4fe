"""Answers one question by name, reads ad-hoc SQL, and writes a table as text, CSV, JSON or Parquet."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import polars as pl

from rlscope.errors import QueryError
from rlscope.text_out import as_bytes, encoded_for, escaped_json, for_csv, one_line, write_file
from rlscope.trace.query import NO_ARGUMENTS, Argument, ask, standard_arguments
from rlscope.trace.questions import arguments_of
from rlscope.trace.store import OpenRun

TableFormat = Literal["text", "csv", "json", "parquet"]
"""Output format of a table."""
STDIN: Final = Path("-")
_AT_LEAST_1: Final = frozenset({"bucket_ns", "cell_ns", "cells_per_bucket", "cells", "bins"})
"""Arguments that questions divide by."""


def answer(run: OpenRun, name: str, arguments: Mapping[str, Argument] = NO_ARGUMENTS) -> pl.DataFrame:
    """Return the answer to the question `name`; the arguments override the default ones.

    Raises QueryError, UnreadableDataError.
    """
    _check_arguments(name, arguments)
    return ask(run, name, standard_arguments(run) | dict(arguments))


def own_sql(given: str | Path, arguments: Mapping[str, Argument] = NO_ARGUMENTS) -> str:
    """Return SQL as typed, or from a file (`-` for standard input). Raises QueryError, also for any arguments."""
    if arguments:
        raise QueryError.of(
            "--arg with SQL" if isinstance(given, str) else "--arg with -f",
            found="arguments " + ", ".join(arguments),
            expected="none: only the queries that `rlscope queries` lists take arguments",
            next_step="Write the values into the SQL.",
        )
    try:
        return _read(given)
    except (OSError, UnicodeError) as error:
        names = {STDIN: "standard input"}
        raise QueryError.of(
            "the SELECT of the command line" if isinstance(given, str) else names.get(given, given),
            found=f"text that cannot be read ({getattr(error, 'strerror', None) or error})",
            expected="a SELECT as UTF-8 text",
            next_step="Save it as UTF-8.",
        ) from error


def _read(given: str | Path) -> str:
    if isinstance(given, str):
        # Python decodes arguments by the locale. In an ASCII locale, other characters survive as surrogate escapes.
        return given.encode("utf-8", "surrogateescape").decode("utf-8")
    # The import is slow because it loads pydantic.
    from rlscope.input_file import LARGEST_BYTES, read_regular

    text = sys.stdin.buffer.read(LARGEST_BYTES + 1) if given == STDIN else read_regular(given)
    if len(text) > LARGEST_BYTES:
        raise OSError(None, f"more than {LARGEST_BYTES:,} bytes")
    return text.decode("utf-8")


def is_sql(text: str) -> bool:
    """Return whether a text is SQL instead of the name of a question, which has no blanks."""
    return len(text.split()) > 1


def parse_arguments(pairs: Sequence[str]) -> dict[str, Argument]:
    """Parse NAME=VALUE pairs; whole numbers, true and false are converted. Raises QueryError for any other form."""
    arguments: dict[str, Argument] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise QueryError.of(
                f"--arg {pair}",
                found="no NAME=VALUE",
                expected="--arg bucket_ns=1000000000",
                next_step="Use that form.",
            )
        arguments[name] = _typed(value)
    return arguments


def _check_arguments(question: str, arguments: Mapping[str, Argument]) -> None:
    names = arguments_of(question)
    for name, value in arguments.items():
        if name not in names:
            raise QueryError.of(
                f"query {question!r}",
                found=f"unknown argument {name}",
                expected="one of " + ", ".join(names) if names else "no argument",
                next_step="Its header in queries/, and those of the queries it uses, describe each argument.",
            )
        if name in _AT_LEAST_1 and isinstance(value, int) and value < 1:
            raise QueryError.of(
                f"query {question!r}",
                found=f"argument {name} = {value!r}",
                expected="a whole number, at least 1",
                next_step=f"Pass {name}=VALUE, or leave it out.",
            )


def _typed(value: str) -> Argument:
    if value in ("true", "false"):
        return value == "true"
    try:
        return int(value)
    except ValueError:
        return value


def write_table(frame: pl.DataFrame, table_format: TableFormat, output: Path | None) -> None:
    """Write the whole frame to a file, or to stdout if output is None. Raises OutputError."""
    content = encoded_table(frame, table_format)
    if output is not None:
        write_file(output, content)
        return
    # Text uses the encoding of the terminal; data always uses the encoding of its format.
    is_text = table_format == "text"
    sys.stdout.buffer.write(encoded_for(sys.stdout, content.decode("utf-8")) if is_text else content)
    sys.stdout.buffer.flush()


def encoded_table(frame: pl.DataFrame, table_format: TableFormat) -> bytes:
    """Return the whole frame in a format, with texts of the run made safe for it."""
    match table_format:
        case "text":
            return as_bytes(_text(_safe(frame, one_line)))
        case "csv":
            return as_bytes(_safe(_flat(frame), for_csv).write_csv())
        case "json":
            return as_bytes(escaped_json(frame.write_json()) + "\n")
        case "parquet":
            from io import BytesIO

            buffer = BytesIO()
            frame.write_parquet(buffer)
            return buffer.getvalue()


def _text(frame: pl.DataFrame) -> str:
    """Return all rows and columns as text; a truncated table would be misleading."""
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


def _safe(frame: pl.DataFrame, write: Callable[[str], str]) -> pl.DataFrame:
    """Return the frame with its texts and column names made safe for the format; each distinct text is written once."""
    columns: list[pl.Series] = []
    for column in frame:
        if column.dtype == pl.String:
            texts = [text for text in column.unique().to_list() if text is not None]
            changed = {text: safe for text in texts if (safe := write(text)) != text}
            column = column.replace(changed) if changed else column
        columns.append(column.alias(write(column.name)))
    return pl.DataFrame(columns) if columns else frame


def _flat(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with nested values as JSON text, because CSV cannot hold them."""
    nested = [name for name, kind in frame.schema.items() if kind.is_nested()]
    columns = [pl.Series(name, [_json(value) for value in frame[name]], dtype=pl.String) for name in nested]
    return frame.with_columns(columns)


def _json(value: object) -> str | None:
    return None if value is None else json.dumps(value.to_list() if isinstance(value, pl.Series) else value)
