"""`.wandb` files of W&B and `backup.swanlab` of SwanLab, which their clients write on the machine of the run.

The file is a log of 32 KiB blocks after a header of 7 bytes. A record that reaches the end of a block is split into
parts, each with a CRC-32 of its type and data. A part with a wrong checksum ends its record, not the file. A killed run
leaves a torn last block. The layout is that of LevelDB's log
(https://github.com/google/leveldb/blob/main/doc/log_format.md). W&B's records are messages of wandb_internal.proto,
SwanLab's are JSON objects.
"""

from collections.abc import Callable, Iterator, Mapping
from io import BufferedReader
from itertools import chain
from pathlib import Path
from struct import unpack
from typing import Any, Final
from zlib import crc32

from rlscope.importers.protobuf import LARGEST_RECORD, BrokenMessageError, fields, messages, real, signed, text
from rlscope.importers.quantities import number
from rlscope.importers.rows import (
    Carrier,
    MetricRow,
    Tally,
    begins_with,
    instant_ns,
    joined_by_step,
    mapping,
    parsed_json,
    row_of,
)

_HEADER_BYTES: Final = 7
_BLOCK_BYTES: Final = 32768
_PART_BYTES: Final = 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_HISTORY, _CONFIG, _RUN = 2, 5, 17
_ITEM, _KEY, _NESTED_KEY, _RUN_CONFIG = 1, 1, 2, 4
_JSON, _NUMBER, _INTEGER = 16, 6, 5
_VALUES: Final[Mapping[int, Callable[[int | bytes], Any]]] = {
    _JSON: lambda value: parsed_json(text(value)),
    _NUMBER: real,
    _INTEGER: signed,
}
"""Functions that read the value of an item, by the field that holds it."""


def _wandb_rows(path: Path, tally: Tally) -> Iterator[MetricRow]:
    for record in _records_of_blocks(path, tally):
        try:
            yield from _read_record(record, tally)
        except BrokenMessageError:
            tally.bad_lines += 1


def _read_record(record: bytes, tally: Tally) -> Iterator[MetricRow]:
    yield from filter(None, (row_of(dict(_items(history))) for history in messages(record, _HISTORY)))
    runs = messages(record, _RUN)
    for config in chain(messages(record, _CONFIG), *(messages(run, _RUN_CONFIG) for run in runs)):
        # A later setting of the same name wins. Dotted names are kept unchanged.
        tally.config.update(_items(config))


def _items(message: bytes) -> Iterator[tuple[str, Any]]:
    """Yield names and values of the items of a message; names with several parts are joined by slashes."""
    for item in messages(message, _ITEM):
        parts = [*fields(item)]
        held = dict(parts)
        name = text(held.get(_KEY, 0)) or "/".join(text(value) for part, value in parts if part == _NESTED_KEY)
        yield name, next((read(held[part]) for part, read in _VALUES.items() if part in held), None)


def _swanlab_rows(path: Path, tally: Tally) -> Iterator[MetricRow]:
    return joined_by_step(_scalars(path, tally))


def _scalars(path: Path, tally: Tally) -> Iterator[MetricRow]:
    """Yield each number by itself; other records hold the console, charts and media."""
    for raw in _records_of_blocks(path, tally):
        record = mapping(parsed_json(raw))
        data = mapping(record.get("data"))
        metric = mapping(data.get("metric"))
        value, step = number(metric.get("data")), number(data.get("step"))
        if record.get("model_type") == "Scalar" and value is not None and step is not None:
            yield MetricRow(instant_ns(metric.get("create_time")), step, {str(data.get("key")): value})


def _records_of_blocks(path: Path, tally: Tally) -> Iterator[bytes]:
    """Yield the records of a file of such blocks, whatever its header says."""
    with path.open("rb") as file:
        tally.bytes += len(file.read(_HEADER_BYTES))
        held: list[bytes] | None = None
        for kind, data in _parts(file, tally):
            if kind in (_FULL, _FIRST):
                tally.lines += 1
                tally.bad_lines += held is not None
                held = [data]
            elif held is not None and kind in (_MIDDLE, _LAST):
                held.append(data)
            else:
                # A damaged part, or the rest of a record whose beginning was damaged.
                tally.bad_lines += kind == 0
                held = None
                continue
            if kind in (_FULL, _LAST):
                yield b"".join(held)
                held = None
            elif sum(map(len, held)) > LARGEST_RECORD:
                tally.bad_lines += 1
                held = None


def _parts(file: BufferedReader, tally: Tally) -> Iterator[tuple[int, bytes]]:
    """Yield type and data of each part; type 0 if the checksum is wrong. The first block is shorter by the header."""
    size = _BLOCK_BYTES - _HEADER_BYTES
    while block := file.read(size):
        tally.count(len(block))
        at = 0
        while len(block) - at >= _PART_BYTES:
            checksum, length, kind = unpack("<IHB", block[at : at + _PART_BYTES])
            data = block[at + _PART_BYTES : at + _PART_BYTES + length]
            if len(data) < length or (kind == 0 and length == 0):
                break
            is_sound = kind in (_FULL, _FIRST, _MIDDLE, _LAST) and crc32(bytes((kind,)) + data) == checksum
            yield (kind if is_sound else 0), data
            at += _PART_BYTES + length
        size = _BLOCK_BYTES


WANDB: Final = Carrier("wandb", ("*.wandb",), begins_with(b":W&B"), _wandb_rows)
SWANLAB: Final = Carrier("swanlab", ("*.swanlab",), begins_with(b":SWL"), _swanlab_rows)
