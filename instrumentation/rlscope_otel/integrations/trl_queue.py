"""The queue between TRL's rollouts and its trainer, seen from the trainer: which samples were taken, and their outcome.

When TRL takes a sample, it decides by its staleness whether to drop it, packs the others into batches, and trains on
the batches in order. So a sample is `trained` with its batch, `dropped_stale` if TRL asks for the next one without
having kept it, `filtered` if it is longer than a row may be, and `abandoned` if training ends first.

A conversation that forked into several training rows is delivered once, with its first row. A row without a sample's
number (`trl_rollouts.tag`) comes from a worker that is not recorded: it is written here as a sample of its own, with
the version at which TRL admitted its group (`admission`).
"""

import queue
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rlscope_otel.integrations.trl_rollouts import sample_id_of, untag
from rlscope_otel.integrations.trl_trainer import finite
from rlscope_otel.recorder import Run

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
    advantage: float | None
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
            advantage=finite(row.advantage),
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
            advantage=taken.advantage,
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
        self._guarded(self._takings.settle)
        was_empty, start_ns = self._depth() in (None, 0), self._run.now_ns()
        try:
            row = self.host_queue.get(*args, **kwargs)
        except queue.Empty:
            self._run.wait("samples").between(start_ns, self._run.now_ns())
            raise
        if was_empty:
            self._run.wait("samples").between(start_ns, self._run.now_ns())
        self._guarded(self._takings.take, row, self._depth())
        return row

    def _depth(self) -> int | None:
        try:
            return self.host_queue.qsize()
        except NotImplementedError:  # multiprocessing's queue on macOS.
            return None

    def _guarded(self, action: Any, *arguments: object) -> None:
        try:
            action(*arguments)
        except Exception as error:  # Nothing of ours reaches the host.
            self._run.faults.note("rollout queue", repr(error))


def _forget_oldest(remembered: dict[Any, Any]) -> None:
    if len(remembered) > _MOST_REMEMBERED:
        del remembered[next(iter(remembered))]
