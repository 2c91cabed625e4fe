"""Reads many small files of one table in one call, which costs a third of opening each separately.

If any file cannot be read or differs from its footer, nothing is returned; the caller then reads each file separately
to find out which.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Final, TypeVar

import duckdb
import pyarrow as pa

SMALL_ROWS: Final = 5_000
"""Maximum rows of a small file."""
_LEAST_TOGETHER: Final = 50
"""Minimum files per call: with fewer, starting the call costs more than it saves."""
_MOST_TOGETHER: Final = 5_000
_GLOBS: Final = frozenset("*?[]{}")
"""Characters in a path that DuckDB interprets as patterns."""
_MEMORY_LIMIT: Final = "500MB"
_FILE: Final = "filename"
_File = TypeVar("_File")
_READ: Final = "SELECT * FROM read_parquet($paths, union_by_name = true, filename = true)"


def worth_one_call(files: Sequence[_File]) -> Iterator[Sequence[_File]]:
    """Yield groups of small files that are each worth one call; a smaller rest is left out."""
    for first in range(0, len(files), _MOST_TOGETHER):
        together = files[first : first + _MOST_TOGETHER]
        if len(together) >= _LEAST_TOGETHER:
            yield together


def read_small_files(files: Sequence[tuple[Path, int]]) -> list[pa.Table] | None:
    """Return the rows of each file of one table, in the order given; None if any cannot be read this way.

    files: each path with the number of rows in its footer. Each result has the columns of all files; missing ones are
    NULL.
    """
    paths = [str(path) for path, _ in files]
    if any(not _GLOBS.isdisjoint(path) for path in paths):
        return None
    try:
        read = _read(paths)
    except (duckdb.Error, OSError, pa.ArrowException):
        return None
    ends = list(accumulate((rows for _, rows in files), initial=0))
    if read.num_rows != ends[-1] or not _are_of(read[_FILE], paths, ends):
        return None
    own = read.drop_columns([_FILE])
    return [own.slice(start, end - start) for start, end in pairwise(ends)]


def _read(paths: Sequence[str]) -> pa.Table:
    connection = duckdb.connect(config={"threads": 1, "memory_limit": _MEMORY_LIMIT})
    try:
        # Use one statement: each step of a relation would open every file again.
        return connection.sql(_READ, params={"paths": list(paths)}).to_arrow_table().combine_chunks()
    finally:
        connection.close()


def _are_of(files: pa.ChunkedArray, paths: Sequence[str], ends: Sequence[int]) -> bool:
    """Return whether the first and last row of each file are at their expected positions."""
    found = files.combine_chunks().dictionary_encode()
    numbers, names = found.indices.to_numpy(), found.dictionary.to_pylist()
    return all(
        names[numbers[start]] == path and names[numbers[end - 1]] == path
        for path, (start, end) in zip(paths, pairwise(ends), strict=True)
        if end > start
    )
