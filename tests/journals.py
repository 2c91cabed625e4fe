"""Writes journals and the Parquet files that replace them, as a recorder does, from rows of a test, and reads both."""

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rlscope_otel import journal
from rlscope_otel.schema import FIRST_ROW_KEY, STAMP_KEYS, TABLES, arrow_schema

from rlscope.trace.completeness import Completeness, FileCheck
from rlscope.trace.files import TableFiles, list_table
from rlscope.trace.manifest import read_manifest
from rlscope.trace.worker_files import read_workers
from tests.closed_files import write_table
from tests.trace_folder import Row, table_of

RUN_ID = "run"
"""Run id of `trace_folder.write_run`."""


def journal_path(folder: Path, table: str, worker_id: str, number: int = 1) -> Path:
    return folder / table / f"{worker_id}-{number:06d}{journal.SUFFIX}"


def append(
    folder: Path, table: str, worker_id: str, rows: Sequence[Row], *, first_row: int = 0, number: int = 1
) -> Path:
    """Append one flush to a journal, which begins with it if there is none.

    first_row: number of the first of these rows among all of the worker and table.
    """
    return append_table(folder, table_of(table, rows), worker_id, table, first_row=first_row, number=number)


def append_table(
    folder: Path, rows: pa.Table, worker_id: str, table: str, *, first_row: int, number: int = 1, run_id: str = RUN_ID
) -> Path:
    """Append rows as one flush to a journal."""
    path = journal_path(folder, table, worker_id, number)
    path.parent.mkdir(parents=True, exist_ok=True)
    head = journal.head(table, stamp_of(table, worker_id, number, run_id))
    (batch,) = rows.combine_chunks().to_batches()
    plain = pa.ipc.open_stream(head).schema.remove_metadata()
    message = journal.sealed(pa.RecordBatch.from_arrays(batch.columns, schema=plain), first_row, zlib.crc32(head))
    with path.open("ab") as file:
        file.write(message if file.tell() else head + message)
    return path


def close(path: Path, *, keep: bool = False) -> int:
    """Replace a journal by its Parquet file; return the CRC-32 of that. keep: whether the journal stays.

    The journal holds at least one whole batch.
    """
    content, table = path.read_bytes(), path.parent.name
    length = journal.head_length(content) or 0
    batches = list(journal.whole_batches(content, length, zlib.crc32(content[:length])))
    stream = pa.ipc.open_stream(content[: batches[-1].end])
    rows = stream.read_all().combine_chunks().cast(arrow_schema(table))
    stamp: dict[str, Any] = {key: stream.schema.metadata[key.encode()].decode() for key in STAMP_KEYS}
    crc32 = write_table(rows, path.with_suffix(".parquet"), {**stamp, FIRST_ROW_KEY: batches[0].first_row})
    if not keep:
        path.unlink()
    return crc32


def state(
    folder: Path, worker_id: str, rows: Mapping[str, int], closed: Mapping[str, Mapping[str, int]] | None = None
) -> None:
    """Set what a worker file states. rows: number of rows, by table. closed: CRC-32 by table and file number."""
    path = folder / "workers" / f"{worker_id}.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "rows": rows, "closed": closed or {}}))


def stamp_of(table: str, worker_id: str, number: int, run_id: str = RUN_ID) -> dict[str, str | int]:
    return dict(zip(STAMP_KEYS, (run_id, table, worker_id, number), strict=True))


def recorded_rows(folder: Path, table: str) -> list[Row]:
    """Every whole row of a table, by worker and number of the file. A Parquet file stands for its journal."""
    paths = {path.with_suffix(""): path for path in sorted((folder / table).glob("[!.]*"))}
    return [row for _, path in sorted(paths.items()) for row in rows_in(path)]


def rows_in(path: Path) -> list[Row]:
    """The rows of a Parquet file, or of a journal up to its last whole batch."""
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    content = path.read_bytes()
    length = journal.head_length(content) or len(content)
    batches = list(journal.whole_batches(content, length, zlib.crc32(content[:length])))
    return pa.ipc.open_stream(content[: batches[-1].end]).read_all().to_pylist() if batches else []


def read_back(run_dir: Path, *left_out: str) -> tuple[list[int], Completeness]:
    """The first column of the engine rows as the analysis reads them, and its verdict.

    left_out: names of the files that it must name as not or not wholly read.
    """
    workers, skipped = read_workers(run_dir)
    check = FileCheck(run_dir, read_manifest(run_dir).run_id, workers)
    tables: dict[str, TableFiles] = {}
    for table in TABLES:
        listed, unread = list_table(run_dir, table)
        tables[table] = check.check(table, listed)
        skipped = [*skipped, *unread]
    assert [file.path for file in (*skipped, *check.skipped)] == list(left_out)
    paths = [file.path for file in tables["engine_steps"].files]
    return [row["start_ns"] for path in paths for row in rows_in(path)], check.completeness()


COMPLETE = Completeness("complete")
