"""Small runs to damage: the start of a recorded one, stored anew as a recorder and another program would."""

import json
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rlscope_otel.schema import TABLES, TIMES, arrow_schema

from rlscope.trace.journals import fitted
from tests import journals
from tests.closed_files import write_table

SOURCE: Final = Path(__file__).parents[2] / "sample_traces" / "capped_staleness"
STEPS: Final = 24
FILES_OF_A_TABLE: Final = 3
FLUSHES_OF_A_JOURNAL: Final = 4
Recorder = Literal["closed", "open", "plain"]
"""closed: closed files and their checksums. open: the last file of each worker and table is still a journal. plain:
Parquet files of another program, without numbered rows, and the number of rows alone."""


def store_run(folder: Path, recorder: Recorder) -> Path:
    """The first steps of a sample trace, each table of each worker in several files."""
    steps = pa.concat_tables(pq.read_table(path) for path in (SOURCE / "train_steps").glob("*.parquet"))
    until_ns = sorted(steps["end_ns"].to_pylist())[STEPS - 1] + 1
    manifest = json.loads((SOURCE / "run.json").read_text(encoding="utf-8"))
    (folder / "workers").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(manifest), encoding="utf-8")
    for path in (SOURCE / "workers").glob("*.json"):
        worker = json.loads(path.read_text(encoding="utf-8"))
        worker |= {"stopped_ns": until_ns, "last_flush_ns": until_ns, "rows": {}, "closed": {}}
        for table in TABLES:
            _store_table(folder, manifest["run_id"], worker, table, until_ns, recorder)
        if recorder == "plain":
            del worker["closed"]
        (folder / "workers" / path.name).write_text(json.dumps(worker), encoding="utf-8")
    return folder


def _store_table(
    folder: Path, run_id: str, worker: dict[str, Any], table: str, until_ns: int, recorder: Recorder
) -> None:
    path = SOURCE / table / f"{worker['worker_id']}-000001.parquet"
    worker["rows"][table] = 0
    if not path.exists():
        return
    # The trace was recorded before train_steps had a truncated share.
    rows = fitted(pq.read_table(path), table).replace_schema_metadata(arrow_schema(table).metadata)
    rows = rows.filter(pc.less(rows[TIMES[table][1]], pa.scalar(until_ns)))
    worker["rows"][table] = rows.num_rows
    length = -(-rows.num_rows // FILES_OF_A_TABLE) or 1
    for number, first_row in enumerate(range(0, rows.num_rows, length), start=1):
        part = rows.slice(first_row, length).combine_chunks()
        if recorder == "plain":
            write_table(part, folder / table / f"{worker['worker_id']}-{number:06d}.parquet")
            continue
        journal = _journal(folder, run_id, worker["worker_id"], table, part, first_row, number)
        if recorder == "closed" or first_row + length < rows.num_rows:
            worker["closed"].setdefault(table, {})[str(number)] = journals.close(journal)


def _journal(
    folder: Path, run_id: str, worker_id: str, table: str, rows: pa.Table, first_row: int, number: int
) -> Path:
    length = -(-rows.num_rows // FLUSHES_OF_A_JOURNAL)
    for start in range(0, rows.num_rows, length):
        flush = rows.slice(start, length)
        path = journals.append_table(
            folder, flush, worker_id, table, first_row=first_row + start, number=number, run_id=run_id
        )
    return path
