"""Makes the first checkpoint, starts the two processes, and writes what they counted."""

import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
from dataclasses import asdict
from multiprocessing.connection import wait
from multiprocessing.context import SpawnContext
from pathlib import Path
from typing import Any

import rlscope_otel

from examples.pipeline_rl.gate import Gate, Limits
from examples.pipeline_rl.links import StopSignal
from examples.vllm_torch.links import Links
from examples.vllm_torch.mailbox import Mailbox, shared_folder
from examples.vllm_torch.options import Options

POLL_S = 0.1
GRACE_S = 60.0
WORKERS = ("trainer", "sampler")


def launch(options: Options) -> int:
    """Run the pipeline; returns the exit status."""
    if (options.run_dir / "run.json").exists():
        print(f"{options.run_dir} already holds a run: give another folder", file=sys.stderr)
        return 2
    options.run_dir.mkdir(parents=True, exist_ok=True)
    folder = shared_folder()
    try:
        return _launch_in(options, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _launch_in(options: Options, folder: Path) -> int:
    context = multiprocessing.get_context("spawn")
    maker = context.Process(target=_make_checkpoint, args=(options, folder))
    maker.start()
    maker.join()
    stop = StopSignal(context)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: stop.set())
    started = time.monotonic()
    failed, counts = _run_processes(options, folder, context, stop)
    summary = {"wall_s": round(time.monotonic() - started, 3), "failed": failed, **counts}
    (options.run_dir / "pipeline_summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _run_processes(
    options: Options, folder: Path, context: SpawnContext, stop: StopSignal
) -> tuple[list[str], dict[str, Any]]:
    """The names of the processes that failed, and what the others counted."""
    limits = Limits(options.batch, options.batch, options.queue_capacity_samples, None, None)
    shared = (folder, Mailbox(context, folder), Gate(context, 1, limits), stop)
    run_id = f"{options.run_dir.name}-{time.time_ns()}"
    groups = context.Pipe(duplex=False)
    results = {name: context.Pipe(duplex=False) for name in WORKERS}
    processes = [
        context.Process(target=_work, args=(name, options, Links(run_id, *shared, end, results[name][1])), name=name)
        for name, end in zip(WORKERS, groups, strict=True)
    ]
    for process in processes:
        process.start()
    while not stop.is_set() and all(process.is_alive() for process in processes):
        wait([process.sentinel for process in processes], POLL_S)
    stop.set()
    received = {name: reader.recv() for name, (reader, _) in results.items() if reader.poll(GRACE_S)}
    for process in processes:
        process.join(GRACE_S)
        if process.is_alive():
            process.kill()
            process.join()
    return [process.name for process in processes if process.exitcode != 0], received


def _make_checkpoint(options: Options, folder: Path) -> None:
    from examples.vllm_torch.policy import Policy

    Policy(options).save(folder)


def _work(name: str, options: Options, links: Links) -> None:
    """One of the two processes; the trainer tells both to stop when it is done."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda _number, _frame: links.stop.set())
    cores = sorted(os.sched_getaffinity(0))
    if options.pin:
        os.sched_setaffinity(0, {cores[-1] if name == "trainer" else cores[0]})
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    config = options.trace_config()
    try:
        with rlscope_otel.start_run(
            options.run_dir, name, name, run_id=links.run_id, gpu_count=1, config=config, device_name="CPU core"
        ) as run:
            links.result.send(_count(name, options, links, run))
    finally:
        links.stop.set()


def _count(name: str, options: Options, links: Links, run: rlscope_otel.Run) -> dict[str, Any]:
    """Do the work; returns what the process itself counted."""
    if name == "trainer":
        with run.activity("startup"):
            from examples.vllm_torch.trainer import train_to_the_end
        return train_to_the_end(options, links, run).summary()
    with run.activity("startup"):
        from examples.vllm_torch.sampler import sample_until_stopped
    return asdict(sample_until_stopped(options, links, run))
