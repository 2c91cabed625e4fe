"""What following a large fleet costs: CPU of a look by the number of workers, and where it goes.

A made-up run of one trainer and many engines, each of which appends a batch to three journals every 30 s, is written
tail by tail on a clock of its own, and `LiveRun` looks at it once after each, with the built-in rules, as `rlscope
watch` does. The first looks are left out: they read what every later one only adds to. The last result is in
`watch_fleet.txt`. polars has one thread, as in `rlscope watch`.

    POLARS_MAX_THREADS=1 python benchmarks/watch_fleet.py [--workers 100 1000 10000]

Ten thousand workers write 30,000 journals, about 0.5 GB, for five looks: a minute of CPU time, most of it writing.
"""

import argparse
import cProfile
import json
import os
import platform
import pstats
import statistics
import tempfile
import time
import zlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import polars as pl
import pyarrow as pa
from rlscope_otel import journal
from rlscope_otel.schema import FORMAT_NAME, FORMAT_VERSION, STAMP_KEYS, arrow_schema

from rlscope.alerts.config import built_in_rules
from rlscope.alerts.live.follow import LiveRun
from rlscope.alerts.live.watch import settle

S: Final = 1_000_000_000
TAIL_S: Final = 30
TAILS: Final = 5
WARM_UP: Final = 2
"""Looks that are not counted."""
START_S: Final = 1_790_000_000
RUN_ID: Final = "fleet"
TABLES: Final = ("engine_steps", "samples", "weight_updates")
ROWS: Final[Mapping[str, int]] = {"engine_steps": 30, "samples": 8, "weight_updates": 1}
"""Of each engine and tail."""
PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "worker records": ("read_workers", "with_usual_times", "usual_window"),
    "files and rows": ("look", "_read_until"),
    "buckets": ("_fill",),
    "rules": ("_judge",),
    "facts": ("_view",),
}


class Fleet:
    """Writes the run folder tail by tail."""

    def __init__(self, folder: Path, engines: int) -> None:
        self._folder = folder
        self._engines = [f"engine-{number:05d}" for number in range(engines)]
        self._tails = 0
        self._crc32: dict[tuple[str, str], int] = {}
        """CRC-32 of the head of each journal."""
        manifest = {"format": FORMAT_NAME, "version": FORMAT_VERSION, "run_id": RUN_ID, "created_ns": START_S * S}
        for name in ("workers", "train_steps", *TABLES):
            (folder / name).mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({**manifest, "config": {"max_staleness": 8}}))

    def flush(self) -> int:
        """Write the next tail of every worker; returns when it ends, ns."""
        start_ns = (START_S + self._tails * TAIL_S) * S
        self._tails += 1
        for table in TABLES:
            rows = _batch(table, _rows(table, start_ns, self._tails))
            for engine in self._engines:
                self._append(table, engine, rows)
        self._append(
            "train_steps", "trainer", _batch("train_steps", [_filled("train_steps", _step(start_ns, self._tails))])
        )
        for engine in self._engines:
            self._record(engine, "sampler", {table: rows * self._tails for table, rows in ROWS.items()}, start_ns)
        self._record("trainer", "trainer", {"train_steps": self._tails}, start_ns)
        return start_ns + TAIL_S * S

    def _append(self, table: str, worker_id: str, rows: pa.RecordBatch) -> None:
        place, own = rows.schema.get_field_index("worker_id"), pa.array([worker_id] * rows.num_rows, pa.string())
        columns = [own if index == place else column for index, column in enumerate(rows.columns)]
        batch = pa.RecordBatch.from_arrays(columns, schema=rows.schema)
        stamp: dict[str, str | int] = dict(zip(STAMP_KEYS, (RUN_ID, table, worker_id, 1), strict=True))
        head = b"" if (table, worker_id) in self._crc32 else journal.head(table, stamp)
        crc32 = self._crc32.setdefault((table, worker_id), zlib.crc32(head))
        with (self._folder / table / f"{worker_id}-000001{journal.SUFFIX}").open("ab") as file:
            file.write(head + journal.sealed(batch, (self._tails - 1) * rows.num_rows, crc32))

    def _record(self, worker_id: str, role: str, rows: Mapping[str, int], start_ns: int) -> None:
        who = {"worker_id": worker_id, "role": role, "host": f"node-{worker_id[-5:-1]}", "pid": 1, "gpu_count": 1}
        life = {"started_ns": START_S * S, "stopped_ns": None, "last_flush_ns": start_ns + TAIL_S * S}
        document = who | life | {"kv_capacity_tokens": 90_000, "rows": rows, "dropped": {}}
        (self._folder / "workers" / f"{worker_id}.json").write_text(json.dumps(document))


