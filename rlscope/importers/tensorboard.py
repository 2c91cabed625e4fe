"""TensorBoard's event files: scalars with their step and the time at which they were written.

A record consists of its length, a checksum of the length, an Event message and a checksum of the message. The checksums
(a masked CRC-32C) are not verified, because a damaged record does not parse, or has no scalar. Newer writers put a
scalar into a tensor. Format:
https://github.com/tensorflow/tensorboard/blob/master/tensorboard/compat/proto/event.proto.
"""

from collections.abc import Iterator
from pathlib import Path
from struct import unpack
from typing import Final

from rlscope.importers.importer import ImportSource
from rlscope.importers.protobuf import LARGEST_RECORD, BrokenMessageError, fields, messages, real, signed, text
from rlscope.importers.quantities import epoch_ns
from rlscope.importers.rows import Carrier, MetricRow, Tally, joined_by_step

_LENGTH_BYTES: Final = 12
_CHECKSUM_BYTES: Final = 4
_WALL_TIME, _STEP, _SUMMARY, _VALUE = 1, 2, 5, 1
_TAG, _SIMPLE_VALUE, _TENSOR = 1, 2, 8
_TENSOR_VALUES: Final = (4, 5, 6)
"""Its bytes, its floats and its doubles, which are read if there is only one."""
_EVENT_FILE: Final = b"brain.Event:"


def _rows(path: Path, tally: Tally) -> Iterator[MetricRow]:
    """Yield one row per step: writers add each scalar in its own event."""
    return joined_by_step(_events(path, tally))


def _events(path: Path, tally: Tally) -> Iterator[MetricRow]:
    for record in _records(path, tally):
        try:
            event = _event(record)
        except BrokenMessageError:
            tally.bad_lines += 1
        else:
            if event.values:
                yield event


def _event(record: bytes) -> MetricRow:
    held, values = dict(fields(record)), dict[str, float]()
    for value in messages(held.get(_SUMMARY, 0), _VALUE):
        values.update(_scalar(value))
    return MetricRow(epoch_ns(real(held.get(_WALL_TIME, 0))), signed(held.get(_STEP, 0)), values)


def _scalar(message: bytes) -> dict[str, float]:
    held = dict(fields(message))
    if isinstance(tensor := held.get(_TENSOR), bytes):
        held[_SIMPLE_VALUE] = next((value for number, value in fields(tensor) if number in _TENSOR_VALUES), 0)
    tag, value = text(held.get(_TAG, b"")), real(held.get(_SIMPLE_VALUE, 0))
    return {tag: value} if tag and value is not None else {}


def _records(path: Path, tally: Tally) -> Iterator[bytes]:
    with path.open("rb") as file:
        while len(head := file.read(_LENGTH_BYTES)) == _LENGTH_BYTES:
            (length,) = unpack("<Q", head[:8])
            tally.lines += 1
            if length > LARGEST_RECORD:
                # After a corrupt length, the start of the next record cannot be found.
                tally.bad_lines += 1
                return
            record = file.read(length + _CHECKSUM_BYTES)
            tally.count(len(head) + len(record))
            if len(record) < length + _CHECKSUM_BYTES:
                tally.bad_lines += 1
                return
            yield record[:length]


def _fits(source: ImportSource) -> bool:
    return _EVENT_FILE in source.head[:64] or "tfevents" in source.path.name


TENSORBOARD: Final = Carrier("tensorboard", ("events.out.tfevents.*",), _fits, _rows)
