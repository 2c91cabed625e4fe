"""Timeline events of a run as one stream in the order of time, read one page at a time. Knows no file format.

Every worker is a process with rows: its states as the ledger counts them, its weight updates, its counters, and the
samples that it generated. The run itself is a process too, with its optimizer steps, its queues and the staleness of
the tokens of each step. A publication of weights leads to its application by each engine: that is a flow.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush, merge
from itertools import count
from typing import Final, Literal, NamedTuple

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


class Event(NamedTuple):
    """One event. Fields that its kind does not use are empty."""

    at_ns: int
    order: int
    kind: Literal["begin", "end", "instant", "counter"]
    track: Track
    name: str = ""
    category: str = ""
    is_common: bool = False
    """Whether many events have this name."""
    details: Mapping[str, Value] = {}
    starts: tuple[int, ...] = ()
    """The flows, from a publication to its applications, that start here."""
    ends: int | None = None
    """The flow that ends here."""
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
    name: str
    category: str
    is_common: bool
    details: Mapping[str, Value]
    starts: tuple[int, ...] = ()
    ends: int | None = None
    order: int = _BEGIN


@dataclass(slots=True)
class EventTimeline:
    """Events of an open run within an interval, and their tracks."""

    run: OpenRun
    stretch: TimeRange
    left_out_segments: int = 0
    """Segments of samples without a start, known once the samples were read."""
    _uuids: Iterator[int] = field(default_factory=lambda: count(1))
    _tracks: dict[tuple[str, ...], Track] = field(default_factory=dict[tuple[str, ...], Track])
    _lanes: dict[tuple[int, str], list[tuple[int, Track]]] = field(
        default_factory=dict[tuple[int, str], list[tuple[int, Track]]]
    )
    """The free tracks of each row, the first one on top."""
    _lane_counts: dict[tuple[int, str], int] = field(default_factory=dict[tuple[int, str], int])
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
        return self._process("", f"run {self.run.run_id}", ())

    def _name_processes(self) -> None:
        self.run_track()
        devices = {row["worker_id"]: row for row in ask(self.run, "worker_devices").iter_rows(named=True)}
        for row in ask(self.run, "worker_extents").iter_rows(named=True):
            if self.stretch.shows(row["worker_id"]):
                device = devices[row["worker_id"]]["device_name"]
                labels = (
                    row["role"],
                    row["host"],
                    fmt.counted(row["gpu_count"], "GPU", "GPUs"),
                    *([device] if device else []),
                )
                self._process(row["worker_id"], row["worker_id"], labels)

    def _process(self, worker_id: str, name: str, labels: tuple[str, ...]) -> Track:
        key = (worker_id,)
        if key not in self._tracks:
            self._tracks[key] = Track(next(self._uuids), name, labels=labels)
        return self._tracks[key]

    def _worker(self, worker_id: str) -> Track:
        return self._process(worker_id, worker_id, ())

    def _counter(self, process: Track, name: str, unit: Unit) -> Track:
        key = (str(process.uuid), name)
        if key not in self._tracks:
            self._tracks[key] = Track(next(self._uuids), name, process, unit)
        return self._tracks[key]

    def _lane(self, process: Track, row: str) -> tuple[int, Track]:
        """Take the first free track of a row."""
        key = (process.uuid, row)
        free = self._lanes.setdefault(key, [])
        if not free:
            place = self._lane_counts.get(key, 0)
            self._lane_counts[key] = place + 1
            heappush(free, (place, Track(next(self._uuids), row, process)))
        return heappop(free)

    def _slices(self, slices: Iterable[_Slice]) -> Iterator[Event]:
        """The begin and the end of each slice, by time; slices come by their start and are cut to the stretch.

        One without length is an instant.
        """
        from_ns, to_ns = self.stretch.from_ns, self.stretch.to_ns
        running: list[tuple[int, int, int, Track, list[tuple[int, Track]]]] = []
        for each in slices:
            if each.start_ns >= to_ns:
                break
            start_ns, end_ns = max(each.start_ns, from_ns), min(each.end_ns, to_ns)
            if end_ns < start_ns or (end_ns == start_ns and each.end_ns > each.start_ns):
                continue
            while running and running[0][0] <= start_ns:
                yield _ended(running)
            place, track = self._lane(each.process, each.row)
            free, is_slice = self._lanes[each.process.uuid, each.row], end_ns > start_ns
            yield Event(
                start_ns, each.order, "begin" if is_slice else "instant", track, each.name, each.category,
                each.is_common, each.details, each.starts, each.ends,
            )  # fmt: skip
            if is_slice:
                heappush(running, (end_ns, track.uuid, place, track, free))
            else:
                heappush(free, (place, track))
        while running:
            yield _ended(running)

    def _rows(self, question: str, arguments: Mapping[str, Argument]) -> Iterator[dict[str, object]]:
        for page in ask_in_pages(self.run, question, arguments):
            shown = page if self.stretch.workers is None else page.filter(pl.col("worker_id").is_in(self._shown()))
            yield from shown.iter_rows(named=True)

    def _shown(self) -> list[str]:
        return sorted(self.stretch.workers or ())

    def _states(self, arguments: Mapping[str, Argument]) -> Iterator[_Slice]:
        for row in self._rows("state_intervals", arguments):
            state = str(row["state"])
            details = {} if row["reason"] is None else {"reason": row["reason"]}
            yield _slice(self._worker(str(row["worker_id"])), STATES, row, state, state_of(state).kind, True, details)

    def _updates(self, arguments: Mapping[str, Argument]) -> Iterator[_Slice]:
        for row in self._rows("update_phases", arguments):
            worker_id, version, phase = str(row["worker_id"]), _whole(row["version"]), str(row["phase"])
            details = {name: row[name] for name in ("version", "bytes", "paused") if row[name] is not None}
            made = _slice(self._worker(worker_id), UPDATES, row, f"{phase} v{version}", phase, False, details)
            flow = self._flow(version, worker_id)
            if row["is_applied"] and flow in self._flows:
                self._flows.discard(flow)
                made = made._replace(ends=flow)
            yield made._replace(starts=self._led_to(row, version), order=_PUBLICATION if phase == "publish" else _BEGIN)

    def _led_to(self, row: Mapping[str, object], version: int) -> tuple[int, ...]:
        """Yield the flows of a publication: one to each shown engine that starts to apply it in the interval."""
        engines, moments = row["applied_by"], row["applied_at_ns"]
        if not isinstance(engines, list) or not isinstance(moments, list) or _whole(row["start_ns"]) < self._from_ns:
            return ()
        pairs = zip(map(str, engines), map(_whole, moments), strict=True)  # pyright: ignore[reportUnknownArgumentType]
        led = tuple(
            self._flow(version, engine)
            for engine, at_ns in pairs
            if at_ns < self.stretch.to_ns and self.stretch.shows(engine)
        )
        self._flows.update(led)
        return led

    @property
    def _from_ns(self) -> int:
        return self.stretch.from_ns

    def _flow(self, version: int, worker_id: str) -> int:
        place = self._engines.setdefault(worker_id, len(self._engines) + 1)
        return version << _VERSION_BITS | place

    def _steps(self) -> Iterator[_Slice]:
        steps = ask(self.run, "training_steps").sort("start_ns", "step")
        told = ("step", "version_in", "version_out", "samples", "tokens", "response_tokens", "reward_mean")
        for row in steps.iter_rows(named=True):
            details = {name: row[name] for name in told if row[name] is not None}
            yield _slice(self.run_track(), STEPS, row, f"step {row['step']}", "step", False, details)

    def _samples(self, arguments: Mapping[str, Argument]) -> Iterator[_Slice]:
        left_out = self.run.row_counts.get("samples", 0)
        for page in ask_in_pages(self.run, "sample_segments", arguments):
            left_out -= len(page)
            for row in page.iter_rows(named=True):
                if self.stretch.shows(row["worker_id"]):
                    details = {name: value for name, value in row.items() if value is not None and name not in _PLACE}
                    name = f"{row['sample_id']}/{row['segment']}" if row["segment"] else str(row["sample_id"])
                    worker = self._worker(row["worker_id"])
                    yield _slice(worker, SAMPLES, row, name, row["outcome"] or "undelivered", False, details)
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
        if counter == "queue_depth":
            return self._counter(self.run_track(), f"queue_depth {owner}", _COUNTER_UNITS[counter])
        return (
            self._counter(self._worker(owner), counter, _COUNTER_UNITS[counter]) if self.stretch.shows(owner) else None
        )

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


_PLACE: Final = frozenset({"worker_id", "start_ns", "end_ns", "sample_id", "segment"})


def _ended(running: list[tuple[int, int, int, Track, list[tuple[int, Track]]]]) -> Event:
    end_ns, _, place, track, free = heappop(running)
    heappush(free, (place, track))
    return Event(end_ns, _END, "end", track)


def _slice(
    process: Track,
    row: str,
    at: Mapping[str, object],
    name: str,
    category: str,
    is_common: bool,
    details: Mapping[str, object],
) -> _Slice:
    start_ns, end_ns = _whole(at["start_ns"]), _whole(at["end_ns"])
    return _Slice(process, row, start_ns, end_ns, name, category, is_common, details)  # type: ignore[arg-type]


def _whole(value: object) -> int:
    assert isinstance(value, int)
    return value
