"""Timeline events of a run as one stream in the order of time, read one page at a time. Knows no file format.

Every worker is a process with rows: its states as the ledger counts them, its weight updates, its counters, and the
samples that it generated. The run itself is a process too, with its optimizer steps, its queues and the staleness of
the tokens of each step. A publication of weights leads to its application by each engine: that is a flow.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush, merge
from itertools import count
from typing import Any, Final, Literal, NamedTuple

import polars as pl

from rlscope import format as fmt
from rlscope.reports.text.states import state_of
from rlscope.trace.query import Argument, ask, ask_in_pages, standard_arguments
from rlscope.trace.store import OpenRun

Value = str | int | float | bool | None
Unit = Literal["requests", "tokens", "samples", "versions"]
STATES: Final = "state"
UPDATES: Final = "weight updates"
SAMPLES: Final = "samples"
STEPS: Final = "optimizer steps"
ROWS: Final = (STATES, UPDATES, STEPS, "batch_size", "waiting_requests", "kv_used_tokens", SAMPLES)
"""The rows of a process from the top; queues and staleness follow."""
_COUNTER_UNITS: Final[Mapping[str, Unit]] = {
    "batch_size": "requests",
    "waiting_requests": "requests",
    "kv_used_tokens": "tokens",
    "queue_depth": "samples",
}
_PLACE: Final = frozenset({"worker_id", "start_ns", "end_ns", "sample_id", "segment"})
"""Columns of a segment that its place and name show."""
_STALENESS: Final = ("staleness_mean", "staleness_p95", "staleness_max")
_END, _PUBLICATION, _BEGIN, _COUNT = range(4)
"""Order of events at the same time: ends come first, and a publication comes before its applications."""
_VERSION_BITS: Final = 20
"""A flow's number is its version, then this many bits for the engine."""


@dataclass(frozen=True, slots=True, eq=False)
class Track:
    """A process, or one of its rows. A row of slices that overlap has several tracks of one name."""

    uuid: int
    """Number of the track, from 1 in the order of first use."""
    name: str
    parent: "Track | None" = None
    """Process of the track. None if the track is a process."""
    unit: Unit | None = None
    """Unit of a counter. None for slices."""
    labels: tuple[str, ...] = ()
    """Further facts about a process."""


class Label(NamedTuple):
    """Text of a slice or an instant, and its flows."""

    name: str
    category: str
    is_common: bool = False
    """Whether many events have this name."""
    details: Mapping[str, Value] = {}
    starts: tuple[int, ...] = ()
    """The flows, from a publication to its applications, that start here."""
    ends: int | None = None
    """The flow that ends here."""


