"""Writes run folders as a recorder does that counts: one file a flush, each with a stamp, and worker files that state
rows, files and checksums.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
from rlscope_otel.parquet import write_table
from rlscope_otel.schema import STAMP_KEYS, arrow_schema
from rlscope_otel.worker_file import Written

from tests.trace_folder import Row, worker, write_run

Flushes = Mapping[str, Sequence[Sequence[Row]]]
"""By table, the rows of each flush."""


def write_flush(folder: Path, table: str, worker_id: str, sequence: int, rows: Sequence[Row]) -> tuple[Path, int]:
    """One file of one flush, and its CRC-32."""
    schema = arrow_schema(table)
    held = pa.Table.from_pylist([{name: row.get(name) for name in schema.names} for row in rows], schema=schema)
    path = folder / table / f"{worker_id}-{sequence:06d}.parquet"
    return path, write_table(held, path, dict(zip(STAMP_KEYS, ("run", table, worker_id, sequence), strict=True)))


def record(folder: Path, worker_id: str, role: str, flushes: Flushes, **more: Any) -> dict[str, Written]:
    """Write all flushes of one worker and its file; `more` goes into that. Returns what it wrote, by table."""
    if not (folder / "run.json").exists():
        write_run(folder, [])
    written: dict[str, Written] = {}
    for table, parts in flushes.items():
        written[table] = Written()
        for sequence, rows in enumerate(parts, start=1):
            _, checksum = write_flush(folder, table, worker_id, sequence, rows)
            written[table] = written[table].and_file(sequence, len(rows), checksum)
    state(folder, worker_id, role, written, **more)
    return written


def state(folder: Path, worker_id: str, role: str, written: Mapping[str, Written], **more: Any) -> None:
    """Write the worker's file with these counts."""
    counts = {"rows": {table: each.rows for table, each in written.items()}}
    document = {**worker(worker_id, role, 0, 100), **counts, "run_id": "run", **more}
    document["written"] = {table: asdict(each) for table, each in written.items()}
    (folder / "workers" / f"{worker_id}.json").write_text(json.dumps(document))
