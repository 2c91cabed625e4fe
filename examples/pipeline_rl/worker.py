"""Where a spawned process begins: its place on the machine, its hooks, its signals, then its work.

Torch is imported inside the run's startup span, so that loading it counts as what it is: time before the first work.
"""

import os
import signal

import rlscope_otel

from examples.pipeline_rl.links import Links
from examples.pipeline_rl.options import Options, trace_config
from examples.pipeline_rl.task import PROMPT_TOKENS


def run_lead(options: Options, links: Links, index: int) -> None:
    """The trainer process that has the queue; tells everyone to stop when it is done."""
    _settle(options, links, index=None)
    with _start_run(options, links, "trainer", options.trainer_ids[index]) as run:
        try:
            with run.activity("startup"):
                from examples.pipeline_rl.trainer import train_to_the_end
            links.result.send(train_to_the_end(options, links, run))
        finally:
            links.stop.set()


def run_peer(options: Options, links: Links, index: int) -> None:
    """Any other trainer process; ends when the lead does."""
    _settle(options, links, index=None)
    with _start_run(options, links, "trainer", options.trainer_ids[index]) as run:
        with run.activity("startup"):
            from examples.pipeline_rl.ranks import follow_to_the_end
        links.result.send(follow_to_the_end(options, links, index, run))


def run_sampler(options: Options, links: Links, index: int) -> None:
    """A sampler process; ends when told to stop."""
    _settle(options, links, index)
    with _start_run(options, links, "sampler", options.sampler_ids[index]) as run:
        with run.activity("startup"):
            from examples.pipeline_rl.sampler import sample_until_stopped
        links.result.send(sample_until_stopped(options, links, index, run))


def _start_run(options: Options, links: Links, role: str, worker_id: str) -> rlscope_otel.Run:
    is_engine = role == "sampler"
    return rlscope_otel.start_run(
        options.run_dir if options.hooks else None,
        role,
        worker_id,
        run_id=links.run_id,
        gpu_count=1,
        config=trace_config(options),
        device_name="CPU core",
        kv_capacity_tokens=options.slots * (PROMPT_TOKENS + options.response_cap) if is_engine else None,
        max_running=options.slots if is_engine else None,
        framework="torch",
        flush_interval_s=options.flush_interval_s,
    )


def _settle(options: Options, links: Links, index: int | None) -> None:
    """Take a core, and leave Ctrl-C to the launcher."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda _number, _frame: links.stop.set())
    if not options.pin or not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    others = cores[:-1] or cores
    os.sched_setaffinity(0, {cores[-1] if index is None else others[index % len(others)]})