class Event(NamedTuple):
    """One event. The begin of a slice and an instant have a label, a counter has a value."""

    at_ns: int
    order: int
    kind: Literal["begin", "end", "instant", "counter"]
    track: Track
    label: Label | None = None
    value: float | None = None


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Part of a run to show."""

    from_ns: int
    to_ns: int
    workers: frozenset[str] | None = None
    """Ids of the workers to show. None shows all."""

    def shows(self, worker_id: str) -> bool:
        """Whether a worker is shown."""
        return self.workers is None or worker_id in self.workers


class _Slice(NamedTuple):
    process: Track
    row: str
    start_ns: int
    end_ns: int
    label: Label
    order: int = _BEGIN


@dataclass(slots=True)
class EventTimeline:
    """Events of an open run within an interval, and their tracks."""

    run: OpenRun
    stretch: TimeRange
    left_out_segments: int = 0
    """Segments of samples without a start, known once the samples were read."""
    _tracks: dict[tuple[object, ...], Track] = field(default_factory=dict[tuple[object, ...], Track])
    _engines: dict[str, int] = field(default_factory=dict[str, int])
    _flows: set[int] = field(default_factory=set[int])

    def events(self) -> Iterator[Event]:
        """Yield every event, by time. Raises UnreadableDataError if a file is damaged."""
        arguments = standard_arguments(self.run)
        self._name_processes()
        streams = (
            self._slices(self._states(arguments)),
            self._slices(self._updates(arguments)),
            self._slices(self._steps()),
            self._counters(arguments),
            self._staleness(),
            self._slices(self._samples(arguments)),
        )
        return merge(*streams, key=lambda event: (event.at_ns, event.order))

    def run_track(self) -> Track:
        """The process that stands for the run itself."""
        return self._track((), f"run {self.run.run_id}")

    def _name_processes(self) -> None:
        self.run_track()
        extents = ask(self.run, "worker_extents")
        devices = ask(self.run, "worker_devices").select("worker_id", "device_name")
        for row in extents.join(devices, on="worker_id", how="left", maintain_order="left").iter_rows(named=True):
            if self.stretch.shows(row["worker_id"]):
                gpus = fmt.counted(row["gpu_count"], "GPU")
                labels = (row["role"], row["host"], gpus, row["device_name"])
                self._track((row["worker_id"],), row["worker_id"], labels=tuple(filter(None, labels)))

    def _track(
        self,
        key: tuple[object, ...],
        name: str,
        parent: Track | None = None,
        unit: Unit | None = None,
        labels: tuple[str, ...] = (),
    ) -> Track:
        if key not in self._tracks:
            self._tracks[key] = Track(len(self._tracks) + 1, name, parent, unit, labels)
        return self._tracks[key]

    def _worker(self, worker_id: str) -> Track:
        return self._track((worker_id,), worker_id)

    def _counter(self, process: Track, name: str, unit: Unit) -> Track:
        return self._track((process, name), name, process, unit)

    def _slices(self, slices: Iterable[_Slice]) -> Iterator[Event]:
        """The begin and the end of each slice, by time; slices come by their start and are cut to the stretch.

        Slices of a row that overlap are on several tracks; each takes the first free one. One without length is an
        instant.
        """
        from_ns, to_ns = self.stretch.from_ns, self.stretch.to_ns
        places: defaultdict[tuple[Track, str], Iterator[int]] = defaultdict(count)
        free: defaultdict[tuple[Track, str], list[int]] = defaultdict(list)
        running: list[tuple[int, int, Track, int, list[int]]] = []
        for each in slices:
            if each.start_ns >= to_ns:
                break
            start_ns, end_ns = max(each.start_ns, from_ns), min(each.end_ns, to_ns)
            if end_ns < start_ns or (end_ns == start_ns and each.end_ns > each.start_ns):
                continue
            while running and running[0][0] <= start_ns:
                yield _ended(running)
            row, is_slice = (each.process, each.row), end_ns > start_ns
            place = heappop(free[row]) if free[row] else next(places[row])
            track = self._track((*row, place), each.row, each.process)
            yield Event(start_ns, each.order, "begin" if is_slice else "instant", track, each.label)
            if is_slice:
                heappush(running, (end_ns, track.uuid, track, place, free[row]))
            else:
                heappush(free[row], place)
        while running:
            yield _ended(running)

    def _rows(self, question: str, arguments: Mapping[str, Argument]) -> Iterator[dict[str, Any]]:
        for page in ask_in_pages(self.run, question, arguments):
            for row in page.iter_rows(named=True):
                if self.stretch.shows(row["worker_id"]):
                    yield row

    def _states(self, arguments: Mapping[str, Argument]) -> Iterator[_Slice]:
        for row in self._rows("state_intervals", arguments):
            details = {} if row["reason"] is None else {"reason": row["reason"]}
            label = Label(row["state"], state_of(row["state"]).kind, is_common=True, details=details)
            yield _slice(self._worker(row["worker_id"]), STATES, row, label)

    def _updates(self, arguments: Mapping[str, Argument]) -> Iterator[_Slice]:
        for row in self._rows("update_phases", arguments):
            worker_id, version, phase = row["worker_id"], row["version"], row["phase"]
            flow: int | None = self._flow(version, worker_id)
            if row["is_applied"] and flow in self._flows:
                self._flows.discard(flow)
            else:
                flow = None
            details = _known(row, "version", "bytes", "paused")
            starts = self._led_to(row)
            label = Label(f"{phase} v{version}", phase, details=details, starts=starts, ends=flow)
            made = _slice(self._worker(worker_id), UPDATES, row, label)
            yield made._replace(order=_PUBLICATION if phase == "publish" else _BEGIN)

    def _led_to(self, row: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the flows of a publication: one to each shown engine that starts to apply it in the interval."""
        if row["applied_by"] is None or row["start_ns"] < self.stretch.from_ns:
            return ()
        led = tuple(
            self._flow(row["version"], engine)
            for engine, at_ns in zip(row["applied_by"], row["applied_at_ns"], strict=True)
            if at_ns < self.stretch.to_ns and self.stretch.shows(engine)
        )
        self._flows.update(led)
        return led

    def _flow(self, version: int, worker_id: str) -> int:
        place = self._engines.setdefault(worker_id, len(self._engines) + 1)
        return version << _VERSION_BITS | place

    def _steps(self) -> Iterator[_Slice]:
        steps = ask(self.run, "training_steps").sort("start_ns", "step")
        told = ("step", "version_in", "version_out", "samples", "tokens", "response_tokens", "reward_mean")
        for row in steps.iter_rows(named=True):
            label = Label(f"step {row['step']}", "step", details=_known(row, *told))
            yield _slice(self.run_track(), STEPS, row, label)

    def _samples(self, arguments: Mapping[str, Argument]) -> Iterator[_Slice]:
        left_out = self.run.row_counts.get("samples", 0)
        for page in ask_in_pages(self.run, "sample_segments", arguments):
            left_out -= len(page)
            for row in page.iter_rows(named=True):
                if self.stretch.shows(row["worker_id"]):
                    details = _known(row, *(name for name in row if name not in _PLACE))
                    name = f"{row['sample_id']}/{row['segment']}" if row["segment"] else row["sample_id"]
                    label = Label(name, row["outcome"] or "undelivered", details=details)
                    yield _slice(self._worker(row["worker_id"]), SAMPLES, row, label)
        self.left_out_segments = left_out

    def _counters(self, arguments: Mapping[str, Argument]) -> Iterator[Event]:
        """Yield the changes of each counter, and its value at the start of the interval."""
        before: dict[Track, int] = {}
        for page in ask_in_pages(self.run, "counter_changes", arguments):
            for counter, owner, at_ns, value in page.iter_rows():
                track = self._track_of(counter, owner)
                if track is None:
                    continue
                if at_ns <= self.stretch.from_ns:
                    before[track] = value
                    continue
                yield from self._first_values(before)
                if at_ns >= self.stretch.to_ns:
                    return
                yield Event(at_ns, _COUNT, "counter", track, value=value)
        yield from self._first_values(before)

    def _track_of(self, counter: str, owner: str) -> Track | None:
        unit = _COUNTER_UNITS[counter]
        if counter == "queue_depth":
            return self._counter(self.run_track(), f"queue_depth {owner}", unit)
        return self._counter(self._worker(owner), counter, unit) if self.stretch.shows(owner) else None

    def _first_values(self, before: dict[Track, int]) -> Iterator[Event]:
        for track, value in before.items():
            yield Event(self.stretch.from_ns, _COUNT, "counter", track, value=value)
        before.clear()

    def _staleness(self) -> Iterator[Event]:
        """Yield the token staleness of each step, at the step's end."""
        ends = ask(self.run, "training_steps").select("step", "end_ns")
        rows = ask(self.run, "token_staleness_by_step").join(ends, on="step").sort("end_ns", "step")
        inside = rows.filter(pl.col("end_ns").is_between(self.stretch.from_ns, self.stretch.to_ns, closed="left"))
        for row in inside.iter_rows(named=True):
            for name in _STALENESS:
                track = self._counter(self.run_track(), name, "versions")
                yield Event(row["end_ns"], _COUNT, "counter", track, value=row[name])


def _ended(running: list[tuple[int, int, Track, int, list[int]]]) -> Event:
    end_ns, _, track, place, free = heappop(running)
    heappush(free, place)
    return Event(end_ns, _END, "end", track)


def _slice(process: Track, row: str, at: Mapping[str, Any], label: Label) -> _Slice:
    return _Slice(process, row, at["start_ns"], at["end_ns"], label)


def _known(row: Mapping[str, Any], *names: str) -> dict[str, Value]:
    return {name: row[name] for name in names if row[name] is not None}
