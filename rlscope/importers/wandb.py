"""`.wandb` files, which a W&B client writes on the machine of the run, online and offline.

The file is a log of 32 KiB blocks after a header of 7 bytes. A record that reaches the end of a block is split into
parts, each with a CRC-32 of its type and data. A part with a wrong checksum ends its record, not the file. A killed run
leaves a torn last block. The layout is that of LevelDB's log
(https://github.com/google/leveldb/blob/main/doc/log_format.md), and records are messages of wandb_internal.proto.
"""

from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from struct import unpack
from typing import Any, Final
from zlib import crc32

from rlscope.importers.importer import ImportSource, Progress
from rlscope.importers.protobuf import BrokenMessageError, fields, real, signed, text
from rlscope.importers.rows import Carrier, MetricRow, Tally, parsed_json, row_of

_MAGIC: Final = b":W&B"
_HEADER_BYTES: Final = 7
_BLOCK_BYTES: Final = 32768
_PART_BYTES: Final = 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_LARGEST_RECORD: Final = 64 << 20
"""Size limit for records, in bytes: larger ones hold tables and pictures, not scalars."""
_HISTORY, _CONFIG, _RUN = 2, 5, 17
_KEY, _NESTED_KEY, _INTEGER, _NUMBER, _JSON = 1, 2, 5, 6, 16
_RUN_CONFIG = 4


def _rows(path: Path, tally: Tally, progress: Progress) -> Iterator[MetricRow]:
    for record in _records(path, tally, progress):
        try:
            yield from _read_record(record, tally)
        except BrokenMessageError:
            tally.bad_lines += 1


def _read_record(record: bytes, tally: Tally) -> Iterator[MetricRow]:
    for number, value in fields(record):
        if not isinstance(value, bytes):
            continue
        if number == _HISTORY:
            row = row_of(dict(_items(value, 1)))
            if row is not None:
                yield row
        elif number == _CONFIG:
            _keep_config(value, tally)
        elif number == _RUN:
            for part, config in fields(value):
                if part == _RUN_CONFIG and isinstance(config, bytes):
                    _keep_config(config, tally)


def _keep_config(message: bytes, tally: Tally) -> None:
    """Store settings; a later one of the same name wins. Dotted names are kept unchanged."""
    for name, value in _items(message, 1):
        tally.config[name] = value


def _items(message: bytes, number: int) -> Iterator[tuple[str, Any]]:
    """Yield names and values of the items under this field number; names with several parts are joined by slashes."""
    for each, item in fields(message):
        if each != number or not isinstance(item, bytes):
            continue
        key, nested, value = "", list[str](), None
        for part, content in fields(item):
            if part == _KEY:
                key = text(content)
            elif part == _NESTED_KEY:
                nested.append(text(content))
            elif part == _JSON and isinstance(content, bytes):
                value = parsed_json(content)
            elif part == _NUMBER:
                value = real(content)
            elif part == _INTEGER:
                value = signed(content)
        yield key or "/".join(nested), value


def _records(path: Path, tally: Tally, progress: Progress) -> Iterator[bytes]:
    with path.open("rb") as file:
        tally.bytes += len(file.read(_HEADER_BYTES))
        held: list[bytes] | None = None
        for kind, data in _parts(file, tally, progress):
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
            elif sum(map(len, held)) > _LARGEST_RECORD:
                tally.bad_lines += 1
                held = None


def _parts(file: BufferedReader, tally: Tally, progress: Progress) -> Iterator[tuple[int, bytes]]:
    """Yield type and data of each part; type 0 if the checksum is wrong. The first block is shorter by the header."""
    size = _BLOCK_BYTES - _HEADER_BYTES
    while block := file.read(size):
        tally.bytes += len(block)
        progress(len(block))
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


def _fits(source: ImportSource) -> bool:
    return source.head.startswith(_MAGIC)


WANDB: Final = Carrier("wandb", ("*.wandb",), _fits, _rows)
