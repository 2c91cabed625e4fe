"""Made-up runs on several hosts, each with a clock of its own."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.trace_folder import (
    Row,
    activity,
    delivery_row,
    engine_row,
    sample_row,
    train_row,
    update_row,
    worker,
    write_run,
)

NS: Final = 10**9
START_NS: Final = 1_790_000_000 * NS
TIMES: Final = ("submitted_ns", "started_ns", "finished_ns", "taken_ns", "start_ns", "end_ns", "time_ns")
WORKER_TIMES: Final = ("started_ns", "stopped_ns", "last_flush_ns")
Clock = Callable[[int], int]
"""From a true time to what the clock reads."""


def right(true_ns: int) -> int:
    """A clock that is right."""
    return true_ns


def off(by_s: float = 0.0, drift: float = 0.0) -> Clock:
    """A clock that is ahead, and gains `drift` seconds a second."""
    return lambda true_ns: true_ns + round(by_s * NS) + round(drift * (true_ns - START_NS))


@dataclass
class MadeRun:
    """Rows of every table at true times, and the host of each worker."""

    workers: list[Row] = field(default_factory=list)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def add(self, table: str, row: Row) -> None:
        self.tables.setdefault(table, []).append(dict(row))

    def write(self, folder: Path, clocks: Mapping[str, Clock], queue_host: str | None = None) -> Path:
        """A run folder in which each host's times are by its clock; those of the queue by the engine's or queue_host's.

        Clocks that are not given are right.
        """
        hosts = {str(each["worker_id"]): str(each["host"]) for each in self.workers}
        engines = {row["sample_id"]: hosts[row["worker_id"]] for row in self.tables["samples"]}
        workers = [_by_clock(each, WORKER_TIMES, clocks.get(str(each["host"]), right)) for each in self.workers]
        tables: dict[str, Sequence[Row]] = {}
        for table, rows in self.tables.items():
            changed = [_by_clock(row, TIMES, clocks.get(hosts[row["worker_id"]], right)) for row in rows]
            if table == "deliveries":
                owners = [queue_host or engines[row["sample_id"]] for row in rows]
                changed = [
                    _by_clock(row, ("queued_ns",), clocks.get(owner, right))
                    for row, owner in zip(changed, owners, strict=True)
                ]
            tables[table] = changed
        return write_run(folder, workers, {"samples_per_step": 6}, **tables)


def _by_clock(row: Row, names: Sequence[str], clock: Clock) -> Row:
    changed = {name: clock(row[name]) for name in names if row.get(name) is not None}
    if "busy_ns" in row:
        changed["busy_ns"] = clock(row["start_ns"] + row["busy_ns"]) - clock(row["start_ns"])
    return {**row, **changed}


def made_run(engines: int = 3, steps: int = 40, seed: int = 0) -> MadeRun:
    """A trainer on host a and engines on hosts of their own, in steps of one second; latencies of some milliseconds."""
    rng, run = random.Random(seed), MadeRun()
    names = [f"e{each}" for each in range(engines)]
    ends_ns = START_NS + (steps + 1) * NS
    run.workers.append(worker("t0", "trainer", START_NS, ends_ns, host="a"))
    run.workers += [worker(name, "sampler", START_NS, ends_ns, host=f"b{name}") for name in names]
    for step in range(steps):
        begin_ns = START_NS + step * NS
        published_ns = begin_ns + 600_000_000
        run.add("train_steps", train_row("t0", begin_ns, published_ns, step, version_in=step, version_out=step + 1))
        run.add("weight_updates", update_row("t0", published_ns, published_ns + 10_000_000, step + 1, "publish"))
        run.add("activities", activity("t0", published_ns + 10_000_000, begin_ns + NS, "wait", "samples"))
        for name in names:
            applied_ns = published_ns + rng.randint(12_000_000, 40_000_000)
            run.add("weight_updates", update_row(name, published_ns + 11_000_000, applied_ns, step + 1, paused=True))
            run.add("engine_steps", engine_row(name, applied_ns, begin_ns + 950_000_000))
            for sample in range(2):
                sample_id = f"{name}-{step}-{sample}"
                finished_ns = begin_ns + rng.randint(940_000_000, 950_000_000)
                taken_ns = begin_ns + NS
                run.add(
                    "samples",
                    sample_row(
                        sample_id, name, [(step + 1, 0, 10)], group_id=f"{name}-{step}", submitted_ns=applied_ns,
                        started_ns=applied_ns + 1_000_000, finished_ns=finished_ns,
                    ),
                )  # fmt: skip
                run.add(
                    "deliveries",
                    delivery_row(
                        sample_id, "t0", queued_ns=finished_ns + rng.randint(1_000_000, 3_000_000), taken_ns=taken_ns,
                        step=step + 1, consumer_version=step + 1,
                    ),
                )  # fmt: skip
    return run
