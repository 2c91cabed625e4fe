"""Running totals of what was written, for metrics: fed by whole batches on the flush thread, at no cost per event.

Times are innermost: a wait inside a train step counts as wait, not as train. Engine steps are counted beside them.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

from rlscope_otel import schema
from rlscope_otel.worker_file import Identity, Progress

_NS_PER_S = 1e9
# Upper ends of the staleness buckets: a few series whatever the run does, fine where it matters.
_STALENESS_ENDS = (0, 1, 2, 4, 8, 16, 32)
# Intervals that nothing encloses yet: enough for any nesting, and bounded for a loop that never nests.
_MOST_OPEN = 1024

Values = Sequence[object]


class State(NamedTuple):
    """State of a worker, with the reason if it is a wait."""

    name: str
    reason: str | None = None


class Report(NamedTuple):
    """A worker's report about itself at a flush, as in its file."""

    worker_id: str
    identity: Identity
    progress: Progress


class _Interval(NamedTuple):
    end_ns: int
    start_ns: int
    state: State


class Tallies:
    """Totals since the start of one worker's recording. Read from any thread; what is in a buffer is not in yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ns: dict[State, int] = defaultdict(int)
        self._levels: dict[str, dict[str, int]] = defaultdict(dict)
        """Last values by name and label (a phase, a queue), or the empty label."""
        self._counts: dict[str, Counter[str]] = defaultdict(Counter)
        """Counters, which only grow, by name and label (a phase, an outcome), or the empty label."""
        self._report: Report | None = None
        self._new: list[_Interval] = []
        self._open: list[_Interval] = []

    def batch(self, table: str, columns: Sequence[Values]) -> None:
        """Take in one batch that was written, its columns in schema order."""
        names = [column.name for column in schema.TABLES[table]]
        by_name = dict(zip(names, columns, strict=True))
        with self._lock:
            self._take(table, by_name)

    def flushed(self, report: Report | None = None) -> None:
        """All tables of one flush have been counted, so nested intervals can be separated.

        report: None if part of the flush could not be written; the last values then stay.
        """
        with self._lock:
            self._report = report or self._report
            for interval in sorted(self._new, key=lambda each: (each.end_ns, -each.start_ns)):
                self._settle(interval)
            self._new.clear()

    def seconds(self) -> dict[State, float]:
        """Seconds by state."""
        with self._lock:
            return {state: total_ns / _NS_PER_S for state, total_ns in self._ns.items()}

    def levels(self, name: str) -> dict[str, int]:
        """The last values under a name, by label."""
        with self._lock:
            return dict(self._levels[name])

    def counts(self, name: str) -> dict[str, int]:
        """The sums under a name, by label."""
        with self._lock:
            return dict(self._counts[name])

    def report(self) -> Report | None:
        """Return the worker's report at its last complete flush. None before the first."""
        with self._lock:
            return self._report

    def _take(self, table: str, columns: dict[str, Values]) -> None:
        if table == "engine_steps":
            self._take_engine_steps(columns)
        elif table == "queue_depths":
            self._take_queues(columns)
        elif table == "activities":
            names, reasons = cast(Sequence[str], columns["activity"]), cast(Sequence[str | None], columns["reason"])
            self._add(columns, (State(name, reason) for name, reason in zip(names, reasons, strict=True)))
        elif table == "weight_updates":
            self._take_updates(columns)
        elif table == "deliveries":
            self._counts["deliveries"].update(cast(Sequence[str], columns["outcome"]))
        elif table == "train_steps":
            self._add(columns, [State("train")] * len(columns["step"]))
            self._counts["train_steps"][""] += len(columns["step"])
            self._take_staleness(columns["importance"])

    def _take_engine_steps(self, columns: dict[str, Values]) -> None:
        starts, ends = _ints(columns["start_ns"]), _ints(columns["end_ns"])
        busy = cast("Sequence[int | None]", columns["busy_ns"])
        known = [busy_ns for busy_ns in busy if busy_ns is not None]
        if known:
            rows = zip(starts, ends, busy, strict=True)
            is_all = len(known) == len(busy)
            row_ns = sum(ends) - sum(starts) if is_all else sum(e - s for s, e, own_ns in rows if own_ns is not None)
            self._ns[State("forward_pass")] += sum(known)
            self._ns[State("between_passes")] += row_ns - sum(known)
        self._counts["decode_tokens"][""] += sum(_ints(columns["decode_tokens"]))
        for name in ("running", "waiting", "kv_used_tokens"):
            last = next((value for value in reversed(columns[name]) if value is not None), None)
            if last is not None:
                self._levels[name][""] = cast(int, last)

    def _take_queues(self, columns: dict[str, Values]) -> None:
        queues = cast(Sequence[str], columns["queue"])
        self._levels["queue_depth"].update(zip(queues, _ints(columns["depth"]), strict=True))
        for queue, capacity in zip(queues, cast("Sequence[int | None]", columns["capacity"]), strict=True):
            if capacity is not None:
                self._levels["queue_capacity"][queue] = capacity

    def _take_updates(self, columns: dict[str, Values]) -> None:
        phases = cast(Sequence[str], columns["phase"])
        # An engine that applies weights without a pause goes on generating: its rows say what it did meanwhile.
        generates = bool(self._levels["running"])
        starts, ends, paused = _ints(columns["start_ns"]), _ints(columns["end_ns"]), columns["paused"]
        rows = zip(phases, _ints(columns["version"]), starts, ends, paused, strict=True)
        for phase, version, start_ns, end_ns, pauses in rows:
            self._counts["updates"][phase] += 1
            self._counts["update_ns"][phase] += end_ns - start_ns
            if phase not in schema.UPDATE_PARTS and not (generates and phase == "apply" and pauses is False):
                self._new.append(_Interval(end_ns, start_ns, State("weight_update")))
            self._levels["version"][phase] = max(version, self._levels["version"].get(phase, version))

    def _take_staleness(self, importance: Values) -> None:
        for moments in importance:
            for staleness, tokens, *_ in cast("Sequence[tuple[int, int, float, float]]", moments or ()):
                self._counts["staleness"][bucket_of(staleness)] += tokens
                self._counts["token_age"][""] += staleness * tokens

    def _add(self, columns: dict[str, Values], states: Iterable[State]) -> None:
        self._new.extend(map(_Interval, _ints(columns["end_ns"]), _ints(columns["start_ns"]), states))

    def _settle(self, interval: _Interval) -> None:
        """Count an interval less those inside it, which ended before it and so were settled before."""
        own_ns = interval.end_ns - interval.start_ns
        while self._open and self._open[-1].start_ns >= interval.start_ns:
            inner = self._open.pop()
            own_ns -= inner.end_ns - inner.start_ns
        self._ns[interval.state] += max(0, own_ns)
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
