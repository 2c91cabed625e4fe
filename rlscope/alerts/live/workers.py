"""The workers of a run in progress: how far each has progressed, who is silent, whether the run has ended.

Engines are often killed when training is over. Once every trainer has recorded its stop, a worker without data for the
grace period has therefore ended with the run and raises no alert.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import polars as pl

from rlscope.alerts.buckets import WorkerLife, trained_until_ns
from rlscope.alerts.live.files import LiveFiles
from rlscope.trace.worker_files import Worker

SETTLED_NS: Final = 2_000_000_000
"""A flush writes one table after another; rows this close to its end may be in the next flush."""
GIVEN_UP_NS: Final = 600_000_000_000
"""Without data from any worker for this long, the run is over, however it ended."""
PhaseKind = tuple[str, str, str | None]
"""Role, what its workers do, and the reason for waiting; see longest_phases.sql."""
LongestPhases = Mapping[PhaseKind, int]
"""Nanoseconds of the longest phase of each kind that has ended."""
_OPEN_PHASES: Final = {
    **dict.fromkeys(("worker_id", "role"), pl.String),
    "is_over": pl.Boolean,
    **dict.fromkeys(("heard_ns", "last_row_ns"), pl.Int64),
    **dict.fromkeys(("doing", "reason"), pl.String),
    **dict.fromkeys(("version", "age_ns", "longest_ns"), pl.Int64),
}
_ROLES_WITH_ROWS: Final = ("trainer", "sampler", "colocated")


@dataclass(frozen=True, slots=True)
class LiveWorkers:
    """The worker files, and the ends of the rows seen so far."""

    workers: tuple[Worker, ...]
    lives: tuple[WorkerLife, ...]
    last_row_ns: Mapping[str, int]
    """The end of each worker's latest row."""
    complete: frozenset[str]
    """Workers whose rows were all seen, by the count in their file."""
    over: frozenset[str]
    """Workers that have ended: they recorded their stop, were started again, or were killed after training."""

    @classmethod
    def of(cls, workers: Sequence[Worker], files: LiveFiles, now_ns: int, grace_ns: int) -> "LiveWorkers":
        """These workers, with the files seen since their files were read."""
        lives = tuple(_life(worker, files.last_ns) for worker in workers)
        trained = trained_until_ns(lives) is not None
        return cls(
            workers=tuple(workers),
            lives=lives,
            over=frozenset(
                life.worker_id for life in lives if life.is_over or (trained and now_ns - life.last_ns >= grace_ns)
            ),
            last_row_ns=dict(files.last_ns),
            complete=frozenset(each.worker_id for each in workers if files.is_complete(each)),
        )

    @property
    def start_ns(self) -> int | None:
        """Start of the first worker, UTC epoch."""
        return min((life.start_ns for life in self.lives), default=None)

    @property
    def newest_ns(self) -> int | None:
        """The end of the latest row of any worker."""
        return max(self.last_row_ns.values(), default=None)

    @property
    def end_ns(self) -> int | None:
        """When the last worker ended; None while one is running."""
        return self._last_ns if self.lives and len(self.over) == len(self.lives) else None

    @property
    def until_ns(self) -> int | None:
        """The end of the run, or when the watch gives up without further data; None without workers."""
        if not self.lives:
            return None
        return self._last_ns + GIVEN_UP_NS if self.end_ns is None else self.end_ns

    @property
    def dropped_rows(self) -> int:
        """Rows dropped by capture, as counted by the workers."""
        return sum(count for worker in self.workers for count in worker.dropped.values())

    @property
    def kv_capacity_tokens(self) -> dict[str, int]:
        """By engine; missing if not recorded."""
        return {each.worker_id: tokens for each in self.workers if (tokens := each.kv_capacity_tokens or 0) > 0}

    def open_phases(self, longest_ns: LongestPhases) -> pl.DataFrame:
        """Return the answer to the query of that name for the workers as they are now."""
        rows: list[dict[str, object]] = []
        for worker, life in zip(self.workers, self.lives, strict=True):
            known: dict[str, object] = {
                "worker_id": life.worker_id,
                "role": life.role,
                "is_over": life.worker_id in self.over,
                "heard_ns": life.last_ns,
                "last_row_ns": self.last_row_ns.get(life.worker_id),
            }
            for each in sorted(worker.open, key=lambda each: -each.age_ns):
                kind = (life.role, each.doing, each.reason)
                rows.append({**known, **each._asdict(), "longest_ns": longest_ns.get(kind)})
            if not worker.open:
                rows.append(known)
        return pl.DataFrame(rows, schema=_OPEN_PHASES)

    def due_ns(self, now_ns: int, grace_ns: int) -> int | None:
        """Up to when all data has arrived: from every worker, or because the grace period is over."""
        if not self.lives:
            return None
        frontiers = [self._frontier_ns(*pair, now_ns) for pair in zip(self.workers, self.lives, strict=True)]
        return max(min(frontiers), now_ns - grace_ns)

    def has_ended(self, now_ns: int, grace_ns: int) -> bool:
        """Whether no more data will come: all workers ended, with rows arrived or overdue, or all are silent."""
        if not self.lives:
            return False
        if self.end_ns is not None:
            return len(self.complete) == len(self.lives) or now_ns - self.end_ns >= grace_ns
        return now_ns - self._last_ns >= GIVEN_UP_NS

    def since(self, since_ns: int) -> Sequence[Worker]:
        """The workers as if they had started no earlier than since_ns."""
        return [
            replace(worker, started_ns=max(life.start_ns, since_ns), last_flush_ns=life.last_ns)
            for worker, life in zip(self.workers, self.lives, strict=True)
        ]

    @property
    def _last_ns(self) -> int:
        """When the last data arrived from any worker."""
        return max(life.last_ns for life in self.lives)

    def _frontier_ns(self, worker: Worker, life: WorkerLife, now_ns: int) -> int:
        """Up to when all rows of a worker have arrived. Spans still open have no row yet."""
        if life.worker_id not in self.complete:
            return life.start_ns
        if life.worker_id in self.over:
            return now_ns
        until_ns = life.start_ns if worker.last_flush_ns is None else worker.last_flush_ns
        if worker.role in _ROLES_WITH_ROWS:
            until_ns = min(until_ns, self.last_row_ns.get(life.worker_id, life.start_ns))
        return until_ns - SETTLED_NS


def _life(worker: Worker, last_ns: Mapping[str, int]) -> WorkerLife:
    """Return the life of a worker, as worker_extents defines it."""
    ends_ns = [worker.stopped_ns]
    if worker.stopped_ns is None:
        ends_ns = [last_ns.get(worker.worker_id), worker.last_flush_ns]
    last_known_ns = max([worker.started_ns, *(each for each in ends_ns if each is not None)])
    is_over = worker.stopped_ns is not None or worker.is_replaced
    return WorkerLife(worker.worker_id, worker.role, worker.started_ns, last_known_ns, is_over, worker.gpu_count)
