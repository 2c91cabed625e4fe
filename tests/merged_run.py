"""A run of one worker and one table in small files, and files that some of them were merged into."""

import zlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
from rlscope_otel.parquet import write_table
from rlscope_otel.schema import MERGED_KEYS, STAMP_KEYS, TABLES, FileNumbers, arrow_schema, chained_checksum
from rlscope_otel.worker_file import Written

TABLE = "queue_depths"
ROWS = (3, 1, 4, 2)
"""Of the files 1 to 4 that the worker flushed."""


def table_of(sequence: int) -> pa.Table:
    rows = [
        {"queue": "q", "worker_id": "w-1", "time_ns": sequence * 100 + row, "depth": row, "capacity": None}
        for row in range(ROWS[sequence - 1])
    ]
    return pa.Table.from_pylist(rows, arrow_schema(TABLE))


def path_of(folder: Path, first: int, last: int) -> Path:
    return folder / TABLE / FileNumbers("w-1", first, last).name


def stamp_of(sequence: int, run_id: str = "run") -> dict[str, Any]:
    return dict(zip(STAMP_KEYS, (run_id, TABLE, "w-1", sequence), strict=True))


def flush_all(folder: Path) -> dict[str, Any]:
    """Four files and what the worker states of them."""
    written = Written()
    for sequence, rows in enumerate(ROWS, start=1):
        checksum = write_table(table_of(sequence), path_of(folder, sequence, sequence), stamp_of(sequence))
        written = written.and_file(sequence, rows, checksum)
    stated: dict[str, Any] = {table: asdict(Written()) for table in TABLES}
    return {
        "worker_id": "w-1", "started_ns": 0, "stopped_ns": 500, "gpu_count": 1,
        "written": {**stated, TABLE: {**asdict(written), "merged": {}}},
    }  # fmt: skip


def merge(
    folder: Path,
    worker: dict[str, Any],
    first: int,
    last: int,
    run_id: str = "run",
    parts: Sequence[tuple[int, int]] | None = None,
) -> Path:
    """One file made of those with these numbers, which stay. parts: what it was merged from, if not from flushes."""
    flushed = range(first, last + 1)
    checksum = 0
    for number in flushed:
        checksum = chained_checksum(checksum, number, zlib.crc32(path_of(folder, number, number).read_bytes()))
    parts = [(number, number) for number in flushed] if parts is None else parts
    listed = ",".join(f"{end}:{sum(ROWS[start - 1 : end])}" for start, end in parts)
    own = dict(zip(MERGED_KEYS, (first, len(flushed), checksum, listed), strict=True))
    path = path_of(folder, first, last)
    rows = pa.concat_tables(table_of(number) for number in flushed).combine_chunks()
    crc32 = write_table(rows, path, stamp_of(last, run_id) | own)
    worker["written"][TABLE].setdefault("merged", {})[FileNumbers("w-1", first, last).range] = crc32
    return path
