"""TRL's rollout worker: the spawned process that sends requests to vLLM, scores the answers and queues them.

`trl_async` makes the worker's process start with `start_loop` instead of the loop class that it was given. Recorded, as
a `controller` without GPUs: when it computed rewards, when it waited for tools (`environment`), and when the queue to
the trainer was full (`backpressure`). Those of several conversations overlap.

A conversation is a sample, each of its requests a segment. Every request carries the sample's name as vLLM's
`request_id`, and every row that goes to the trainer carries its number and its tokens by version, in the row's metrics;
`trl_async` removes them again before TRL logs the metrics.

The engine records the samples if the run folder holds the file of a running sampler when the loop starts; otherwise, or
with RLSCOPE_SAMPLES=framework, this process does. It knows when a request was sent and answered and when TRL's
`model_version` changed, and spreads the tokens evenly over that time (`time_join`). All tokens of a request to an
adapter (`NAME-vN`) have version N (`segment`); the engine's own hook does not know that, so with adapters set
RLSCOPE_SAMPLES=framework, for vLLM too. A request that TRL repeats after a transport error is one more segment.

Run with TRL 1.16.0 and vLLM 0.32.0 on CPU. Not run: tools, environments, adapters, the OpenEnv harness.
"""

import inspect
import itertools
import json
import queue
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlscope_otel import schema
from rlscope_otel.errors import SetupError
from rlscope_otel.faults import Faults
from rlscope_otel.integrations.host import engine_samples_wanted
from rlscope_otel.integrations.request_ids import RequestName, request_id_of, segments_of
from rlscope_otel.integrations.seams import Call, Seams, Watch, during
from rlscope_otel.integrations.trl_trainer import finite
from rlscope_otel.integrations.versions import VersionTimes
from rlscope_otel.recorder import Run
from rlscope_otel.samples import VersionRun
from rlscope_otel.start import start_run

SAMPLE_KEY = "rlscope/sample"
"""In a row's metrics: the number of its sample within the group."""
TOKENS_KEY = "rlscope/tokens_of_version/"
"""In a row's metrics, with a version behind it: how many of its tokens that version sampled."""
_ADAPTER = re.compile(r"-v(\d+)$")

_rollout: ContextVar["_Rollout | None"] = ContextVar("rlscope_rollout", default=None)


@dataclass(frozen=True, slots=True)
class Recording:
    """Settings that the trainer's process passes to the rollout worker."""

    run_dir: str
    worker_id: str
    prefix: str
    """Before every group's number; tells a resumed run from the one before it in the same folder."""


@dataclass(slots=True)
class _Rollout:
    """One conversation while it is generated."""

    number: int
    segments: Iterator[RequestName]
    tokens: Counter[int] = field(default_factory=Counter[int])


def sample_id_of(group: int, number: int, prefix: str = "") -> str:
    """The name of a sample, by its group and its number within it."""
    return f"{prefix}{group}-{number}"


def tag(metrics: dict[str, float], number: int, versions: Iterable[VersionRun]) -> None:
    """Add to a row's metrics what the trainer's hook needs; for rollout workers whose engine records the samples.

    The engine's sample must be named `sample_id_of(group_id, number)`.
    """
    metrics[SAMPLE_KEY] = float(number)
    for version, start, end in versions:
        key = f"{TOKENS_KEY}{version}"
        metrics[key] = metrics.get(key, 0.0) + (end - start)


def untag(metrics: dict[str, float]) -> tuple[int | None, dict[int, int]]:
    """Take it out again: the sample's number, None without one, and its tokens by version, oldest first."""
    number = metrics.pop(SAMPLE_KEY, None)
    keys = [key for key in metrics if key.startswith(TOKENS_KEY)]
    tokens = {int(key.removeprefix(TOKENS_KEY)): int(metrics.pop(key)) for key in keys}
    return None if number is None else int(number), dict(sorted(tokens.items()))


