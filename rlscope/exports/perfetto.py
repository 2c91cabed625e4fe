"""A run as a Perfetto trace: track events in protobuf, written as they come, in constant memory.

The format asks that packets of one sequence come in the order of time, that each names only what the sequence has
interned before it, and that a slice ends on the track that it began on. All events are one sequence here. Times are
those of the run, nanoseconds since the UTC epoch. See https://perfetto.dev/docs/reference/synthetic-track-event.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypedDict, Unpack

from rlscope import format as fmt
from rlscope.errors import ArgumentError, Bounds, RlscopeError
from rlscope.exports.timeline import ROWS, Event, EventTimeline, Label, TimeRange, Track, Value
from rlscope.importers.join import resolve
from rlscope.text_out import writing
from rlscope.trace.query import ask
from rlscope.trace.store import OpenRun, read_run

if TYPE_CHECKING:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket

DEFAULT_MAX_MB: Final = 500
"""A browser's tab holds a trace of about 1 GB."""
_SEQUENCE: Final = 1
_CLEARED, _NEEDS_STATE = 1, 2
_BATCH_PACKETS: Final = 512
_RESERVED_BYTES: Final = 300_000
"""Space reserved for the packets that are held, and for the notes."""
_TYPES: Final = {
    "begin": "TYPE_SLICE_BEGIN",
    "end": "TYPE_SLICE_END",
    "instant": "TYPE_INSTANT",
    "counter": "TYPE_COUNTER",
}
_NOTES_UUID: Final = 1 << 30
"""Above the tracks of the timeline."""


@dataclass(frozen=True, slots=True)
class PerfettoExport:
    """Written trace file."""

    path: Path
    size_bytes: int
    events: int
    notes: tuple[str, ...]
    """Data that the trace leaves out, one sentence each. The trace holds these notes too."""


class PerfettoOptions(TypedDict, total=False):
    """Part of a run to write, and the maximum size of the file."""

    from_s: float | None
    """Start, in seconds since the run started. None is the run's start."""
    to_s: float | None
    """End, in seconds since the run started. None is the run's end."""
    workers: Sequence[str]
    """Ids of the workers to show. Empty shows all of them."""
    max_mb: int
    """Maximum size of the file, in 10^6 bytes. Later events are left out, and a note says so."""


def export_perfetto(
    path: str | PathLike[str], output: str | PathLike[str], **part: Unpack[PerfettoOptions]
) -> PerfettoExport:
    """Write the timeline of a run as a Perfetto trace.

    Args:
        path: Run folder, or a log or metrics file of a framework.
        output: Trace file to write.
        **part: Part of the run to write, and the maximum size of the file; see `PerfettoOptions`.

    Raises:
        RunFolderError: The folder is not a run, or this version cannot read it.
        ArgumentError: The run has no such interval or worker.
        OutputError: The file cannot be written.
        RlscopeError: The package `perfetto` is not installed.
    """
    _require_perfetto()
    max_mb = part.get("max_mb", DEFAULT_MAX_MB)
    Bounds(1).check("max_mb", max_mb)
    folder, written = resolve(Path(path)), Path(output)

    def export(run: OpenRun) -> PerfettoExport:
        stretch = _stretch(run, part.get("from_s"), part.get("to_s"), part.get("workers", ()))
        with writing(written) as file:
            return _write(run, stretch, file, written, max_mb * 1_000_000)

    return read_run(folder.path, export)


def _require_perfetto() -> None:
    try:
        import perfetto.protos.perfetto.trace.perfetto_trace_pb2  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        raise RlscopeError.of(
            "--perfetto",
            found="no package perfetto",
            expected="the package, which defines the format",
            next_step="Install it: pip install 'rlscope[perfetto]'.",
        ) from error


def _stretch(run: OpenRun, from_s: float | None, to_s: float | None, workers: Sequence[str]) -> TimeRange:
    extents = ask(run, "worker_extents")
    known = extents["worker_id"].to_list()
    for worker_id in workers:
        if worker_id not in known:
            raise ArgumentError.of(
                "--worker", found=repr(worker_id), expected="one of " + ", ".join(known), next_step="Name one of them."
            )
    for name, value in (("--from", from_s), ("--to", to_s)):
        if value is not None and not math.isfinite(value):
            raise ArgumentError.of(
                name,
                found=f"{value:g}",
                expected="seconds since the start of the run",
                next_step="Leave it out for the whole run.",
            )
    start_ns, end_ns = min(extents["start_ns"], default=0), max(extents["end_ns"], default=0)
    from_ns = start_ns if from_s is None else start_ns + round(from_s * 1e9)
    to_ns = end_ns if to_s is None else start_ns + round(to_s * 1e9)
    if not start_ns <= from_ns < to_ns or from_ns >= end_ns:
        raise ArgumentError.of(
            "the part of the run",
            found=f"{from_s or 0:g} s to {fmt.duration((to_ns - start_ns) / 1e9)}",
            expected=f"a part of its {fmt.duration((end_ns - start_ns) / 1e9)}, in seconds since its start",
            next_step="Leave --from and --to out for the whole run.",
        )
    return TimeRange(from_ns, min(to_ns, end_ns), frozenset(workers) or None)


def _write(run: OpenRun, stretch: TimeRange, file: IO[bytes], path: Path, max_bytes: int) -> PerfettoExport:
    timeline, trace = EventTimeline(run, stretch), _TraceFile(file, stretch.from_ns)
    notes: list[str] = []
    for event in timeline.events():
        if trace.size_bytes > max_bytes - _RESERVED_BYTES:
            run_start_ns = min(ask(run, "worker_extents")["start_ns"])
            notes.append(_cut_note(event.at_ns - run_start_ns, stretch.to_ns - run_start_ns, max_bytes))
            break
        trace.write(event)
    if timeline.left_out_segments:
        many = fmt.counted(timeline.left_out_segments, "segment of a sample", "segments of samples")
        notes.append(f"{many} without a recorded start left out.")
    trace.note(notes)
    trace.flush()
    return PerfettoExport(path, trace.size_bytes, trace.events, tuple(notes))


