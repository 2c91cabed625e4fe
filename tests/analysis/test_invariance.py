"""What an analysis says does not depend on the files that a run came in, nor on what its clocks were set to."""

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rlscope.pipeline import analyze
from rlscope.reports.documents.analysis import as_document
from tests.kept import TRACES, analysed

TRACE: Final = TRACES / "capped_staleness"
DURATIONS: Final = {"busy_ns", "env_wait_ns"}
"""The columns of nanoseconds that no clock was read for."""
EARLIEST_NS: Final = 10**18
"""September 2001: what is later is a time by a clock."""


@cache
def document() -> Any:
    return as_document(analysed(TRACE.name))


def copied(to: Path, change: Callable[[Path, Path], None]) -> Any:
    """What is said of a copy of the trace."""
    folder = to / TRACE.name
    shutil.copytree(TRACE, folder)
    for path in sorted(folder.rglob("*.parquet")):
        change(path, folder)
    return as_document(analyze(folder))


def shifted(value: Any, by_ns: int) -> Any:
    """Every time by a clock in a document later by so much."""
    if isinstance(value, dict):
        return {name: shifted(each, by_ns) for name, each in value.items()}
    if isinstance(value, list):
        return [shifted(each, by_ns) for each in value]
    return value + by_ns if isinstance(value, int) and value > EARLIEST_NS else value


def differences(one: Any, other: Any, at: str = "") -> list[str]:
    """Where two documents differ; floats that are sums in another order may in their last digits."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [line for name in one for line in differences(one[name], other[name], f"{at}.{name}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [line for index in range(len(one)) for line in differences(one[index], other[index], f"{at}[{index}]")]
    if isinstance(one, float) and isinstance(other, float):
        return [] if abs(one - other) <= 1e-9 * max(abs(one), abs(other)) else [f"{at}: {one} and {other}"]
    return [] if one == other else [f"{at}: {one} and {other}"]


def test_the_order_of_the_files_of_a_worker_changes_nothing(tmp_path: Path) -> None:
    def scatter(path: Path, _: Path) -> None:
        """In place of the compacted file three of each worker, the last rows first."""
        table = pq.read_table(path)
        path.unlink()
        for worker_id in set(table["worker_id"].to_pylist()):
            rows = table.filter(pc.equal(table["worker_id"], worker_id)).replace_schema_metadata(None)
            length = -(-rows.num_rows // 3)
            for number, first in enumerate(range(0, rows.num_rows, length)):
                pq.write_table(rows.slice(first, length), path.parent / f"{worker_id}-{3 - number:06d}.parquet")

    assert differences(document(), copied(tmp_path, scatter)) == []


def test_clocks_that_are_all_set_later_move_times_and_nothing_else(tmp_path: Path) -> None:
    by_ns = 123_456_789_012_345

    def set_later(path: Path, folder: Path) -> None:
        table = pq.read_table(path)
        for index, name in enumerate(table.column_names):
            if name.endswith("_ns") and name not in DURATIONS:
                moved = pc.add(table[name], pa.scalar(by_ns, pa.int64()))
                table = table.set_column(index, table.schema.field(name), moved)
        pq.write_table(table, path)
        if path == max(folder.rglob("*.parquet")):
            for each in (folder / "run.json", *(folder / "workers").glob("*.json")):
                written = json.loads(each.read_text(encoding="utf-8"))
                each.write_text(json.dumps(shifted(written, by_ns)), encoding="utf-8")

    said = copied(tmp_path, set_later)
    assert differences(document(), said) != []
    assert differences(shifted(document(), by_ns), said) == []
