"""Small runs to damage: the start of a recorded one, stored anew as the recorder of today and that of before would."""

import json
import os
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rlscope_otel.merged_file import MergedFile
from rlscope_otel.parquet import write_table
from rlscope_otel.schema import STAMP_KEYS, TABLES, TIMES, FileNumbers, arrow_schema
from rlscope_otel.stored_files import StoredFile
from rlscope_otel.worker_file import Written

from rlscope.trace.compaction import compact_run

SAMPLE_TRACES: Final = Path(__file__).parents[2] / "sample_traces"
FILES_OF_A_TABLE: Final = 3
Recorder = Literal["counting", "merging", "old", "compacted"]
"""counting: states rows, files and checksums. merging: merged its first files besides. old: states the rows alone.
compacted: as merging, and compacted afterwards."""
MERGED_FILES: Final = 2
"""Of each table and worker, where the recorder merged some."""


def store_run(folder: Path, recorder: Recorder, trace: str = "capped_staleness", steps: int = 24) -> Path:
    """The first steps of a sample trace, each table of each worker in several files."""
    source = SAMPLE_TRACES / trace
    until_ns = _end_of_step(source, steps)
    manifest = json.loads((source / "run.json").read_text(encoding="utf-8"))
    (folder / "workers").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(manifest), encoding="utf-8")
    for path in (source / "workers").glob("*.json"):
        worker = json.loads(path.read_text(encoding="utf-8"))
        written = {
            table: _store_table(source, folder, manifest["run_id"], worker["worker_id"], table, until_ns, recorder)
            for table in TABLES
        }
        worker |= {"stopped_ns": until_ns, "last_flush_ns": until_ns}
        worker["rows"] = {table: each.rows for table, each in written.items()}
        if recorder != "old":
            worker["written"] = {table: asdict(each) for table, each in written.items()}
        if recorder in ("merging", "compacted"):
            for table in written:
                _merge(folder, manifest["run_id"], worker, table)
        (folder / "workers" / path.name).write_text(json.dumps(worker), encoding="utf-8")
    if recorder == "compacted":
        compact_run(folder)
    return folder


def _end_of_step(source: Path, steps: int) -> int:
    rows = pa.concat_tables(pq.read_table(path) for path in sorted((source / "train_steps").glob("*.parquet")))
    return int(sorted(rows["end_ns"].to_pylist())[steps - 1]) + 1


def _store_table(
    source: Path, folder: Path, run_id: str, worker_id: str, table: str, until_ns: int, recorder: Recorder
) -> Written:
    files = sorted((source / table).glob("*.parquet"))
    written = Written()
    if not files:
        return written
    rows = pa.concat_tables([pq.read_table(path) for path in files])
    rows = rows.filter(pc.equal(rows["worker_id"], worker_id)).replace_schema_metadata(arrow_schema(table).metadata)
    rows = rows.filter(pc.less(rows[TIMES[table][1]], pa.scalar(until_ns)))
    length = -(-rows.num_rows // FILES_OF_A_TABLE) or 1
    for sequence, first in enumerate(range(0, rows.num_rows, length), start=1):
        part = rows.slice(first, length).combine_chunks()
        path = folder / table / f"{worker_id}-{sequence:06d}.parquet"
        stamp: dict[str, Any] = dict(zip(STAMP_KEYS, (run_id, table, worker_id, sequence), strict=True))
        checksum = write_table(part, path, stamp if recorder != "old" else None)
        written = written.and_file(sequence, part.num_rows, checksum)
    return written


def _merge(folder: Path, run_id: str, worker: dict[str, Any], table: str) -> None:
    """One file of the first ones of a worker, as its recorder would have made."""
    worker_id, parts = worker["worker_id"], list[StoredFile]()
    paths = [folder / table / FileNumbers(worker_id, number, number).name for number in range(1, MERGED_FILES + 1)]
    if not all(path.exists() for path in paths):
        return
    for number, path in enumerate(paths, start=1):
        content = path.read_bytes()
        parts.append(
            StoredFile.flushed(number, pq.read_metadata(path).num_rows, len(content), zlib.crc32(content), 0.0)
        )
    stamp: dict[str, Any] = dict(zip(STAMP_KEYS, (run_id, table, worker_id, MERGED_FILES), strict=True))
    job = MergedFile(folder / table, stamp, (table, worker_id), parts)
    while not job.is_complete:
        job.step()
    os.replace(job.temporary, job.path)
    for path in paths:
        path.unlink()
    worker["written"][table]["merged"] = {job.numbers.range: job.crc32}
