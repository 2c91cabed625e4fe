"""Reads a Perfetto trace back with the package's classes, as the format says that a reader has to."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

proto: Any = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")


@dataclass(slots=True)
class ReadSlice:
    """A slice or, without a length, an instant."""

    process: str
    row: str
    name: str
    category: str
    start_ns: int
    end_ns: int | None
    details: dict[str, Any]
    starts: list[int]
    ends: list[int]


@dataclass(slots=True)
class ReadTrace:
    """What a trace holds."""

    slices: list[ReadSlice] = field(default_factory=list)
    counters: dict[tuple[str, str], list[tuple[int, float]]] = field(default_factory=dict)
    units: dict[tuple[str, str], str] = field(default_factory=dict)
    labels: dict[str, list[str]] = field(default_factory=dict)
    packets: list[Any] = field(default_factory=list)

    def row(self, row: str, process: str | None = None) -> list[ReadSlice]:
        """The slices of a row, by their start."""
        found = [each for each in self.slices if each.row == row and process in (None, each.process)]
        return sorted(found, key=lambda each: (each.start_ns, each.name))

    def state_ns(self) -> Counter[tuple[str, str, str | None]]:
        """Nanoseconds by worker, state and reason."""
        totals: Counter[tuple[str, str, str | None]] = Counter()
        for each in self.row("state"):
            totals[each.process, each.name, each.details.get("reason")] += each.end_ns - each.start_ns
        return totals


def read_trace(path: Path, *, is_cut: bool = False) -> ReadTrace:
    """Read a file; fails where a packet uses what the sequence has not defined, or where time runs backwards.

    is_cut: whether slices may lack an end.
    """
    message = proto.Trace()
    message.ParseFromString(path.read_bytes())
    reader = _Reader()
    for packet in message.packet:
        reader.take(packet)
    assert is_cut or not any(reader.open.values()), "a slice that does not end"
    reader.trace.packets = list(message.packet)
    return reader.trace


class _Reader:
    def __init__(self) -> None:
        self.trace = ReadTrace()
        self.open: dict[int, list[ReadSlice]] = {}
        self._processes: dict[int, str] = {}
        self._rows: dict[int, tuple[str, str]] = {}
        self._names: dict[tuple[str, int], str] = {}
        self._last_ns: dict[int, int] = {}

    def take(self, packet: Any) -> None:
        sequence = packet.trusted_packet_sequence_id
        assert sequence, "a packet of no sequence"
        assert packet.timestamp >= self._last_ns.get(sequence, 0), "time runs backwards"
        assert packet.sequence_flags == (2 if sequence in self._last_ns else 1)
        self._last_ns[sequence] = packet.timestamp
        for kind in ("event_names", "event_categories", "debug_annotation_names"):
            for each in getattr(packet.interned_data, kind):
                assert (kind, each.iid) not in self._names
                self._names[kind, each.iid] = each.name
        if packet.HasField("track_descriptor"):
            self._declare(packet.track_descriptor)
        if packet.HasField("track_event"):
            self._event(packet.timestamp, packet.track_event)

    def _declare(self, track: Any) -> None:
        assert track.uuid not in self._processes | self._rows
        if track.HasField("process"):
            self._processes[track.uuid] = track.process.process_name
            self.trace.labels[track.process.process_name] = list(track.process.process_labels)
            return
        self._rows[track.uuid] = (self._processes[track.parent_uuid], track.name)
        if track.HasField("counter"):
            self.trace.units[self._rows[track.uuid]] = track.counter.unit_name

    def _event(self, at_ns: int, event: Any) -> None:
        place = self._rows[event.track_uuid]
        kind = proto.TrackEvent.Type.Name(event.type)
        if kind == "TYPE_COUNTER":
            value = event.counter_value if event.HasField("counter_value") else event.double_counter_value
            self.trace.counters.setdefault(place, []).append((at_ns, value))
        elif kind == "TYPE_SLICE_END":
            self.open[event.track_uuid].pop().end_ns = at_ns
        else:
            found = self._slice(at_ns, event, place)
            self.trace.slices.append(found)
            if kind == "TYPE_SLICE_BEGIN":
                running = self.open.setdefault(event.track_uuid, [])
                assert not running, "a slice begins inside another one of its track"
                running.append(found)

    def _slice(self, at_ns: int, event: Any, place: tuple[str, str]) -> ReadSlice:
        name = event.name or self._names["event_names", event.name_iid]
        (category,) = (self._names["event_categories", number] for number in event.category_iids)
        details = {
            self._names["debug_annotation_names", each.name_iid]: getattr(each, each.WhichOneof("value"))
            for each in event.debug_annotations
        }
        flows = list(event.flow_ids), list(event.terminating_flow_ids)
        return ReadSlice(*place, name, category, at_ns, None, details, *flows)
