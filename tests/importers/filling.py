"""Fills a run folder from one file, as an import does, and reads back what was written."""

import atexit
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rlscope_otel.schema import TABLES

from rlscope.frameworks import framework
from rlscope.importers.block_console import block_console
from rlscope.importers.importer import Importer, open_source
from rlscope.importers.target import ImportOptions, ImportTarget
from rlscope.importers.timer_console import timer_console
from rlscope.pipeline import focused_grid
from rlscope.trace.imported import Imported
from rlscope.trace.query import ask
from rlscope.trace.store import OpenRun, open_run

Row = dict[str, Any]
NS = 1_000_000_000
NEMO_RL_CONSOLE = block_console(framework("nemo-rl"))
SKYRL_CONSOLE = timer_console(framework("skyrl"))
SLIME_CONSOLE = timer_console(framework("slime"))


@dataclass(frozen=True)
class Filled:
    """A folder that was filled, what run.json says of it, and its rows."""

    folder: Path
    imported: Imported

    def rows(self, table: str) -> list[Row]:
        """All rows of a table, by file."""
        assert table in TABLES
        return [
            row for path in sorted((self.folder / table).glob("*.parquet")) for row in pq.read_table(path).to_pylist()
        ]

    def spans_s(self, worker_id: str, origin_ns: int = 0) -> list[tuple[str, float, float]]:
        """A worker's activities, training steps and weight updates: what, start and end in seconds, by start."""
        named = [
            *((row["activity"], row) for row in self.rows("activities")),
            *(("train_step", row) for row in self.rows("train_steps")),
            *((row["phase"], row) for row in self.rows("weight_updates")),
        ]
        spans = [
            (name, (row["start_ns"] - origin_ns) / NS, (row["end_ns"] - origin_ns) / NS)
            for name, row in named
            if row["worker_id"] == worker_id
        ]
        return sorted(spans, key=lambda span: (span[1], span[2]))


def fill(folder: Path, *files: tuple[Path, Importer], origin_ns: int = 0, **options: Any) -> Filled:
    """Import the files, in this order, into one run. Raises ImportFileError as the importers do."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    target = ImportTarget(folder, "run", ImportOptions(**options), relative_origin_ns=origin_ns)
    for path, importer in files:
        importer.read(open_source(path), target, lambda _bytes: None)
    return Filled(folder, target.finish(files[0][1].name))


def importing(name: str, importer: Importer, **usual: Any) -> Callable[..., Filled]:
    """What imports a file of that name with a given text into the folder `run` beside it, with its options or these."""

    def imported(folder: Path, *parts: str, **options: Any) -> Filled:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("".join(parts))
        return fill(folder / "run", (folder / name, importer), **usual | options)

    return imported


def asked(folder: Path, sql: str) -> list[tuple[Any, ...]]:
    """What a SELECT finds in a run."""
    return _opened(folder, (folder / "run.json").stat().st_mtime_ns).connection.sql(sql).fetchall()


_LAST_OPENED = ExitStack()
atexit.register(_LAST_OPENED.close)


@lru_cache(maxsize=1)
def _opened(folder: Path, _written_ns: int) -> OpenRun:
    """Open a run once for all that a test asks of it: to open one takes longer than to ask."""
    _LAST_OPENED.close()
    return _LAST_OPENED.enter_context(open_run(folder))


def spent_s(folder: Path) -> dict[str, float]:
    """Seconds by worker and what it did, as in "trainer samples" for its waits for samples."""
    spans = """
        SELECT worker_id || ' ' || coalesce(reason, activity) AS what, start_ns, end_ns FROM activities
        UNION ALL SELECT worker_id || ' train', start_ns, end_ns FROM train_steps
        UNION ALL SELECT worker_id || ' ' || phase, start_ns, end_ns FROM weight_updates
    """
    return dict(asked(folder, f"SELECT what, sum(end_ns - start_ns) / 1e9 FROM ({spans}) GROUP BY what"))


def worker_s(folder: Path, worker_id: str = "trainer") -> dict[str, float]:
    """Seconds of a worker by what it did, or by what it waited for."""
    mine = f"{worker_id} "
    return {what.removeprefix(mine): each for what, each in spent_s(folder).items() if what.startswith(mine)}


def ledger_s(folder: Path) -> dict[str, dict[str, float]]:
    """GPU-seconds by worker and state."""
    with open_run(folder) as run:
        ledger = ask(run, "ledger", asdict(focused_grid(run)))
    states: dict[str, dict[str, float]] = {}
    for row in ledger.iter_rows(named=True):
        of_worker = states.setdefault(row["worker_id"], {})
        of_worker[row["state"]] = of_worker.get(row["state"], 0.0) + row["state_ns"] * row["gpu_count"] / NS
    return states
