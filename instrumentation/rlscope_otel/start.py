"""Starts a recording: `start_run`, with arguments or environment variables."""

import os
from collections.abc import Mapping, Sequence

from opentelemetry.metrics import MeterProvider

from rlscope_otel import exits, settings
from rlscope_otel.clock import Clock, RunClock, SystemClock
from rlscope_otel.recorder import Run
from rlscope_otel.worker_file import Identity


def start_run(
    run_dir: str | os.PathLike[str] | None = None,
    role: str | None = None,
    worker_id: str | None = None,
    *,
    run_id: str | None = None,
    config: Mapping[str, object] | None = None,
    gpu_count: int | None = None,
    gpu_ids: Sequence[str] = (),
    device_name: str | None = None,
    kv_capacity_tokens: int | None = None,
    max_running: int | None = None,
    framework: str | None = None,
    framework_version: str | None = None,
    flush_interval_s: float = 2.0,
    gpu_interval_s: float | None = None,
    upload_to: str | None = None,
    meter_provider: MeterProvider | None = None,
    clock: Clock | None = None,
) -> Run:
    """Start recording this process as one worker of a run. Without a folder, here or in RLSCOPE_RUN_DIR, it is a no-op.

    `settings.py` lists which arguments can come from environment variables. Raises SetupError for an invalid role,
    name or number, and for a folder that holds another run. If the folder cannot be written, one warning is logged:
    the run continues, and recording starts as soon as the folder can be written. If the process can start no thread,
    one warning is logged and nothing is recorded.

    Each flush appends to a journal per table, which becomes a Parquet file at 32 MB, when it is an hour old and has at
    least 4 MB, and at the end.

    `upload_to`: an address such as `s3://bucket/run`, to which another process copies the files every 30 s. The
    worker's name then gets a suffix of its own.
    """
    run_clock = RunClock(clock or SystemClock())
    if (folder := settings.run_dir_of(run_dir)) is None:
        return Run(None, run_clock)
    interval_s = settings.flush_interval_of(flush_interval_s)
    role, ids = settings.role_of(role), tuple(str(gpu_id) for gpu_id in gpu_ids)
    device = (device_name, kv_capacity_tokens, max_running)
    identity = Identity(role, settings.gpu_count_of(gpu_count, ids, role), ids, *device, framework, framework_version)
    copied_to = settings.upload_of(upload_to)
    name = settings.worker_id_of(worker_id, role, is_copied=copied_to is not None)
    sampled_s = settings.gpu_interval_of(gpu_interval_s)
    chosen = settings.Settings(folder, name, identity, run_id, dict(config or {}), interval_s, sampled_s, copied_to)
    run = Run(chosen, run_clock, meter_provider)
    if run.active:
        exits.watch(run)
    return run
