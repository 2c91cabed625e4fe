"""What following a run costs as it grows: CPU seconds a look and resident memory, by the age of the run.

A made-up run of one trainer and four engines is written five minutes at a time, on a clock of its own, and `LiveRun`
looks at it once after every flush with the built-in rules, as `rlscope watch` does. The memory is that of this
process, the writer of the run included, which keeps nothing. The last result is in `watch_memory.txt`.

    python benchmarks/watch_memory.py --hours 10
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from rlscope_otel import journal
from rlscope_otel.schema import FORMAT_NAME, FORMAT_VERSION, STAMP_KEYS, arrow_schema

from rlscope.alerts.config import built_in_rules
from rlscope.alerts.live.follow import LiveRun

S: Final = 1_000_000_000
FLUSH_S: Final = 300
STEP_S: Final = 15
SAMPLES_STEP: Final = 16
ENGINES: Final = ("e0", "e1", "e2", "e3")
SHOWN_H: Final = (0.25, 1, 2, 4, 6, 8, 10, 24)
NEAR_S: Final = 3600
"""A figure is the median of the looks of so long before."""

Rows = dict[tuple[str, str], list[dict[str, Any]]]


def rows_between(start_s: int, end_s: int) -> Rows:
    """What the workers record in a stretch of the run, by table and worker."""
    rows: Rows = {}
    for engine in ENGINES:
        rows["engine_steps", engine] = [_engine_row(engine, second) for second in range(start_s, end_s)]
    for end in range(start_s + STEP_S, end_s + 1, STEP_S):
        _step(rows, end // STEP_S, end * S)
    return rows


def _engine_row(engine: str, second: int) -> dict[str, Any]:
    load = {"running": 32 + second % 9, "waiting": second % 3, "kv_used_tokens": 60_000 + second % 700}
    made = {"forward_passes": 40, "busy_ns": S * 9 // 10, "decode_tokens": 1300, "prefill_tokens": 100}
    return {"worker_id": engine, "start_ns": second * S, "end_ns": (second + 1) * S - 1} | load | made


def _step(rows: Rows, step: int, end_ns: int) -> None:
    """One optimizer step: its wait, its samples, and the weights that it makes."""
    begin_ns = end_ns - STEP_S * S
    for name in ("activities", "train_steps", "deliveries", "weight_updates", "queue_depths"):
        rows.setdefault((name, "t0"), [])
    wait = {"activity": "wait", "reason": "samples", "start_ns": begin_ns, "end_ns": begin_ns + 3 * S}
    rows["activities", "t0"].append({"worker_id": "t0"} | wait)
    trained = {"version_in": step - 1, "version_out": step, "samples": SAMPLES_STEP, "tokens": SAMPLES_STEP * 500}
    took = {"start_ns": begin_ns + 3 * S, "end_ns": end_ns - S}
    rows["train_steps", "t0"].append({"worker_id": "t0", "step": step} | trained | took)
    publish = {"version": step, "phase": "publish", "start_ns": end_ns - S, "end_ns": end_ns - S // 2}
    rows["weight_updates", "t0"].append({"worker_id": "t0"} | publish)
    depth = {"queue": "samples", "time_ns": begin_ns, "depth": step % 20, "capacity": 32}
    rows["queue_depths", "t0"].append({"worker_id": "t0"} | depth)
    for engine in ENGINES:
        apply = {"version": step, "phase": "apply", "start_ns": end_ns - S // 2, "end_ns": end_ns - 1, "paused": True}
        rows.setdefault(("weight_updates", engine), []).append({"worker_id": engine} | apply)
    for number in range(SAMPLES_STEP):
        _sample(rows, f"{step}/{number}", ENGINES[number % len(ENGINES)], step, begin_ns)


def _sample(rows: Rows, sample_id: str, engine: str, step: int, taken_ns: int) -> None:
    runs = [(max(0, step - 3), 0, 200), (max(0, step - 2), 200, 500)]
    versions = [{"version": sampled, "start": start, "end": end} for sampled, start, end in runs]
    sample = {"sample_id": sample_id, "segment": 0, "worker_id": engine, "versions": versions, "output_tokens": 500}
    when = {"started_ns": max(0, taken_ns - 30 * S), "finished_ns": max(0, taken_ns - S)}
    told = {"prompt_tokens": 100, "version_source": "engine", "finish_reason": "stop"}
    rows.setdefault(("samples", engine), []).append(sample | when | told)
    delivery = {"sample_id": sample_id, "worker_id": "t0", "taken_ns": taken_ns, "outcome": "trained", "step": step}
    rows["deliveries", "t0"].append(delivery)


class GrowingRun:
    """Writes the run folder flush by flush."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows: dict[str, dict[str, int]] = {}
        self._flushes = 0
        manifest = {"format": FORMAT_NAME, "version": FORMAT_VERSION, "run_id": "grows", "created_ns": 0}
        (folder / "workers").mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({**manifest, "config": {"max_staleness": 8}}))

    def flush(self) -> int:
        """Write the next FLUSH_S of the run; returns how many seconds of it there are."""
        start_s = self._flushes * FLUSH_S
        self._flushes += 1
        for (table, worker), rows in rows_between(start_s, start_s + FLUSH_S).items():
            schema = arrow_schema(table)
            filled = [{name: row.get(name) for name in schema.names} for row in rows]
            counts = self._rows.setdefault(worker, {})
            self._append(table, worker, pa.Table.from_pylist(filled, schema=schema), counts.get(table, 0))
            counts[table] = counts.get(table, 0) + len(rows)
        for worker, counts in self._rows.items():
            self._write_worker(worker, counts, start_s + FLUSH_S)
        return start_s + FLUSH_S

    def _append(self, table: str, worker: str, rows: pa.Table, first_row: int) -> None:
        """Append one batch to the journal; each has an hour."""
        number = (self._flushes - 1) * FLUSH_S // 3600 + 1
        stamp: dict[str, str | int] = dict(zip(STAMP_KEYS, ("grows", table, worker, number), strict=True))
        head = journal.head(table, stamp)
        plain = pa.schema([field.remove_metadata() for field in rows.schema])
        (batch,) = rows.to_batches()
        message = journal.sealed(pa.RecordBatch.from_arrays(batch.columns, schema=plain), first_row, zlib.crc32(head))
        path = self._folder / table / f"{worker}-{number:06d}{journal.SUFFIX}"
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as file:
            file.write(message if file.tell() else head + message)

    def _write_worker(self, worker: str, counts: Mapping[str, int], now_s: int) -> None:
        role = "trainer" if worker == "t0" else "sampler"
        who = {"worker_id": worker, "role": role, "host": "host", "pid": 1, "gpu_count": 4}
        life = {"started_ns": 0, "stopped_ns": None, "last_flush_ns": now_s * S, "kv_capacity_tokens": 90_000}
        document = who | life | {"rows": counts, "dropped": {}}
        (self._folder / "workers" / f"{worker}.json").write_text(json.dumps(document))