def limits_of(worker: Any, most_queued: int | None, group_size: int) -> dict[str, object]:
    """The limits of TRL's rollout worker, for run.json; for a custom worker, only the queue.

    TRL bounds the conversations that generate at once, tools and environments included, but not the finished ones.
    Those wait for their group, then for its scores, in a queue of limited length besides the group being scored, then
    in the queue to the trainer. No conversation starts while a group cannot enter the queue for scores. worker: before
    its process starts; most_queued: capacity of the queue to the trainer in rows, None if unlimited.
    """
    loop_class, given = getattr(worker, "_loop_cls", None), getattr(worker, "_loop_kwargs", None)
    if not isinstance(loop_class, type) or not isinstance(given, dict):
        return {"queue_capacity_samples": most_queued}
    known = {name: each.default for name, each in inspect.signature(loop_class).parameters.items()} | given
    most_scored = known.get("score_queue_maxsize")
    lying = most_queued
    if lying is not None and isinstance(most_scored, int):
        # A line without an end holds nobody back, however full the queue behind it is.
        lying = lying + (most_scored + 1) * group_size if most_scored > 0 else None
    most_running = known.get("max_inflight_tasks")
    return {
        "max_running_samples": most_running if isinstance(most_running, int) and most_running > 0 else None,
        "queue_capacity_samples": lying,
    }


def start_loop(loop_class: Any, recording: Recording, **arguments: Any) -> Any:
    """Create TRL's loop in its process, watched."""
    try:
        run = start_run(
            recording.run_dir, "controller", recording.worker_id, gpu_count=0, gpu_interval_s=0, framework="trl"
        )
        Rollouts(run, recording.prefix).watch(loop_class)
    except Exception as error:  # Without a record the worker still works.
        Faults().note("rollout worker", repr(error))
    return loop_class(**arguments)


def engine_records(run_dir: Path) -> bool:
    """Whether a sampler is recording in the folder. It reads files, so call it only at the start of a worker."""
    for path in (run_dir / "workers").glob("*.json"):
        try:
            worker = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if worker.get("role") == schema.ROLES[0] and worker.get("stopped_ns") is None:
            return True
    return False


class Rollouts:
    """The watched rollout loop of this process."""

    def __init__(self, run: Run, prefix: str = "") -> None:
        if run.run_dir is None:
            raise SetupError("the rollout worker has no run folder to record in")
        self._run, self._prefix = run, prefix
        self._writes_samples = not (engine_samples_wanted() and engine_records(run.run_dir))
        self._versions = VersionTimes()
        self._numbers: Counter[int] = Counter()
        self._by_rollout_id: dict[str, _Rollout] = {}
        self.seams = Seams(run.faults, run.now_ns)

    def watch(self, loop_class: Any) -> None:
        """Watch the methods of a loop's class."""
        watch = self.seams.watch
        watch(loop_class, "_generate_one", Watch(self._open, after=self._close))
        watch(loop_class, "_post", Watch(self._send, after=self._answered))
        watch(loop_class, "_score_group", during(lambda call: self._run.activity("reward"), then=self._scored))
        watch(loop_class, "_execute_tool_calls", during(lambda call: self._run.wait("environment")))
        watch(loop_class, "_push_metrics", Watch(self._measured))
        watch(loop_class, "run", Watch(after=lambda call: self._run.stop()))

    def _open(self, call: Call) -> None:
        loop, group = call.args[0], call.argument(4, "group_id", 0)
        number = self._numbers[group]
        self._numbers[group] += 1
        if self._numbers[group] == loop.num_generations:
            del self._numbers[group]
        segments = segments_of(sample_id_of(group, number, self._prefix), f"{self._prefix}{group}")
        call.memo = _Rollout(number, segments)
        _rollout.set(call.memo)

    def _close(self, call: Call) -> None:
        """All rows of a conversation carry one id of TRL's."""
        if call.error is None and call.result[2]:
            self._by_rollout_id[call.result[2][0].rollout_id] = call.memo

    def _send(self, call: Call) -> None:
        """A request of the conversation whose task this is."""
        loop, path, payload = call.args[:3]
        self._versions.note(call.started_ns, loop.model_version)
        rollout = _rollout.get()
        if rollout is None or not path.endswith("/completions"):
            return
        call.memo = next(rollout.segments)
        payload["request_id"] = request_id_of(call.memo)

    def _answered(self, call: Call) -> None:
        loop, _, payload = call.args[:3]
        now_ns, rollout = self._run.now_ns(), _rollout.get()
        self._versions.note(now_ns, loop.model_version)
        if call.memo is None or rollout is None or call.error is not None:
            return
        choice = call.result["choices"][0]
        count, source = len(choice["token_ids"]), "time_join"
        runs = self._versions.runs(call.started_ns, now_ns, count)
        adapter = _ADAPTER.search(str(payload.get("model")))
        if getattr(loop, "lora_name", None) is not None and adapter is not None:
            runs, source = [(int(adapter[1]), 0, count)], "segment"
        for version, start, end in runs:
            rollout.tokens[version] += end - start
        if self._writes_samples:
            self._write(call, runs, source, choice.get("finish_reason"))

    def _write(self, call: Call, runs: list[VersionRun], source: str, reason: str | None) -> None:
        name: RequestName = call.memo
        sample = self._run.sample(*name, len(call.args[2]["prompt"]), call.started_ns, source)
        for version, start, end in runs:
            sample.tokens(end - start, version)
        sample.finish(reason)

    def _scored(self, call: Call) -> None:
        """The group's rows are made, in the order of its conversations: each learns whose it is."""
        if call.error is not None:
            return
        rows = iter(call.result)
        for sequences in call.args[1].completions_sequences:
            rollout = self._by_rollout_id.pop(sequences[0].rollout_id, None) if sequences else None
            for row in itertools.islice(rows, len(sequences)):
                if rollout is not None:
                    runs = ((version, 0, tokens) for version, tokens in rollout.tokens.items())
                    tag(row.metrics, rollout.number, runs)

    def _measured(self, call: Call) -> None:
        """Record TRL's own measurement of the time that the queue to the trainer was full."""
        blocked_s = call.args[1].get("rollout/backpressure_s")
        if blocked_s is not None:
            now_ns = self._run.now_ns()
            self._run.wait("backpressure").between(now_ns - int(blocked_s * 1e9), now_ns)


