"""Running totals of what was written, for metrics: fed by whole batches on the flush thread, at no cost per event.

Times are innermost: a wait inside a train step counts as wait, not as train. Engine steps are counted beside them.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

from rlscope_otel import schema
from rlscope_otel.worker_file import Identity, Progress

# Upper ends of the staleness buckets: a few series whatever the run does, fine where it matters.
_STALENESS_ENDS = (0, 1, 2, 4, 8, 16, 32)
# Intervals that nothing encloses yet: enough for any nesting, and bounded for a loop that never nests.
_MOST_OPEN = 1024

Values = Sequence[object]
Labels = tuple[str, ...]
"""A state with the reason of a wait, a phase, a queue, an outcome or a table; empty if a metric has one value."""


class _Interval(NamedTuple):
    end_ns: int
    start_ns: int
    state: Labels


class Tallies:
    """Totals since the start of one worker's recording. Read from any thread; what is in a buffer is not in yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, Counter[Labels]] = defaultdict(Counter)
        self._owner: tuple[str, str] | None = None
        self._new: list[_Interval] = []
        self._open: list[_Interval] = []

    def batch(self, table: str, columns: Sequence[Values]) -> None:
        """Take in one batch that was written, its columns in schema order."""
        names = [column.name for column in schema.TABLES[table]]
        by_name = dict(zip(names, columns, strict=True))
        with self._lock:
            self._take(table, by_name)

    def settle(self) -> None:
        """All tables of one flush have been counted, so nested intervals can be separated."""
        with self._lock:
            for interval in sorted(self._new, key=lambda each: (each.end_ns, -each.start_ns)):
                self._settle(interval)
            self._new.clear()

    def report(self, worker_id: str, identity: Identity, progress: Progress) -> None:
        """Take in what a worker says of itself after a flush that was complete."""
        with self._lock:
            self._owner = (progress.run_id or "", worker_id)
            beat_ns = None if progress.stopped_ns is not None else progress.last_flush_ns
            for name, value in (
                ("engine.kv.capacity", identity.kv_capacity_tokens),
                ("worker.gpus", identity.gpu_count),
                ("worker.heartbeat", beat_ns),
            ):
                self._values[name] = Counter() if value is None else Counter({(): value})
            for name, rows in (("rows.dropped", progress.dropped), ("rows.written", progress.rows)):
                self._values[name] = Counter({(table,): count for table, count in rows.items()})

    def values(self, metric: str) -> dict[Labels, int]:
        """The last values or the sums of a metric, by its labels; times are in nanoseconds."""
        with self._lock:
            return dict(self._values[metric])

    def owner(self) -> tuple[str, str] | None:
        """The ids of the run and of the worker at the last complete flush. None before the first."""
        with self._lock:
            return self._owner

    def _take(self, table: str, columns: dict[str, Values]) -> None:
        if table == "engine_steps":
            self._take_engine_steps(columns)
        elif table == "queue_depths":
            self._take_queues(columns)
        elif table == "activities":
            states = zip(cast(Sequence[str], columns["activity"]), columns["reason"], strict=True)
            self._add(columns, ((name,) if reason is None else (name, str(reason)) for name, reason in states))
        elif table == "weight_updates":
            self._take_updates(columns)
        elif table == "deliveries":
            self._values["deliveries"].update((outcome,) for outcome in cast(Sequence[str], columns["outcome"]))
        elif table == "train_steps":
            self._add(columns, [("train",)] * len(columns["step"]))
            self._values["train.steps"][()] += len(columns["step"])
            self._take_staleness(columns["importance"])

    def _take_engine_steps(self, columns: dict[str, Values]) -> None:
        starts, ends = _ints(columns["start_ns"]), _ints(columns["end_ns"])
        busy = cast("Sequence[int | None]", columns["busy_ns"])
        known = [busy_ns for busy_ns in busy if busy_ns is not None]
        if known:
            rows = zip(starts, ends, busy, strict=True)
            is_all = len(known) == len(busy)
            row_ns = sum(ends) - sum(starts) if is_all else sum(e - s for s, e, own_ns in rows if own_ns is not None)
            self._values["worker.time"][("forward_pass",)] += sum(known)
            self._values["worker.time"][("between_passes",)] += row_ns - sum(known)
        self._values["engine.decode"][()] += sum(_ints(columns["decode_tokens"]))
        for name, column in (("running", "running"), ("waiting", "waiting"), ("kv.used", "kv_used_tokens")):
            last = next((value for value in reversed(columns[column]) if value is not None), None)
            if last is not None:
                self._values[f"engine.{name}"][()] = cast(int, last)

    def _take_queues(self, columns: dict[str, Values]) -> None:
        for name in ("depth", "capacity"):
            for queue, value in zip(cast(Sequence[str], columns["queue"]), columns[name], strict=True):
                if value is not None:
                    self._values[f"queue.{name}"][(queue,)] = cast(int, value)

    def _take_updates(self, columns: dict[str, Values]) -> None:
        phases = cast(Sequence[str], columns["phase"])
        # An engine that applies weights without a pause goes on generating: its rows say what it did meanwhile.
        generates, latest = bool(self._values["engine.running"]), self._values["weights.latest"]
        starts, ends, paused = _ints(columns["start_ns"]), _ints(columns["end_ns"]), columns["paused"]
        rows = zip(phases, _ints(columns["version"]), starts, ends, paused, strict=True)
        for phase, version, start_ns, end_ns, pauses in rows:
            self._values["weights.updates"][(phase,)] += 1
            self._values["weights.update.time"][(phase,)] += end_ns - start_ns
            if phase not in schema.UPDATE_PARTS and not (generates and phase == "apply" and pauses is False):
                self._new.append(_Interval(end_ns, start_ns, ("weight_update",)))
            latest[(phase,)] = max(version, latest.get((phase,), version))

    def _take_staleness(self, importance: Values) -> None:
        for moments in importance:
            for staleness, tokens, *_ in cast("Sequence[tuple[int, int, float, float]]", moments or ()):
                self._values["train.staleness"][(bucket_of(staleness),)] += tokens
                self._values["train.token_age"][()] += staleness * tokens

    def _add(self, columns: dict[str, Values], states: Iterable[Labels]) -> None:
        self._new.extend(map(_Interval, _ints(columns["end_ns"]), _ints(columns["start_ns"]), states))

    def _settle(self, interval: _Interval) -> None:
        """Count an interval less those inside it, which ended before it and so were settled before."""
        own_ns = interval.end_ns - interval.start_ns
        while self._open and self._open[-1].start_ns >= interval.start_ns:
            inner = self._open.pop()
            own_ns -= inner.end_ns - inner.start_ns
        self._values["worker.time"][interval.state] += max(0, own_ns)
        self._open.append(interval)
        del self._open[:-_MOST_OPEN]


def bucket_of(staleness: int) -> str:
    """The bucket of a staleness, named as the range it covers: 0, 1, 2, 3-4, 5-8, ..., 33+."""
    start = 0
    for end in _STALENESS_ENDS:
        if staleness <= end:
            return str(end) if start >= end else f"{start}-{end}"
        start = end + 1
    return f"{start}+"


def _ints(values: Values) -> Sequence[int]:
    return cast(Sequence[int], values)
