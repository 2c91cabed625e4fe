"""Writes a run folder from rows given in a test: every table of the contract, missing columns filled with NULL."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rlscope_otel.schema import FORMAT_NAME, FORMAT_VERSION, TABLES, arrow_schema

Row = Mapping[str, Any]


def worker(worker_id: str, role: str = "trainer", start_ns: int = 0, stop_ns: int | None = 100, **more: Any) -> Row:
    """A worker file's document; `stop_ns=None` is a worker that was killed."""
    return {
        "worker_id": worker_id,
        "role": role,
        "host": "host-a",
        "pid": 1,
        "gpu_count": 1,
        "started_ns": start_ns,
        "stopped_ns": stop_ns,
        "last_flush_ns": stop_ns if stop_ns is not None else start_ns,
        "rows": {},
        "dropped": {},
    } | more


def write_run(folder: Path, workers: Sequence[Row], config: Row | None = None, **tables: Sequence[Row]) -> Path:
    """A run folder with those workers and rows, one file per worker and table."""
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {"format": FORMAT_NAME, "version": FORMAT_VERSION, "run_id": "run", "created_ns": 0}
    (folder / "run.json").write_text(json.dumps({**manifest, "config": dict(config or {})}))
    (folder / "workers").mkdir(exist_ok=True)
    for document in workers:
        (folder / "workers" / f"{document['worker_id']}.json").write_text(json.dumps(document))
    for table, rows in tables.items():
        assert table in TABLES, table
        by_worker: dict[str, list[Row]] = {}
        for row in rows:
            by_worker.setdefault(row["worker_id"], []).append(row)
        for worker_id, own in by_worker.items():
            write_rows(folder, table, worker_id, own)
    return folder


def write_rows(folder: Path, table: str, worker_id: str, rows: Sequence[Row], sequence: int = 1) -> Path:
    """One file of one table."""
    path = folder / table / f"{worker_id}-{sequence:06d}.parquet"
    path.parent.mkdir(exist_ok=True)
    pq.write_table(table_of(table, rows), path)
    return path


def damaged(path: Path) -> Path:
    """Overwrite the first page of a Parquet file; its footer stays whole."""
    content = bytearray(path.read_bytes())
    offset = pq.ParquetFile(path).metadata.row_group(0).column(0).data_page_offset
    content[4 : offset + 12] = b"\xff" * (offset + 8)
    path.write_bytes(content)
    return path


def table_of(table: str, rows: Sequence[Row]) -> pa.Table:
    """Rows of a table in its schema."""
    schema = arrow_schema(table)
    for row in rows:
        assert set(row) <= set(schema.names), f"{table} has no {set(row) - set(schema.names)}"
    return pa.Table.from_pylist([{name: row.get(name) for name in schema.names} for row in rows], schema=schema)


def activity(worker_id: str, start_ns: int, end_ns: int, activity: str, reason: str | None = None) -> Row:
    """A row of activities."""
    return {"worker_id": worker_id, "activity": activity, "reason": reason, "start_ns": start_ns, "end_ns": end_ns}


def engine_row(worker_id: str, start_ns: int, end_ns: int, busy_ns: int | None = None, **more: Any) -> Row:
    """A row of engine_steps: one decode pass; busy throughout unless said otherwise or sampled."""
    return {
        "worker_id": worker_id,
        "start_ns": start_ns,
        "end_ns": end_ns,
        "forward_passes": 1,
        "busy_ns": end_ns - start_ns if busy_ns is None and more.get("source") != "sampled" else busy_ns,
        "running": 1,
        "waiting": 0,
        "decode_tokens": 1,
        "prefill_tokens": 0,
    } | more


def train_row(worker_id: str, start_ns: int, end_ns: int, step: int = 1, **more: Any) -> Row:
    """A row of train_steps."""
    return {
        "worker_id": worker_id,
        "step": step,
        "start_ns": start_ns,
        "end_ns": end_ns,
        "version_in": step - 1,
        "version_out": step,
        "samples": 1,
        "tokens": 1,
    } | more


def update_row(worker_id: str, start_ns: int, end_ns: int, version: int, phase: str = "apply", **more: Any) -> Row:
    """A row of weight_updates."""
    return {"worker_id": worker_id, "version": version, "phase": phase, "start_ns": start_ns, "end_ns": end_ns} | more


def sample_row(sample_id: str, worker_id: str, versions: Sequence[tuple[int, int, int]], **more: Any) -> Row:
    """A row of samples; versions are (version, start, end)."""
    return {
        "sample_id": sample_id,
        "segment": 0,
        "worker_id": worker_id,
        "started_ns": 0,
        "finished_ns": 50,
        "prompt_tokens": 1,
        "output_tokens": versions[-1][2] if versions else 0,
        "versions": [{"version": version, "start": start, "end": end} for version, start, end in versions],
        "version_source": "engine",
        "finish_reason": "stop",
    } | more


def delivery_row(sample_id: str, worker_id: str, outcome: str = "trained", **more: Any) -> Row:
    """A row of deliveries."""
    return {"sample_id": sample_id, "worker_id": worker_id, "taken_ns": 60, "outcome": outcome} | more


def queue_row(worker_id: str, time_ns: int, depth: int, queue: str = "samples", **more: Any) -> Row:
    """A row of queue_depths."""
    return {"queue": queue, "worker_id": worker_id, "time_ns": time_ns, "depth": depth} | more


def gpu_row(worker_id: str, time_ns: int, busy_ratio: float | None = None, **more: Any) -> Row:
    """A row of gpu_samples."""
    reading = {"worker_id": worker_id, "gpu_id": "0", "time_ns": time_ns, "busy_ratio": busy_ratio}
    return reading | {"source": "nvml"} | more


def small_run(folder: Path, tokens: int = 4, config: Mapping[str, Any] | None = None) -> Path:
    """A run of ten seconds with one sample and one training step, too few for a verdict or a model."""
    second = 10**9
    return write_run(
        folder,
        [worker("e0", "sampler", 0, 10 * second), worker("t0", "trainer", 0, 10 * second)],
        config,
        samples=[sample_row("a", "e0", [(0, 0, tokens)])],
        deliveries=[delivery_row("a", "t0", step=1, consumer_version=1)],
        engine_steps=[engine_row("e0", 0, second)],
        train_steps=[train_row("t0", 2 * second, 4 * second, 1)],
        activities=[activity("t0", 0, 2 * second, "wait", "samples")],
    )


def engine_run(folder: Path, origin_ns: int, from_s: int, to_s: int) -> Path:
    """A run folder of an engine that is busy for half of each second from a time on to another, and idle for half."""
    starts_ns = [origin_ns + at_s * 10**9 for at_s in range(from_s, to_s)]
    half_ns = 500_000_000
    rows = [
        engine_row("engine-0", at_ns, at_ns + half_ns, running=4, decode_tokens=100, source="sampled")
        for at_ns in starts_ns
    ]
    waits = [activity("engine-0", at_ns + half_ns, at_ns + 2 * half_ns, "wait", "requests") for at_ns in starts_ns]
    own = worker("engine-0", "sampler", starts_ns[0], starts_ns[-1] + 2 * half_ns)
    return write_run(folder, [own], engine_steps=rows, activities=waits)
