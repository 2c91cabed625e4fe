"""Reads the footers of Parquet files: whether a file fits its table, and which columns need a closer look.

No rows are read here, and only regular files are opened.
"""

import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from rlscope_otel.schema import FIRST_ROW_KEY, STAMP_KEYS, TABLES, TIMES, Column, FileNumber, arrow_schema

_MAGIC: Final = b"PAR1"
UNREADABLE: Final = (OSError, ValueError, MemoryError, RecursionError, OverflowError, pa.ArrowException)
"""Exceptions on opening a damaged or vanished file."""
_SMALLEST_PARQUET_BYTES: Final = 12
_Names = TypeVar("_Names", tuple[str, ...], frozenset[str])
LATEST_NS: Final = 1 << 62
"""A time in the year 2116: no real clock is later, and a duration added to a later time may overflow 64 bits."""
_NUMBERED: Final = ("version", "staleness")
"""Numbers inside a list that may be negative and have no natural bound."""
LONGEST_TEXT_BYTES: Final = 65_536
"""Maximum length of a name, an id or a reason. A few longer ones would fill the memory."""


class Stamp(NamedTuple):
    """The recorder's own description of a file."""

    run_id: str
    table: str
    worker_id: str
    sequence: int

    @property
    def owner(self) -> FileNumber:
        """The worker and the number that the file's name should contain."""
        return FileNumber(self.worker_id, self.sequence)


@dataclass(frozen=True, slots=True)
class Footer:
    """Facts about a readable file that need no reading of rows."""

    columns: tuple[str, ...]
    rows: int
    bytes: int
    is_plain: bool
    """Whether the file has every column of the contract with exactly its type."""
    stamp: Stamp | None
    """None if the recorder wrote no stamp."""
    first_ns: int | None
    """Earliest time in the rows; None if the footer lacks it."""
    last_ns: int | None
    """Latest time in the rows; None if the footer lacks it."""
    suspects: frozenset[str]
    """Columns that may hold a forbidden NULL, a text that is too long, or an impossible number."""
    spans: tuple[tuple[int, int], ...] = ()
    """Numbers of the rows among all of the worker and table, as ranges without their end; empty if unknown."""
    rest_bytes: int = 0
    """Length of what follows the last whole batch of a journal: an incomplete batch, or damage."""


@cache
def read_schema(table: str) -> pa.Schema:
    """Return the columns of a table as they are read: a damaged file may lack any value."""
    return pa.schema([pa.field(field.name, field.type) for field in arrow_schema(table)])


def read_footer(path: Path, table: str) -> Footer | str:
    """Return the footer of a table's file, or why the file cannot be read."""
    try:
        why = _envelope_fault(path)
        if why is not None:
            return why
        metadata = pq.read_metadata(path)
        found = metadata.schema.to_arrow_schema()
        return schema_fault(found, table) or _footer(path, table, found, metadata)
    except UNREADABLE as error:
        return f"cannot be read: {error}"


def _footer(path: Path, table: str, found: pa.Schema, metadata: pq.FileMetaData) -> Footer:
    kinds = {field.name: field.type for field in found}
    chunks = list(chunks_of(metadata))
    first_ns, last_ns = times_of(chunks, table) or (None, None)
    first_row = first_row_of(metadata)
    return Footer(
        columns=shared(tuple(found.names)),
        rows=metadata.num_rows,
        bytes=path.stat().st_size,
        is_plain=all(kinds.get(field.name) == field.type for field in arrow_schema(table)),
        stamp=stamp_in(metadata.metadata or {}),
        first_ns=first_ns,
        last_ns=last_ns,
        suspects=shared(frozenset(_suspects(table, found, chunks))),
        spans=() if first_row is None else ((first_row, first_row + metadata.num_rows),),
    )


def first_row_of(metadata: pq.FileMetaData) -> int | None:
    """Return the number of a file's first row among all of its worker. None for a file that replaced no journal."""
    first_row = _text(metadata.metadata or {}, FIRST_ROW_KEY)
    return int(first_row) if _is_number(first_row) else None


def times_of(chunks: Sequence[pq.ColumnChunkMetaData], table: str) -> tuple[int, int] | None:
    """Return the earliest and the latest time in the rows of these chunks. None if the footer lacks them."""
    first, last = TIMES[table]
    lows = [chunk.statistics for chunk in chunks if chunk.path_in_schema == first]
    highs = [chunk.statistics for chunk in chunks if chunk.path_in_schema == last]
    if not lows or not all(each is not None and each.has_min_max for each in (*lows, *highs)):
        return None
    return min(low.min for low in lows), max(high.max for high in highs)


@lru_cache(maxsize=256)
def shared(names: _Names) -> _Names:
    """Return one shared object for equal names: a run may have a million footers, most of them alike."""
    return names


