"""What an analysis says does not depend on what the clocks of its run were set to."""

import json
import shutil
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rlscope.pipeline import analyze
from rlscope.reports.documents.analysis import as_document
from tests.kept import TRACES
from tests.model.few_draws import few_draws

TRACE: Final = TRACES / "capped_staleness"
DURATIONS: Final = {"busy_ns", "env_wait_ns"}
"""The columns of nanoseconds that no clock was read for."""
EARLIEST_NS: Final = 10**18
"""September 2001: what is later is a time by a clock."""


def copied(to: Path, by_ns: int) -> Path:
    """A copy of the trace with every clock set later by so much."""
    folder = to / TRACE.name
    shutil.copytree(TRACE, folder)
    for path in folder.rglob("*.parquet"):
        table = pq.read_table(path)
        for index, name in enumerate(table.column_names):
            if name.endswith("_ns") and name not in DURATIONS:
                moved = pc.add(table[name], pa.scalar(by_ns, pa.int64()))
                table = table.set_column(index, table.schema.field(name), moved)
        pq.write_table(table, path)
    for path in (folder / "run.json", *(folder / "workers").glob("*.json")):
        path.write_text(json.dumps(shifted(json.loads(path.read_text(encoding="utf-8")), by_ns)), encoding="utf-8")
    return folder


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


def test_clocks_that_are_all_set_later_move_times_and_nothing_else(tmp_path: Path) -> None:
    by_ns = 123_456_789_012_345
    with few_draws():
        before, after = (as_document(analyze(each, also_ask=())) for each in (TRACE, copied(tmp_path, by_ns)))
    assert differences(before, after) != []
    assert differences(shifted(before, by_ns), after) == []
