"""The workers of a run in progress: how far each has progressed, who is silent, whether the run has ended.

Engines are often killed when training is over. Once every trainer has recorded its stop, a worker without data for the
grace period has therefore ended with the run and raises no alert.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

import polars as pl

from rlscope.alerts.buckets import WorkerLife, trained_until_ns
from rlscope.alerts.live.files import LiveFiles
from rlscope.input_file import is_integer

SETTLED_NS: Final = 2_000_000_000
"""A flush writes one table after another; rows this close to its end may be in the next flush."""
GIVEN_UP_NS: Final = 600_000_000_000
"""Without data from any worker for this long, the run is over, however it ended."""
PhaseKind = tuple[str, str, str | None]
"""Role, what its workers do, and the reason for waiting; see longest_phases.sql."""
LongestPhases = Mapping[PhaseKind, int]
"""Nanoseconds of the longest phase of each kind that has ended."""
_OPEN: Final = ("doing", "reason", "version", "age_ns")
_OPEN_PHASES: Final = {
    **dict.fromkeys(("worker_id", "role"), pl.String),
    "has_end": pl.Boolean,
    **dict.fromkeys(("heard_ns", "last_row_ns"), pl.Int64),
    **dict.fromkeys(("doing", "reason"), pl.String),
    **dict.fromkeys(("version", "age_ns", "longest_ns"), pl.Int64),
}
_ROLES_WITH_ROWS: Final = ("trainer", "sampler", "colocated")


@dataclass(frozen=True, slots=True)
class LiveWorkers:
    """The worker files, and the ends of the rows seen so far."""

    documents: tuple[Mapping[str, object], ...]
    lives: tuple[WorkerLife, ...]
    last_row_ns: Mapping[str, int]
    """The end of each worker's latest row."""
    complete: frozenset[str]
    """Workers whose rows were all seen, by the count in their file."""
    over: frozenset[str]
    """Workers that have ended: they recorded their stop, or were killed after training."""

    @classmethod
    def of(
        cls,
        documents: Sequence[Mapping[str, object]],
        files: LiveFiles,
        last_ns: Mapping[str, int],
        now_ns: int,
        grace_ns: int,
    ) -> "LiveWorkers":
        """The workers of these documents, with the files seen since the documents were read, and when each one's rows
        end.
        """
        lives = tuple(_life(document, last_ns) for document in documents)
        trained = trained_until_ns(lives) is not None
        return cls(
            documents=tuple(documents),
            lives=lives,
            over=frozenset(
                life.worker_id for life in lives if life.has_end or (trained and now_ns - life.last_ns >= grace_ns)
            ),
            last_row_ns=dict(last_ns),
            complete=frozenset(str(each["worker_id"]) for each in documents if files.is_complete(each)),
        )

    @property
    def start_ns(self) -> int | None:
        """Start of the first worker, UTC epoch."""
        return min((life.start_ns for life in self.lives), default=None)

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
        return sum(_counts(document, "dropped") for document in self.documents)

    @property
    def kv_capacity_tokens(self) -> dict[str, int]:
        """By engine; missing if not recorded."""
        found = {str(each["worker_id"]): each.get("kv_capacity_tokens") for each in self.documents}
        return {name: tokens for name, tokens in found.items() if is_integer(tokens) and tokens > 0}

    def open_phases(self, longest_ns: LongestPhases) -> pl.DataFrame:
        """Return the answer to the query of that name for the workers as they are now."""
        rows: list[dict[str, object]] = []
        for document, life in zip(self.documents, self.lives, strict=True):
            known = {
                "worker_id": life.worker_id,
                "role": life.role,
                "has_end": life.worker_id in self.over,
                "heard_ns": life.last_ns,
                "last_row_ns": self.last_row_ns.get(life.worker_id),
            }
            entries = cast("Sequence[Mapping[str, object]]", document.get("open") or [{}])
            for each in sorted(entries, key=lambda each: -cast("int", each.get("age_ns", 0))):
                kind = cast("PhaseKind", (life.role, each.get("doing"), each.get("reason")))
                rows.append({**known, **{name: each.get(name) for name in _OPEN}, "longest_ns": longest_ns.get(kind)})
        return pl.DataFrame(rows, schema=_OPEN_PHASES)

    def due_ns(self, now_ns: int, grace_ns: int) -> int | None:
        """Up to when all data has arrived: from every worker, or because the grace period is over."""
        if not self.lives:
            return None
        frontiers = [self._frontier_ns(*pair, now_ns) for pair in zip(self.documents, self.lives, strict=True)]
        return max(min(frontiers), now_ns - grace_ns)

    def has_ended(self, now_ns: int, grace_ns: int) -> bool:
        """Whether no more data will come: all workers ended, with rows arrived or overdue, or all are silent."""
        if not self.lives:
            return False
        if self.end_ns is not None:
            return len(self.complete) == len(self.lives) or now_ns - self.end_ns >= grace_ns
        return now_ns - self._last_ns >= GIVEN_UP_NS

    def since(self, since_ns: int) -> Sequence[Mapping[str, object]]:
        """The documents, with workers starting no earlier than since_ns."""
        return [
            {**document, "started_ns": max(life.start_ns, since_ns), "last_flush_ns": life.last_ns}
            for document, life in zip(self.documents, self.lives, strict=True)
        ]

    @property
    def _last_ns(self) -> int:
        """When the last data arrived from any worker."""
        return max(life.last_ns for life in self.lives)

    def _frontier_ns(self, document: Mapping[str, object], life: WorkerLife, now_ns: int) -> int:
        """Up to when all rows of a worker have arrived. Spans still open have no row yet."""
        if life.worker_id not in self.complete:
            return life.start_ns
        if life.worker_id in self.over:
            return now_ns
        flushed_ns = document.get("last_flush_ns")
        until_ns = flushed_ns if is_integer(flushed_ns) else life.start_ns
        if document.get("role") in _ROLES_WITH_ROWS:
            until_ns = min(until_ns, self.last_row_ns.get(life.worker_id, life.start_ns))
        return until_ns - SETTLED_NS


def _life(document: Mapping[str, object], last_ns: Mapping[str, int]) -> WorkerLife:
    """Return the life of a worker, as worker_extents defines it."""
    worker_id, role = str(document["worker_id"]), str(document["role"])
    start_ns, stopped_ns = document["started_ns"], document.get("stopped_ns")
    gpus = document["gpu_count"]
    assert is_integer(start_ns)
    heard_ns = [last_ns.get(worker_id), document.get("last_flush_ns")]
    ends_ns = [stopped_ns] if is_integer(stopped_ns) else [each for each in heard_ns if is_integer(each)]
    return WorkerLife(
        worker_id, role, start_ns, max([start_ns, *ends_ns]), is_integer(stopped_ns), gpus if is_integer(gpus) else 0
    )


def _counts(document: Mapping[str, object], key: str) -> int:
    counts = document.get(key)
    if not isinstance(counts, dict):
        return 0
    found = [count for count in counts.values() if is_integer(count) and count > 0]  # pyright: ignore[reportUnknownVariableType]
    return sum(found)