def _cut_note(at_ns: int, to_ns: int, max_bytes: int) -> str:
    at_s = at_ns / 1e9
    return (
        f"cut at {at_s:.3f} s of {to_ns / 1e9:.3f} s: more would not fit {max_bytes / 1e6:g} MB. "
        f"The rest: --from {at_s:.3f}; a larger file: --max-mb."
    )


class _TraceFile:
    """Packets on their way into a file, with the names and tracks that the sequence has defined so far."""

    def __init__(self, file: IO[bytes], start_ns: int) -> None:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

        self._proto = proto
        self._types: dict[str, Any] = {kind: proto.TrackEvent.Type.Value(name) for kind, name in _TYPES.items()}
        self._file = file
        self._batch = proto.Trace()
        self._declared: set[int] = set()
        self._interned: dict[tuple[str, str], int] = {}
        self._last_ns = start_ns
        self.events = 0
        self.size_bytes = 0
        """Bytes written so far, without the packets that are still held."""
        self._begin(start_ns)

    def write(self, event: Event) -> None:
        """Write an event. Events must come in the order of time."""
        self._declare(event.track)
        packet = self._packet(event.at_ns)
        told = packet.track_event
        told.track_uuid = event.track.uuid
        told.type = self._types[event.kind]
        if event.label is not None:
            self._describe(packet, event.label)
        elif isinstance(event.value, int):
            told.counter_value = event.value
        elif event.value is not None:
            told.double_counter_value = event.value
        self.events += 1

    def note(self, sentences: Sequence[str]) -> None:
        """Write sentences about the trace, as events of a separate process at its end."""
        if not sentences:
            return
        track = Track(_NOTES_UUID + 1, "notes", Track(_NOTES_UUID, "rlscope"))
        for sentence in sentences:
            self.write(Event(self._last_ns, 0, "instant", track, Label(sentence, "note")))

    def flush(self) -> None:
        """Write the buffered packets to the file."""
        self.size_bytes += self._file.write(self._batch.SerializeToString())
        self._batch = self._proto.Trace()  # A message that is cleared keeps its memory.

    def _begin(self, start_ns: int) -> None:
        """Write the start of the sequence: its clocks, one of them UTC, and an empty intern table."""
        packet = self._batch.packet.add()
        packet.trusted_packet_sequence_id = _SEQUENCE
        packet.timestamp = start_ns
        clock = self._proto.BUILTIN_CLOCK_BOOTTIME
        packet.clock_snapshot.primary_trace_clock = clock
        for clock_id in (clock, self._proto.BUILTIN_CLOCK_REALTIME):
            packet.clock_snapshot.clocks.add(clock_id=clock_id, timestamp=start_ns)
        packet.sequence_flags = _CLEARED
        packet.first_packet_on_sequence = True
        packet.trace_packet_defaults.timestamp_clock_id = clock

    def _packet(self, at_ns: int) -> "TracePacket":
        if len(self._batch.packet) >= _BATCH_PACKETS:
            self.flush()
        packet = self._batch.packet.add()
        packet.timestamp = self._last_ns = at_ns
        packet.trusted_packet_sequence_id = _SEQUENCE
        packet.sequence_flags = _NEEDS_STATE
        return packet

    def _declare(self, track: Track) -> None:
        """Describe a track, and before it its process, when it is first used."""
        if track.uuid in self._declared:
            return
        self._declared.add(track.uuid)
        if track.parent is not None:
            self._declare(track.parent)
        descriptor = self._packet(self._last_ns).track_descriptor
        descriptor.uuid = track.uuid
        if track.parent is None:
            descriptor.process.pid = track.uuid & 0x7FFFFFFF
            descriptor.process.process_name = track.name
            descriptor.process.process_labels.extend(track.labels)
            descriptor.child_ordering = self._proto.TrackDescriptor.EXPLICIT
            return
        descriptor.name = track.name
        descriptor.parent_uuid = track.parent.uuid
        descriptor.sibling_order_rank = ROWS.index(track.name) if track.name in ROWS else len(ROWS)
        if track.unit is not None:
            descriptor.counter.unit_name = track.unit

    def _describe(self, packet: "TracePacket", label: Label) -> None:
        """Name, category, details and flows of a slice or an instant."""
        told = packet.track_event
        if label.is_common:
            told.name_iid = self._intern(packet, "event_names", label.name)
        else:
            told.name = label.name
        told.category_iids.append(self._intern(packet, "event_categories", label.category))
        for name, value in label.details.items():
            note = told.debug_annotations.add()
            note.name_iid = self._intern(packet, "debug_annotation_names", name)
            _set_value(note, value)
        told.flow_ids.extend(label.starts)
        if label.ends is not None:
            told.terminating_flow_ids.append(label.ends)

    def _intern(self, packet: "TracePacket", kind: str, name: str) -> int:
        """Return the number of a name. The packet that first uses a name defines it."""
        number = self._interned.get((kind, name))
        if number is None:
            number = self._interned[kind, name] = len(self._interned) + 1
            getattr(packet.interned_data, kind).add(iid=number, name=name)
        return number


def _set_value(note: Any, value: Value) -> None:  # noqa: ANN401
    match value:
        case bool():
            note.bool_value = value
        case int():
            note.int_value = value
        case float():
            note.double_value = value
        case _:
            note.string_value = str(value)
