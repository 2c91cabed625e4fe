"""Writes a `.wandb` file as W&B's client does: records of history, and of readings of the machine.

By hand: no machine here has a GPU whose readings the client would log.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from struct import pack
from zlib import crc32


def _field(number: int, value: int | bytes) -> bytes:
    """One protobuf field."""

    def varint(rest: int) -> bytes:
        return bytes([rest]) if rest < 128 else bytes([rest & 127 | 128]) + varint(rest >> 7)

    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def _items(number: int, values: Mapping[str, float]) -> bytes:
    items = [_field(1, name.encode()) + _field(16, json.dumps(value).encode()) for name, value in values.items()]
    return b"".join(_field(number, each) for each in items)


def logged(values: Mapping[str, float]) -> bytes:
    """A record of history."""
    return _field(2, _items(1, values))


def read_from_machine(at_s: int, values: Mapping[str, float]) -> bytes:
    """A record of readings."""
    return _field(7, _field(2, _field(1, at_s)) + _items(3, values))


def wandb_file(path: Path, *records: bytes) -> Path:
    """A file of one block."""
    parts = [pack("<IHB", crc32(b"\x01" + each), len(each), 1) + each for each in records]
    path.write_bytes(b":W&B" + pack("<HB", 0xBEE1, 0) + b"".join(parts))
    return path
