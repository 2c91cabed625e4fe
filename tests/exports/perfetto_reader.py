"""Reads a Perfetto trace back with the package's classes, as the format says that a reader has to."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

proto: Any = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
INTERNED = ("event_names", "event_categories", "debug_annotation_names")


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
    """What a trace holds. Reading fails where a packet uses what the sequence has not defined."""

    packets: list[Any]
    slices: list[ReadSlice] = field(default_factory=list)
    counters: dict[tuple[str, str], list[tuple[int, float]]] = field(default_factory=dict)
    units: dict[tuple[str, str], str] = field(default_factory=dict)
    labels: dict[str, list[str]] = field(default_factory=dict)
    open: dict[int, ReadSlice] = field(default_factory=dict)
    _processes: dict[int, str] = field(default_factory=dict)
    _rows: dict[int, tuple[str, str]] = field(default_factory=dict)
    _names: dict[tuple[str, int], str] = field(default_factory=dict)

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

    def define(self, packet: Any) -> None:
        """Names and tracks, each once."""
        for kind in INTERNED:
            for each in getattr(packet.interned_data, kind):
                assert (kind, each.iid) not in self._names
                self._names[kind, each.iid] = each.name
        if not packet.HasField("track_descriptor"):
            return
        track = packet.track_descriptor
        assert track.uuid not in self._processes | self._rows
        if track.HasField("process"):
            self._processes[track.uuid] = track.process.process_name
            self.labels[track.process.process_name] = list(track.process.process_labels)
            return
        self._rows[track.uuid] = (self._processes[track.parent_uuid], track.name)
        if track.HasField("counter"):
            self.units[self._rows[track.uuid]] = track.counter.unit_name

    def add(self, at_ns: int, event: Any) -> None:
        """A value of a counter, or an end of a slice."""
        place, kind = self._rows[event.track_uuid], proto.TrackEvent.Type.Name(event.type)
        if kind == "TYPE_COUNTER":
            value = event.counter_value if event.HasField("counter_value") else event.double_counter_value
            self.counters.setdefault(place, []).append((at_ns, value))
        elif kind == "TYPE_SLICE_END":
            self.open.pop(event.track_uuid).end_ns = at_ns
        else:
            self.slices.append(self._slice(at_ns, event, place))
            if kind == "TYPE_SLICE_BEGIN":
                assert event.track_uuid not in self.open, "a slice begins inside another one of its track"
                self.open[event.track_uuid] = self.slices[-1]

    def _slice(self, at_ns: int, event: Any, place: tuple[str, str]) -> ReadSlice:
        name = event.name or self._names["event_names", event.name_iid]
        (category,) = (self._names["event_categories", number] for number in event.category_iids)
        details = {
            self._names["debug_annotation_names", each.name_iid]: getattr(each, each.WhichOneof("value"))
            for each in event.debug_annotations
        }
        flows = list(event.flow_ids), list(event.terminating_flow_ids)
        return ReadSlice(*place, name, category, at_ns, None, details, *flows)


def read_trace(path: Path, *, is_cut: bool = False) -> ReadTrace:
    """Read a file; fails where time runs backwards. is_cut: whether slices may lack an end."""
    trace, last_ns = ReadTrace(list(proto.Trace.FromString(path.read_bytes()).packet)), dict[int, int]()
    for packet in trace.packets:
        sequence = packet.trusted_packet_sequence_id
        assert sequence, "a packet of no sequence"
        assert packet.timestamp >= last_ns.get(sequence, 0), "time runs backwards"
        assert packet.sequence_flags == (2 if sequence in last_ns else 1)
        last_ns[sequence] = packet.timestamp
        trace.define(packet)
        if packet.HasField("track_event"):
            trace.add(packet.timestamp, packet.track_event)
    assert is_cut or not trace.open, "a slice that does not end"
    return trace
