"""Decoder of the Protocol Buffers wire format for metrics files: fields by number, without a schema.

Format: https://protobuf.dev/programming-guides/encoding/. A message that breaks off, or whose lengths do not fit,
raises BrokenMessageError. A length stated in a file never causes an allocation.
"""

from collections.abc import Iterator
from struct import unpack_from
from typing import Final

_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_FIXED32: Final = 5
_LONGEST_VARINT: Final = 10
LARGEST_RECORD: Final = 64 << 20
"""Size limit for the records of a file, in bytes: larger ones hold tables and pictures, not scalars."""


class BrokenMessageError(Exception):
    """The bytes are not a valid message."""


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields in order: number, and bytes if the field has a length or a fixed width, otherwise a number.

    Raises BrokenMessageError if the message ends within a field.
    """
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind, number = key & 7, key >> 3
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind == _BYTES:
            length, at = _varint(message, at)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise BrokenMessageError(f"wire type {kind}")
        if length > len(message) - at:
            raise BrokenMessageError("the message ends within a field")
        yield number, message[at : at + length]
        at += length


def messages(message: int | bytes, number: int) -> Iterator[bytes]:
    """Yield the fields with this number that have a length, such as messages; none of a number. Raises as `fields`."""
    found = fields(message) if isinstance(message, bytes) else ()
    return (value for each, value in found if each == number and isinstance(value, bytes))


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(_LONGEST_VARINT):
        if at + index >= len(message):
            raise BrokenMessageError("the message ends within a number")
        byte = message[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise BrokenMessageError("a number of more than ten bytes")


def text(value: int | bytes) -> str:
    """Return the field as a string; bytes that are not UTF-8 are replaced."""
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else ""


def real(value: int | bytes) -> float | None:
    """Return a float or a double; None for any other kind of field."""
    if not isinstance(value, bytes) or len(value) not in (4, 8):
        return None
    return float(unpack_from("<f" if len(value) == 4 else "<d", value)[0])


def signed(value: int | bytes) -> int:
    """Return an int64; 0 for any other kind of field."""
    if not isinstance(value, int):
        return 0
    return value - (1 << 64) if value >= 1 << 63 else value