# The queue between TRL's rollouts and its trainer, seen from the trainer: which samples were taken, and their
# outcome.
#
# When TRL takes a sample, it decides by its staleness whether to drop it, packs the others into batches, and trains
# on the batches in order. So a sample is `trained` with its batch, `dropped_stale` if TRL asks for the next one
# without having kept it, `filtered` if it is longer than a row may be, and `abandoned` if training ends first.
#
# A conversation that forked into several training rows is delivered once, with its first row. A row without a
# sample's number (`trl_rollouts.tag`) comes from a worker that is not recorded: it is written here as a sample of its
# own, with the version at which TRL admitted its group (`admission`).


QUEUE_NAME = "rollouts"
_MOST_REMEMBERED = 100_000


@dataclass(slots=True)
class Taken:
    """One training row that the trainer took from the queue."""

    sample_id: str
    group_id: str
    admitted_version: int
    tokens_by_version: dict[int, int]
    """Trained tokens, in their order, by the version that sampled them; one version where only the first is known."""
    input_ids: Any
    trained_tokens: int
    reward: float | None
    taken_ns: int
    queued_ns: int | None


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch: all rows of all ranks, those of this rank in their order, and the tokens this rank forwards."""

    rows: tuple[Taken, ...]
    own: tuple[Taken, ...]
    own_tokens: int


class Takings:
    """Samples that the trainer has taken and not yet trained on."""

    def __init__(self, run: Run, capacity: int | None) -> None:
        self.prefix = ""
        self._run, self._capacity = run, capacity
        self._undecided: Taken | None = None
        self._kept: dict[int, Taken] = {}
        self._batches: deque[Batch] = deque()
        self._rows_of_group: Counter[int] = Counter()
        self._delivered: dict[str, None] = {}

    def take(self, row: Any, depth: int | None) -> None:
        """A row left the queue: TRL has yet to decide whether to keep it."""
        if depth is not None:
            self._run.queue_depth(QUEUE_NAME, depth, self._capacity)
        number, tokens = untag(row.metrics)
        if number is None:
            number = self._rows_of_group[row.group_id]
            self._rows_of_group[row.group_id] += 1
            _forget_oldest(self._rows_of_group)
            self._undecided = self._taken(row, number, {})
            self._write(self._undecided)
        else:
            self._undecided = self._taken(row, number, tokens)

    def keep(self, item: Any, longest_tokens: int | None) -> None:
        """TRL passes the row on to be packed."""
        taken, self._undecided = self._undecided, None
        if taken is None:
            return
        if longest_tokens is not None and len(item["input_ids"]) > longest_tokens:
            self._deliver(taken, "filtered")
        else:
            self._kept[id(item["input_ids"])] = taken

    def settle(self) -> None:
        """The previous row was not kept: it was stale."""
        taken, self._undecided = self._undecided, None
        if taken is not None:
            self._deliver(taken, "dropped_stale")

    def pack(self, rows: Iterable[Any], own_rank: int) -> None:
        """TRL has packed a micro-batch: one row of samples for each rank."""
        of_ranks = list(rows)
        packed = [[self._kept.pop(id(item["input_ids"]), None) for item in row.samples] for row in of_ranks]
        known = [tuple(taken for taken in row if taken is not None) for row in packed]
        own_tokens = len(of_ranks[own_rank].tokens)
        self._batches.append(Batch(tuple(taken for row in known for taken in row), known[own_rank], own_tokens))

    def next_batch(self) -> Batch | None:
        """The micro-batch that is trained on now."""
        return self._batches.popleft() if self._batches else None

    def train(self, batch: Batch, step: int, consumer_version: int) -> None:
        """Its samples are used."""
        for taken in batch.rows:
            self._deliver(taken, "trained", step, consumer_version)

    def abandon(self) -> None:
        """Training has ended: what was taken and not used is lost."""
        self.settle()
        for taken in [*self._kept.values(), *(taken for batch in self._batches for taken in batch.rows)]:
            self._deliver(taken, "abandoned")
        self._kept.clear()
        self._batches.clear()

    def _taken(self, row: Any, number: int, tokens: dict[int, int]) -> Taken:
        now_ns, trained_tokens = self._run.now_ns(), int(row.completion_mask.sum())
        return Taken(
            sample_id=sample_id_of(row.group_id, number, self.prefix),
            group_id=f"{self.prefix}{row.group_id}",
            admitted_version=row.model_version,
            tokens_by_version=tokens if sum(tokens.values()) == trained_tokens else {row.model_version: trained_tokens},
            input_ids=row.input_ids,
            trained_tokens=trained_tokens,
            reward=finite(row.metrics.get("reward")),
            taken_ns=now_ns,
            queued_ns=None if row.enqueued_at is None else min(now_ns, int(row.enqueued_at * 1e9)),
        )

    def _write(self, taken: Taken) -> None:
        """Record a row as a sample, under this worker's name: of who generated it nothing is known."""
        prompt_tokens = len(taken.input_ids) - taken.trained_tokens
        sample = self._run.sample(
            taken.sample_id, taken.group_id, prompt_tokens=prompt_tokens, version_source="admission"
        )
        sample.tokens(taken.trained_tokens, taken.admitted_version)
        sample.finish(None, taken.queued_ns or taken.taken_ns)

    def _deliver(self, taken: Taken, outcome: str, step: int | None = None, version: int | None = None) -> None:
        if taken.sample_id in self._delivered:
            return
        self._delivered[taken.sample_id] = None
        _forget_oldest(self._delivered)
        self._run.delivery(
            taken.sample_id,
            outcome,
            taken_ns=taken.taken_ns,
            queued_ns=taken.queued_ns,
            step=step,
            consumer_version=version,
            reward=taken.reward,
        )


class WatchedQueue:
    """Stands where TRL reads its queue; everything but the reading is the queue's own."""

    def __init__(self, host_queue: Any, run: Run, takings: Takings) -> None:
        self.host_queue, self._run, self._takings = host_queue, run, takings
        self.is_watched = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.host_queue, name)

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """The queue's `get`; that of an empty queue is a wait for samples."""
        if not self.is_watched:
            return self.host_queue.get(*args, **kwargs)
        self._run.faults.attempt("rollout queue", self._takings.settle)
        was_empty, start_ns = self._depth() in (None, 0), self._run.now_ns()
        try:
            row = self.host_queue.get(*args, **kwargs)
        except queue.Empty:
            self._run.wait("samples").between(start_ns, self._run.now_ns())
            raise
        if was_empty:
            self._run.wait("samples").between(start_ns, self._run.now_ns())
        self._run.faults.attempt("rollout queue", self._takings.take, row, self._depth())
        return row

    def _depth(self) -> int | None:
        try:
            return self.host_queue.qsize()
        except NotImplementedError:  # multiprocessing's queue on macOS.
            return None


def _forget_oldest(remembered: dict[Any, Any]) -> None:
    if len(remembered) > _MOST_REMEMBERED:
        del remembered[next(iter(remembered))]
