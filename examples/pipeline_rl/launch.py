"""Starts the processes, watches them, and writes what they counted. It never loads torch."""

import json
import multiprocessing
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType

from examples.pipeline_rl.counts import PeerCounts, SamplerCounts, TrainerCounts
from examples.pipeline_rl.gate import Gate
from examples.pipeline_rl.links import Links, StopSignal, limits_of
from examples.pipeline_rl.mailbox import WeightMailbox
from examples.pipeline_rl.options import Options
from examples.pipeline_rl.worker import run_lead, run_peer, run_sampler

POLL_S = 0.1
GRACE_S = 20.0

Ends = tuple[Connection, ...]
Work = Callable[[Options, Links, int], None]


class Fleet:
    """The worker processes of one run and the pipes that bring back their counts."""

    def __init__(self, options: Options) -> None:
        context = multiprocessing.get_context("spawn")
        self.stop = StopSignal(context)
        self.processes: list[BaseProcess] = []
        self.results: dict[str, Connection] = {}
        # Kept here: a lock that the launcher forgets is gone before a spawned process can open it.
        self._mailbox = WeightMailbox(context, options.shape.bytes)
        self._gate = Gate(context, options.samplers, limits_of(options))
        self._scratch = tempfile.TemporaryDirectory(prefix="pipeline_rl-")
        self._rendezvous = str(Path(self._scratch.name) / "trainers")
        self._start(context, options)

    def _start(self, context: SpawnContext, options: Options) -> None:
        groups = [context.Pipe(duplex=False) for _ in options.sampler_ids]
        shares = [context.Pipe(duplex=False) for _ in options.trainer_ids[1:]]
        run_id = f"{options.run_dir.name}-{time.time_ns()}"

        def start(work: Work, index: int, name: str, groups: Ends, peers: Ends) -> None:
            self.results[name], result = context.Pipe(duplex=False)
            links = Links(run_id, self._mailbox, self._gate, self.stop, groups, peers, self._rendezvous, result)
            process = context.Process(target=work, args=(options, links, index), name=name)
            process.start()
            self.processes.append(process)

        lead, *peers = options.trainer_ids
        start(run_lead, 0, lead, tuple(reader for reader, _ in groups), tuple(writer for _, writer in shares))
        for rank, (name, (orders, _)) in enumerate(zip(peers, shares, strict=True), start=1):
            start(run_peer, rank, name, (), (orders,))
        for index, (name, (_, finished)) in enumerate(zip(options.sampler_ids, groups, strict=True)):
            start(run_sampler, index, name, (finished,), ())

    def await_end(self) -> list[str]:
        """Wait until every process has ended; returns the names of those that failed. One failure stops all."""
        while not self.stop.is_set() and all(process.is_alive() for process in self.processes):
            wait([process.sentinel for process in self.processes], POLL_S)
        self.stop.set()
        deadline_s = time.monotonic() + GRACE_S
        for process in self.processes:
            process.join(max(0.0, deadline_s - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        return [process.name for process in self.processes if process.exitcode != 0]

    def counts(self) -> dict[str, object]:
        """What each worker counted, by worker; a failed worker has none."""
        received = {name: _receive(result) for name, result in self.results.items()}
        return {name: counts for name, counts in received.items() if counts is not None}


def _receive(pipe: Connection) -> object | None:
    """The one message in a pipe; None when its writer ended without sending it."""
    try:
        return pipe.recv() if pipe.poll() else None
    except (EOFError, OSError):
        return None


def launch(options: Options) -> int:
    """Run the pipeline; returns the exit status."""
    if (options.run_dir / "run.json").exists():
        print(f"{options.run_dir} already holds a run: give another folder", file=sys.stderr)
        return 2
    options.run_dir.mkdir(parents=True, exist_ok=True)
    start_s, interrupted = time.monotonic(), False
    fleet = Fleet(options)

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        fleet.stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    failed = fleet.await_end()
    summary = _summary(options, fleet.counts(), time.monotonic() - start_s, interrupted, failed)
    (options.run_dir / "pipeline_summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(_closing_lines(summary), flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _summary(
    options: Options, counts: Mapping[str, object], wall_s: float, interrupted: bool, failed: list[str]
) -> dict[str, object]:
    lead, *peers = (counts.get(name) for name in options.trainer_ids)
    return {
        "wall_s": round(wall_s, 3),
        "interrupted": interrupted,
        "failed": failed,
        **(lead.summary() if isinstance(lead, TrainerCounts) else {}),
        "peers": [asdict(peer) for peer in peers if isinstance(peer, PeerCounts)],
        "samplers": [
            asdict(found) for name in options.sampler_ids if isinstance(found := counts.get(name), SamplerCounts)
        ],
    }


def _closing_lines(summary: dict[str, object]) -> str:
    keys = (
        "wall_s",
        "steps",
        "samples_trained",
        "response_tokens_trained",
        "samples_dropped_stale",
        "token_staleness_mean",
        "token_staleness_max",
        "reward_first_steps",
        "reward_last_steps",
    )
    return "\n".join(f"{key}: {summary[key]}" for key in keys if key in summary)
