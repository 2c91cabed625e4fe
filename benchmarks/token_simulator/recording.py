"""Writes what happened in a simulated run as a run folder, each row as the hooks of a real worker would record it.

One worker file and one Parquet file per table for every engine, every trainer replica and, where weights travel on
their own, a controller. A replica reports its own share of the batch; what all replicas do together, each reports.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
from rlscope_otel import schema
from rlscope_otel.batches import batch_of

from tests.closed_files import write_table

from .requests import Group, Request
from .world import Layout, World

ORIGIN_NS: Final = 1_760_000_000_000_000_000
"""When simulated runs begin; UTC epoch."""
RELAY: Final = "relay"
_MOST_ROW_S: Final = 1.0
"""Longest row of several passes that the format allows."""

Row = list[Any]


class Host(NamedTuple):
    """Where a worker runs."""

    name: str
    clock_off_s: float


TRAINERS_HOST: Final = Host("host-a", 0.0)


def _host(world: World, engine: int) -> Host:
    """Of an engine."""
    if not world.clocks_off_s:
        return TRAINERS_HOST
    place = engine % len(world.clocks_off_s)
    return Host(f"host-{'bcdefgh'[place]}", world.clocks_off_s[place])


class Recording:
    """The rows of one run, by table and worker."""

    def __init__(self, world: World, layout: Layout, steps: int) -> None:
        self._world, self._layout, self._steps = world, layout, steps
        replicas = layout.trainer_gpus // world.gpus_per_trainer_replica
        engines = layout.sampler_gpus // world.gpus_per_engine
        self.trainers = [f"trainer-{replica}" for replica in range(replicas)]
        self.engines = [f"sampler-{engine}" for engine in range(engines)]
        self._rows: defaultdict[str, defaultdict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
        self._hosts = {worker_id: _host(world, index) for index, worker_id in enumerate(self.engines)}

    def _ns(self, worker_id: str, at_s: float) -> int:
        """A moment by the worker's clock."""
        return ORIGIN_NS + round((at_s + self._host_of(worker_id).clock_off_s) * 1e9)

    def _host_of(self, worker_id: str) -> Host:
        return self._hosts.get(worker_id, TRAINERS_HOST)

    def engine_pass(
        self,
        worker_id: str,
        times_s: tuple[float, float, float],
        state: tuple[int, int, int, int],
        kv_tokens: int,
        preemptions: int,
    ) -> None:
        """A pass: its start, its end and the start of what follows; running, waiting, decoded and prefilled."""
        start_ns, pass_end_ns, end_ns = (self._ns(worker_id, at_s) for at_s in times_s)
        running, waiting, decoded, prefilled = state
        row = [worker_id, start_ns, end_ns, 1, pass_end_ns - start_ns]
        row += [running, waiting, decoded, prefilled, kv_tokens, preemptions]
        rows = self._rows["engine_steps"][worker_id]
        if rows and self._is_alike(rows[-1], row):
            rows[-1][2] = end_ns
            for column in (3, 4, 7):
                rows[-1][column] += row[column]
        else:
            rows.append(row)

    def _is_alike(self, last: Row, row: Row) -> bool:
        """Whether a pass belongs into the row before it: decode only, on the same requests, without a break."""
        alike = last[5:7] == row[5:7] and last[2] == row[1] and last[8] == row[8] == 0 and row[10] == 0
        return alike and last[3] < self._world.most_passes_per_row and row[2] - last[1] <= _MOST_ROW_S * 1e9

    def sample(self, worker_id: str, request: Request, finish_reason: str) -> None:
        """A sample that its engine is done with."""
        started_ns = None if request.started_s is None else self._ns(worker_id, request.started_s)
        tokens = request.runs[-1].end if request.runs else 0
        row = [request.sample_id, 0, request.group.group_id, worker_id]
        row += [self._ns(worker_id, request.submitted_s), started_ns]
        row += [
            self._ns(worker_id, request.finished_s),
            request.prompt_tokens,
            tokens,
            request.runs,
            "engine",
            0,
            finish_reason,
        ]
        row += [request.preemptions, 0, round(request.waited_s * 1e9)]
        self._rows["samples"][worker_id].append(row)

    def trained(self, step: int, version: int, groups: Sequence[Group]) -> None:
        """The batch of a step, dealt out to the replicas."""
        for trainer, share in self._shares(groups):
            for group in share:
                self._deliveries(trainer, group, "trained", step, version)

    def thrown_away(self, group: Group, outcome: str) -> None:
        """A group that left the queue and is not trained on."""
        self._deliveries(self.trainers[0], group, outcome, None, None)

    def _deliveries(
        self, trainer: str, group: Group, outcome: str, step: int | None, consumer_version: int | None
    ) -> None:
        times_ns = [self._ns(trainer, group.queued_s), self._ns(trainer, group.taken_s)]
        for request in group.requests:
            row = [request.sample_id, trainer, *times_ns, outcome, step, consumer_version, None]
            self._rows["deliveries"][trainer].append(row)

    def _shares(self, groups: Sequence[Group]) -> list[tuple[str, Sequence[Group]]]:
        return [(trainer, groups[rank :: len(self.trainers)]) for rank, trainer in enumerate(self.trainers)]

    def train_step(
        self, step: int, start_s: float, end_s: float, version_in: int, version_out: int, groups: Sequence[Group]
    ) -> None:
        """One optimizer step of all replicas."""
        for trainer, share in self._shares(groups):
            samples = sum(len(group.requests) for group in share)
            tokens = sum(group.response_tokens + group.prompt_tokens for group in share)
            row = [
                trainer,
                step,
                self._ns(trainer, start_s),
                self._ns(trainer, end_s),
                version_in,
                version_out,
                samples,
                tokens,
            ]
            self._rows["train_steps"][trainer].append([*row, *[None] * 6])

    def publication(self, version: int, start_s: float, end_s: float) -> None:
        """All replicas publish together; then the weights are on their way."""
        for trainer in self.trainers:
            self.update(trainer, "publish", version, start_s, end_s)
        if self._world.updates.transfer_s > 0:
            self.update(RELAY, "transfer", version, end_s, end_s + self._world.updates.transfer_s)

    def update(
        self,
        worker_id: str,
        phase: str,
        version: int,
        start_s: float,
        end_s: float,
        paused: bool | None = None,
        kv: str | None = None,
    ) -> None:
        """A phase of a weight update."""
        row = [worker_id, version, f"step-{version}", phase]
        row += [self._ns(worker_id, start_s), self._ns(worker_id, end_s), None, paused, kv]
        self._rows["weight_updates"][worker_id].append(row)

    def trainer_activity(self, activity: str, start_s: float, end_s: float, reason: str | None = None) -> None:
        """What all replicas do together."""
        for trainer in self.trainers:
            self.activity(trainer, activity, start_s, end_s, reason)

    def activity(self, worker_id: str, activity: str, start_s: float, end_s: float, reason: str | None = None) -> None:
        """A stretch of one worker's time; one that is empty is left out."""
        start_ns, end_ns = self._ns(worker_id, start_s), self._ns(worker_id, end_s)
        if end_ns > start_ns:
            self._rows["activities"][worker_id].append([worker_id, activity, reason, start_ns, end_ns])

    def depth(self, worker_id: str, at_s: float, depth_samples: int) -> None:
        """Samples in the queue, after a change that the worker made."""
        row = [
            "samples",
            worker_id,
            self._ns(worker_id, at_s),
            depth_samples,
            self._world.limits.queue_capacity_samples,
        ]
        self._rows["queue_depths"][worker_id].append(row)

    def write(self, folder: Path, ends_s: Mapping[str, float]) -> None:
        """Write the folder; `ends_s` says when each worker with GPUs ended.

        Columns that the format has beyond those recorded here are NULL.
        """
        for table, workers in self._rows.items():
            for worker_id, rows in workers.items():
                path = folder / table / f"{worker_id}-000001.parquet"
                columns = [*zip(*rows, strict=True)]
                later = [(None,) * len(rows)] * (len(schema.TABLES[table]) - len(columns))
                arrays = batch_of(table, [*columns, *later]).columns
                write_table(pa.Table.from_arrays(arrays, schema=schema.arrow_schema(table)), path)
        _write_json(folder / "run.json", self._manifest())
        for worker_id in (*self.trainers, *self.engines):
            _write_json(folder / "workers" / f"{worker_id}.json", self._worker(worker_id, ends_s[worker_id]))
        if self._world.updates.transfer_s > 0:
            end_s = max(ends_s.values()) + self._world.updates.transfer_s
            _write_json(folder / "workers" / f"{RELAY}.json", self._worker(RELAY, end_s))

    def _manifest(self) -> dict[str, object]:
        world, limits = self._world, self._world.limits
        config = {
            "total_gpus": self._layout.trainer_gpus + self._layout.sampler_gpus,
            "gpus_per_engine": world.gpus_per_engine,
            "gpus_per_trainer_replica": world.gpus_per_trainer_replica,
            "samples_per_step": world.rollouts.samples_per_step,
            "group_size": world.rollouts.group_size,
            "max_staleness": limits.max_staleness,
            "staleness_policy": limits.staleness_policy,
            "max_in_flight_samples": limits.max_in_flight_samples,
            "queue_capacity_samples": limits.queue_capacity_samples,
            "queue_policy": limits.full_queue,
            **(self._scheduling() if world.states_scheduling else {}),
            "batches_ahead": world.training.batches_ahead,
            "max_output_tokens": world.responses.max_output_tokens,
            "max_running": self._layout.max_running,
            "model": world.model,
            "framework": "simulated",
            "total_steps": self._steps,
            "synchronous": False,
        }
        identity = {"format": schema.FORMAT_NAME, "version": schema.FORMAT_VERSION, "run_id": world.name}
        return {**identity, "created_ns": ORIGIN_NS, "config": config}

    def _scheduling(self) -> dict[str, object]:
        """A queue that takes the newest first has no name in the format."""
        order = self._world.limits.queue_order
        dispatch = "pulled" if self._world.rollouts.delivery == "group" else None
        return {"queue_order": None if order == "lifo" else order, "dispatch": dispatch}

    def _worker(self, worker_id: str, end_s: float) -> dict[str, object]:
        is_engine, is_relay = worker_id in self.engines, worker_id == RELAY
        gpus = self._world.gpus_per_engine if is_engine else self._world.gpus_per_trainer_replica
        return {
            "worker_id": worker_id,
            "host": self._host_of(worker_id).name,
            "pid": 1,
            "role": "controller" if is_relay else "sampler" if is_engine else "trainer",
            "gpu_count": 0 if is_relay else gpus,
            "gpu_ids": [],
            "device_name": None if is_relay else self._world.device_name,
            "kv_capacity_tokens": self._world.kv_capacity_tokens if is_engine else None,
            "max_running": self._layout.max_running if is_engine else None,
            "framework": "simulated",
            "framework_version": None,
            "started_ns": self._ns(worker_id, 0.0),
            "stopped_ns": self._ns(worker_id, end_s),
            "last_flush_ns": self._ns(worker_id, end_s),
            "rows": {table: len(self._rows[table][worker_id]) for table in schema.TABLES},
            "dropped": dict.fromkeys(schema.TABLES, 0),
        }


def _write_json(path: Path, document: Mapping[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
