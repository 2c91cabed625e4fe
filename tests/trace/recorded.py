"""Writes run folders as a recorder does: closed files with numbered rows, and worker files with their checksums."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests import journals
from tests.trace_folder import Row, worker, write_run


def record(folder: Path, worker_id: str, role: str, tables: Mapping[str, Sequence[Sequence[Row]]], **more: Any) -> None:
    """Write the files of one worker. tables: by table, the rows of each closed file. more: of its worker file."""
    if not (folder / "run.json").exists():
        write_run(folder, [])
    closed: dict[str, dict[str, int]] = {}
    for table, parts in tables.items():
        first_row = 0
        for number, rows in enumerate(parts, start=1):
            path = journals.append(folder, table, worker_id, rows, first_row=first_row, number=number)
            closed.setdefault(table, {})[str(number)] = journals.close(path)
            first_row += len(rows)
    counts = {table: sum(map(len, parts)) for table, parts in tables.items()}
    write_run(folder, [worker(worker_id, role, rows=counts, closed=closed, run_id="run", **more)])