def chunks_of(metadata: pq.FileMetaData, groups: Iterable[int] | None = None) -> Iterator[pq.ColumnChunkMetaData]:
    """Yield the column chunks of some row groups, or of all. Raises ArrowInvalid if one has another type."""
    for group in range(metadata.num_row_groups) if groups is None else groups:
        row_group = metadata.row_group(group)
        for column in range(metadata.num_columns):
            chunk, declared = row_group.column(column), metadata.schema.column(column)
            # pyarrow aborts the process when it is asked for the statistics of a column of another type.
            if chunk.physical_type != declared.physical_type:
                raise pa.ArrowInvalid(
                    f"column {declared.path} is {declared.physical_type} in the schema "
                    f"and {chunk.physical_type} in a row group"
                )
            yield chunk


def _suspects(table: str, found: pa.Schema, chunks: list[pq.ColumnChunkMetaData]) -> Iterator[str]:
    """Yield the columns whose statistics do not prove every value valid; a column may repeat."""
    columns = {column.name: column for column in TABLES[table]}
    lacks = {name for name, column in columns.items() if not column.nullable and _has_optional(found, name)}
    for chunk in chunks:
        name, _, inside = chunk.path_in_schema.partition(".")
        if name not in columns:
            continue
        statistics = chunk.statistics
        if name in lacks and (statistics is None or not statistics.has_null_count or statistics.null_count):
            yield name
        elif chunk.physical_type == "BYTE_ARRAY":
            if chunk.total_uncompressed_size > LONGEST_TEXT_BYTES:
                yield name
        elif chunk.physical_type in ("INT32", "INT64"):
            low, high = number_limits(columns[name], inside.rpartition(".")[2])
            if statistics is None or not statistics.has_min_max:
                if statistics is None or statistics.null_count != chunk.num_values:
                    yield name
            elif statistics.min < low or statistics.max > high:
                yield name


def number_limits(column: Column, inside: str = "") -> tuple[int, int]:
    """Return the minimum and maximum of a whole number in a column, or in a field inside it."""
    if column.unit == "ns" and not inside:
        return -LATEST_NS, LATEST_NS
    if inside in _NUMBERED or (not inside and column.unit == "" and column.name != "segment"):
        return -(1 << 31), 1 << 31
    return 0, 1 << 53


def _has_optional(found: pa.Schema, name: str) -> bool:
    index = found.get_field_index(name)
    return index >= 0 and _is_optional(found.field(index))


def _is_optional(field: pa.Field) -> bool:
    """Return whether a field, or one inside it, may be NULL."""
    inside = [field.type.value_field] if pa.types.is_list(field.type) else ()
    inside = list(field.type) if pa.types.is_struct(field.type) else inside
    return field.nullable or any(_is_optional(each) for each in inside)


def stamp_in(metadata: Mapping[bytes, bytes]) -> Stamp | None:
    """Return the stamp in the metadata of a file or a journal; None if there is none or an invalid one."""
    run_id, table, worker_id, sequence = (_text(metadata, key) for key in STAMP_KEYS)
    return Stamp(run_id, table, worker_id, int(sequence)) if _is_number(sequence) else None


def _text(metadata: Mapping[bytes, bytes], key: str) -> str:
    return metadata.get(key.encode(), b"").decode("utf-8", "replace")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 20


def _envelope_fault(path: Path) -> str | None:
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode):
        return "not a regular file"
    size_bytes = facts.st_size
    if size_bytes < _SMALLEST_PARQUET_BYTES:
        return f"{size_bytes} bytes long, too short for a Parquet file"
    with path.open("rb") as file:
        head = file.read(4)
        file.seek(-4, 2)
        tail = file.read(4)
    if head != _MAGIC or tail != _MAGIC:
        return "no Parquet magic bytes at its start and end: truncated, or not a Parquet file"
    return None


def schema_fault(found: pa.Schema, table: str) -> str | None:
    """Return why rows with this schema are not rows of the table; None if they are."""
    if found.equals(arrow_schema(table)):
        return None
    names = [name.casefold() for name in found.names]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        return f"column {twice} appears more than once"
    for field in arrow_schema(table):
        index = found.get_field_index(field.name)
        if index < 0:
            if not field.nullable:
                return f"column {field.name} is missing, expected {field.type}"
        elif not _reads_as(found.field(index).type, field.type):
            return f"column {field.name} is {found.field(index).type}, expected {field.type}"
    return None


def _reads_as(found: pa.DataType, expected: pa.DataType) -> bool:
    """Return whether a stored type can be cast to the contract's type with no loss except of width."""
    if found == expected or pa.types.is_null(found):
        return True
    if pa.types.is_dictionary(found):
        return _reads_as(found.value_type, expected)
    if pa.types.is_integer(expected):
        return pa.types.is_integer(found)
    if pa.types.is_floating(expected):
        return pa.types.is_floating(found) or pa.types.is_integer(found)
    if pa.types.is_string(expected):
        return pa.types.is_string(found) or pa.types.is_large_string(found)
    if pa.types.is_list(expected):
        is_list = pa.types.is_list(found) or pa.types.is_large_list(found)
        return is_list and _reads_as(found.value_type, expected.value_type)
    if pa.types.is_struct(expected):
        return pa.types.is_struct(found) and all(
            found.get_field_index(field.name) >= 0
            and _reads_as(found.field(found.get_field_index(field.name)).type, field.type)
            for field in expected
        )
    return False