def measured(hours: float) -> list[str]:
    """One line for each age of the run."""
    looks_s: list[float] = []
    lines: list[str] = []
    shown = [hour for hour in SHOWN_H if hour <= hours]
    with tempfile.TemporaryDirectory() as temporary:
        run = GrowingRun(Path(temporary) / "run")
        live = LiveRun(Path(temporary) / "run", built_in_rules())
        now_s = 0
        while now_s < hours * 3600:
            now_s = run.flush()
            began_s = time.process_time()
            view = live.poll(now_s * S)
            looks_s.append(time.process_time() - began_s)
            assert not view.problems, view.problems
            if shown and now_s >= shown[0] * 3600:
                lines.append(_line(shown.pop(0), looks_s[-NEAR_S // FLUSH_S :], live))
                print(lines[-1], flush=True)
    return lines


def _line(hour: float, looks_s: list[float], live: LiveRun) -> str:
    state_bytes = len(json.dumps(asdict(live.saved())))
    median_ms, slowest_ms = statistics.median(looks_s) * 1e3, max(looks_s) * 1e3
    return (
        f"{hour:5g} {median_ms:16.0f} {slowest_ms:12.0f} {live.held_rows:9,} {_resident_mb():12.0f} {state_bytes:11,}"
    )


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def head(hours: float) -> str:
    """When, where and with what."""
    flush = f"one look every {FLUSH_S} s of the run, CPU of the last {NEAR_S // 60} minutes' looks"
    versions = ", ".join(f"{name} {version(name)}" for name in ("duckdb", "polars", "pyarrow", "rlscope"))
    return "\n".join(
        (
            f"date      {datetime.now(UTC):%Y-%m-%d}",
            f"machine   {os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
            f"versions  Python {platform.python_version()}, {versions}",
            f"command   python benchmarks/watch_memory.py --hours {hours:g}",
            f"case      1 trainer, {len(ENGINES)} engines, a step every {STEP_S} s; {flush}",
            "",
            "hours  median_ms_a_look  slowest_ms held_rows  resident_mb state_bytes",
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=10.0)
    parser.add_argument("--out", type=Path, help="folder for watch_memory.txt")
    arguments = parser.parse_args()
    print(head(arguments.hours), flush=True)
    lines = measured(arguments.hours)
    if arguments.out is not None:
        (arguments.out / "watch_memory.txt").write_text("\n".join((head(arguments.hours), *lines)) + "\n")


if __name__ == "__main__":
    main()
