"""What following a large fleet costs: CPU of a look, the share of a core, and where it goes, by the number of workers.

A made-up run of one trainer and many engines is followed by the loop of `rlscope watch` with the built-in rules, on a
clock of its own: it counts the CPU time of the loop, and the pauses that the loop itself chooses. What the workers
flushed in a pause is written before the next look; that is not counted. They flush every 2 s, as the recorder does by
default, or every 30 s. The share of a core is the CPU time of the loop by the time of that clock, over four minutes
after the first six. The last result is in `watch_fleet.txt`. polars has one thread, as in `rlscope watch`.

    POLARS_MAX_THREADS=1 python benchmarks/watch_fleet.py [--workers 100 1000 10000] [--flush-s 2 30]

Ten thousand workers that flush every 2 s write about 4 GB: ten minutes of CPU time, most of it writing.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import polars as pl
import pyarrow as pa
from rlscope_otel import journal
from rlscope_otel.schema import FORMAT_NAME, FORMAT_VERSION, STAMP_KEYS, arrow_schema

from rlscope.alerts.config import built_in_rules
from rlscope.alerts.live import follow
from rlscope.alerts.live.facts import LiveView
from rlscope.alerts.live.files import LiveFiles
from rlscope.alerts.live.follow import LiveRun
from rlscope.alerts.live.watch import RunWatch, WatchClock
from rlscope.alerts.notify.couriers import Couriers

S: Final = 1_000_000_000
INTERVAL_S: Final = 5.0
"""The default of `rlscope watch --interval`."""
WARM_UP_NS: Final = 360 * S
"""Until then, what the first looks do not owe is used up."""
COUNTED_NS: Final = 240 * S
"""Eight ticks of the rules."""
START_NS: Final = 1_790_000_000 * S
RUN_ID: Final = "fleet"
TABLES: Final = ("engine_steps", "samples", "weight_updates")
EVERY_NS: Final[Mapping[str, int]] = {
    "engine_steps": S, "samples": 3_750_000_000, "weight_updates": 30 * S, "train_steps": 30 * S,
}  # fmt: skip
"""Time between two rows of a worker."""
PARTS: Final[Mapping[str, tuple[object, tuple[str, ...]]]] = {
    "worker records": (follow, ("read_workers", "with_usual_times", "usual_window")),
    "files and rows": (LiveFiles, ("look",)),
    "buckets": (LiveRun, ("_fill",)),
    "rules": (LiveRun, ("_judge",)),
    "facts": (LiveRun, ("_view",)),
}


class Fleet:
    """Writes the run folder flush by flush; the flushes of the workers are spread over the interval between two."""

    def __init__(self, folder: Path, engines: int, flush_ns: int) -> None:
        self._folder = folder
        self.flush_ns = flush_ns
        names = ["trainer", *(f"engine-{number:05d}" for number in range(engines))]
        self._done = dict.fromkeys(names, 0)
        """Flushes of each worker."""
        self._heads: dict[tuple[str, str], int] = {}
        """CRC-32 of the head of each journal."""
        self.batches = 0
        manifest = {"format": FORMAT_NAME, "version": FORMAT_VERSION, "run_id": RUN_ID, "created_ns": START_NS}
        for name in ("workers", *EVERY_NS):
            (folder / name).mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({**manifest, "config": {"max_staleness": 8}}))

    def write_until(self, now_ns: int) -> None:
        """Write what each flush up to a time appends, and the worker records of the last ones."""
        for place, (worker_id, done) in enumerate([*self._done.items()]):
            first_ns = self.flush_ns * (place + 1) // len(self._done)
            flushes_ns = range(first_ns, now_ns - START_NS + 1, self.flush_ns)
            if len(flushes_ns) > done:
                for table in TABLES if place else ("train_steps",):
                    self._append(table, worker_id, [0, *flushes_ns][done:])
                self._done[worker_id] = len(flushes_ns)
                self._record(worker_id, flushes_ns[-1])

    def _append(self, table: str, worker_id: str, flushes_ns: Sequence[int]) -> None:
        """Append what ended between each two flushes."""
        stamp: dict[str, str | int] = dict(zip(STAMP_KEYS, (RUN_ID, table, worker_id, 1), strict=True))
        written = b"" if (table, worker_id) in self._heads else journal.head(table, stamp)
        crc32 = self._heads.setdefault((table, worker_id), zlib.crc32(written))
        for pair in pairwise(flushes_ns):
            numbers = range(*(each // EVERY_NS[table] for each in pair))
            if numbers:
                written += journal.sealed(_owned(_batch(table, numbers), worker_id), numbers.start, crc32)
                self.batches += 1
        with (self._folder / table / f"{worker_id}-000001{journal.SUFFIX}").open("ab") as file:
            file.write(written)

    def _record(self, worker_id: str, until_ns: int) -> None:
        role, tables = ("trainer", ["train_steps"]) if worker_id == "trainer" else ("sampler", TABLES)
        who = {"worker_id": worker_id, "role": role, "host": f"node-{worker_id[-5:-1]}", "pid": 1, "gpu_count": 1}
        life = {"started_ns": START_NS, "stopped_ns": None, "last_flush_ns": START_NS + until_ns}
        rows = {table: until_ns // EVERY_NS[table] for table in tables}
        document = who | life | {"kv_capacity_tokens": 90_000, "rows": rows, "dropped": {}}
        (self._folder / "workers" / f"{worker_id}.json").write_text(json.dumps(document))


@cache
def _batch(table: str, numbers: Sequence[int]) -> pa.RecordBatch:
    names = arrow_schema(table).names
    filled = [{name: row.get(name) for name in names} for row in (_row(table, number) for number in numbers)]
    (batch,) = pa.Table.from_pylist(filled, schema=journal.plain_schema(table)).to_batches()
    return batch


def _owned(rows: pa.RecordBatch, worker_id: str) -> pa.RecordBatch:
    place, own = rows.schema.get_field_index("worker_id"), pa.array([worker_id] * rows.num_rows, pa.string())
    columns = [own if index == place else column for index, column in enumerate(rows.columns)]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _row(table: str, number: int) -> dict[str, Any]:
    """What one worker records, without its name."""
    start_ns, version_ = START_NS + number * EVERY_NS[table], number * EVERY_NS[table] // EVERY_NS["train_steps"]
    span = {"start_ns": start_ns, "end_ns": start_ns + EVERY_NS[table] - 1}
    if table == "engine_steps":
        load = {"running": 32, "waiting": 1, "kv_used_tokens": 60_000, "source": "exact"}
        made = {"forward_passes": 1, "busy_ns": S * 9 // 10, "decode_tokens": 32, "prefill_tokens": 0}
        return span | load | made
    if table == "weight_updates":
        return {"version": number, "phase": "apply", **span, "start_ns": span["end_ns"] - S // 2, "paused": True}
    if table == "train_steps":
        return span | {"step": number, "version_in": number, "version_out": number + 1, "samples": 64, "tokens": 32_000}
    return {
        "sample_id": str(number),
        "segment": 0,
        "versions": [{"version": version_, "start": 0, "end": 500}],
        "output_tokens": 500,
        "prompt_tokens": 100,
        "started_ns": start_ns,
        "finished_ns": span["end_ns"],
        "version_source": "engine",
        "finish_reason": "stop",
    }


class GrowingRun(LiveRun):
    """A run that is written up to the time of each look just before it, on a clock that writing does not move."""

    def __init__(self, folder: Path, fleet: Fleet) -> None:
        super().__init__(folder, built_in_rules())
        self._fleet = fleet
        self._began_s = time.process_time()
        self._slept_s = 0.0
        self._aside_s = 0.0
        """CPU time of writing."""
        self.clock = WatchClock(self._now_ns, self._sleep, self._cpu_s)
        self.looks: list[tuple[int, float, float, int]] = []
        """Of each look: when it began, the CPU time of the loop before and after it, and its batches."""

    def poll(self, now_ns: int) -> LiveView:
        """Write, and look."""
        began_s, before = time.process_time(), self._fleet.batches
        self._fleet.write_until(now_ns)
        self._aside_s += time.process_time() - began_s
        before_s = self._cpu_s()
        view = super().poll(now_ns)
        self.looks.append((now_ns, before_s, self._cpu_s(), self._fleet.batches - before))
        assert not view.problems, view.problems[:3]
        return view

    def _now_ns(self) -> int:
        return START_NS + 2 * self._fleet.flush_ns + round((self._slept_s + self._cpu_s()) * S)

    def _sleep(self, seconds: float) -> None:
        self._slept_s += seconds

    def _cpu_s(self) -> float:
        return time.process_time() - self._began_s - self._aside_s


def measured(engines: int, folder: Path, flush_s: float) -> str:
    """One line: CPU seconds of a look, the share of a core, and that of each part of the looks."""
    fleet = Fleet(folder, engines, round(flush_s * S))
    run = GrowingRun(folder, fleet)
    with ExitStack() as stack:
        spent_s = {name: stack.enter_context(_timed(owner, functions)) for name, (owner, functions) in PARTS.items()}
        RunWatch(
            run, Couriers([]), state_file=None, show=lambda _: None, interval_s=INTERVAL_S, clock=run.clock
        ).follow(lambda: run.looks[-1][0] - START_NS > WARM_UP_NS + COUNTED_NS)
    *counted, ended = [look for look in run.looks if look[0] - START_NS > WARM_UP_NS]
    began = counted[0]
    look_s = statistics.mean(after_s - before_s for _, before_s, after_s, _ in counted)
    batches = statistics.mean(batches for *_, batches in counted)
    passed_s = (ended[0] - began[0]) / S
    before_s = run.clock.cpu_s()
    LiveRun.poll(run, ended[0])
    idle_s = run.clock.cpu_s() - before_s
    whole_s = idle_s + sum(after_s - before_s for _, before_s, after_s, _ in run.looks)
    shown = " ".join(f"{sum(spent_s[name]) / whole_s:14.0%}" for name in PARTS)
    share = (ended[1] - began[1]) / passed_s
    return (
        f"{engines + 1:7,} {passed_s / len(counted):15.1f} {batches:9,.0f} {look_s:10.2f} "
        f"{look_s / batches * 1e6:12.1f} {idle_s:11.2f} {share:13.1%} {run.held_rows:10,} {shown}"
    )


@contextmanager
def _timed(owner: object, functions: Sequence[str]) -> Generator[list[float]]:
    """Yield the CPU seconds of every call of these functions."""
    spent_s: list[float] = []

    def timed(function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            began_s = time.process_time()
            found = function(*arguments, **named)
            spent_s.append(time.process_time() - began_s)
            return found

        return call

    with ExitStack() as stack:
        for name in functions:
            stack.enter_context(patch.object(owner, name, timed(getattr(owner, name))))
        yield spent_s


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--workers", type=int, nargs="+", default=[100, 1_000, 10_000])
    parser.add_argument("--flush-s", type=float, nargs="+", default=[2.0, 30.0])
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".txt"))
    given = parser.parse_args(arguments)
    names = ("duckdb", "polars", "pyarrow", "rlscope")
    rows = ", ".join(f"{table} a row every {EVERY_NS[table] / S:g} s" for table in TABLES)
    lines = [
        f"date      {datetime.now(UTC):%Y-%m-%d}",
        f"machine   {os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        f"versions  Python {platform.python_version()}, {', '.join(f'{name} {version(name)}' for name in names)}",
        f"command   POLARS_MAX_THREADS={pl.thread_pool_size()} python benchmarks/watch_fleet.py --workers "
        + " ".join(map(str, given.workers))
        + " --flush-s "
        + " ".join(f"{each:g}" for each in given.flush_s),
        f"case      1 trainer, the others engines: {rows}; --interval {INTERVAL_S:g}s; means of looks",
        "",
        "flush_s workers between_looks_s batches cpu_s_look us_per_batch idle_look_s share_of_core  held_rows "
        + " ".join(f"{name.replace(' ', '_'):>14}" for name in PARTS),
    ]
    for flush_s in given.flush_s:
        for workers in given.workers:
            with tempfile.TemporaryDirectory() as temporary:
                lines.append(f"{flush_s:7g} " + measured(workers - 1, Path(temporary) / "run", flush_s))
            print(lines[-1], flush=True)
    given.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