def _batch(table: str, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    plain = pa.schema([field.remove_metadata() for field in arrow_schema(table)])
    (batch,) = pa.Table.from_pylist(rows, schema=plain).to_batches()
    return batch


def _rows(table: str, start_ns: int, tail: int) -> list[dict[str, Any]]:
    """What one engine records in a tail."""
    if table == "weight_updates":
        update = {"version": tail, "phase": "apply", "start_ns": start_ns, "end_ns": start_ns + S // 2, "paused": True}
        return [_filled(table, update)]
    if table == "samples":
        return [_filled(table, _sample(start_ns, tail, number)) for number in range(ROWS[table])]
    load = {"running": 32, "waiting": 1, "kv_used_tokens": 60_000, "source": "exact"}
    made = {"forward_passes": 1, "busy_ns": S * 9 // 10, "decode_tokens": 32, "prefill_tokens": 0}
    seconds = range(start_ns, start_ns + TAIL_S * S, S)
    return [_filled(table, {"start_ns": each, "end_ns": each + S - 1} | load | made) for each in seconds]


def _sample(start_ns: int, tail: int, number: int) -> dict[str, Any]:
    return {
        "sample_id": f"{tail}/{number}",
        "segment": 0,
        "versions": [{"version": tail, "start": 0, "end": 500}],
        "output_tokens": 500,
        "prompt_tokens": 100,
        "started_ns": start_ns,
        "finished_ns": start_ns + (number + 1) * S,
        "version_source": "engine",
        "finish_reason": "stop",
    }


def _step(start_ns: int, tail: int) -> dict[str, Any]:
    trained = {"step": tail, "version_in": tail - 1, "version_out": tail, "samples": 64, "tokens": 32_000}
    return {"worker_id": "trainer", "start_ns": start_ns, "end_ns": start_ns + TAIL_S * S - 1} | trained


def _filled(table: str, row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row.get(name) for name in arrow_schema(table).names}


def measured(engines: int, folder: Path) -> str:
    """One line: CPU seconds of a look, and of its parts."""
    fleet, live = Fleet(folder, engines), LiveRun(folder, built_in_rules())
    looks_s: list[float] = []
    idle_s: list[float] = []
    profile = cProfile.Profile(time.process_time)
    for tail in range(TAILS):
        now_ns = fleet.flush()
        is_last = tail == TAILS - 1
        began_s = time.process_time()
        view = profile.runcall(live.poll, now_ns) if is_last else live.poll(now_ns)
        settle()
        if not is_last:
            looks_s.append(time.process_time() - began_s)
        assert not view.problems, view.problems[:3]
        began_s = time.process_time()
        live.poll(now_ns + S)
        settle()
        idle_s.append(time.process_time() - began_s)
    look_s, batches = statistics.median(looks_s[WARM_UP:]), engines * len(TABLES)
    parts = _parts(profile)
    whole = sum(parts.values())
    shown = " ".join(f"{parts[name] / whole:14.0%}" for name in PARTS)
    return (
        f"{engines + 1:7,} {batches:9,} {look_s:9.2f} {look_s / batches * 1e6:12.0f} {statistics.median(idle_s):10.2f} "
        f"{look_s / TAIL_S:14.0%} {live.held_rows:10,} {shown}"
    )


def _parts(profile: cProfile.Profile) -> dict[str, float]:
    """Seconds by part of a look that was profiled: shares count, since profiling slows Python down."""
    found = dict.fromkeys(PARTS, 0.0)
    for (file, _, function), (_, _, _, spent_s, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        for name, functions in PARTS.items():
            if function in functions and "rlscope" in file:
                found[name] += spent_s
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--workers", type=int, nargs="+", default=[100, 1_000, 10_000])
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".txt"))
    given = parser.parse_args(arguments)
    names = ("duckdb", "polars", "pyarrow", "rlscope")
    lines = [
        f"date      {datetime.now(UTC):%Y-%m-%d}",
        f"machine   {os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        f"versions  Python {platform.python_version()}, {', '.join(f'{name} {version(name)}' for name in names)}",
        f"command   POLARS_MAX_THREADS={pl.thread_pool_size()} python benchmarks/watch_fleet.py --workers "
        + " ".join(map(str, given.workers)),
        f"case      1 trainer, the others engines; {len(TABLES)} batches of each engine every {TAIL_S} s, "
        f"{sum(ROWS.values())} rows together; CPU of one look after each, median",
        "",
        "workers   batches cpu_s_look us_per_batch idle_look_s share_of_core  held_rows "
        + " ".join(f"{name.replace(' ', '_'):>14}" for name in PARTS),
    ]
    for workers in given.workers:
        with tempfile.TemporaryDirectory() as temporary:
            lines.append(measured(workers - 1, Path(temporary) / "run"))
        print(lines[-1], flush=True)
    given.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
