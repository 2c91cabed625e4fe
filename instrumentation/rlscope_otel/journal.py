"""The format of a journal: the rows of one worker and table as they are recorded, until a Parquet file replaces it.

A journal is an Arrow IPC stream to which each flush appends one record batch. Its head is the schema, with the run, the
table, the worker and the journal's number as metadata. The metadata of a batch holds a seal: the number of its first
row among all rows of that worker and table, its number of rows, the length of its message, and the CRC-32 of the head
and of the message. So a reader can tell a whole batch from one that is incomplete, damaged or from another journal
without decoding it, and can begin at any batch. No I/O.
"""

import re
import struct
import zlib
from binascii import unhexlify
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final, NamedTuple

import pyarrow as pa

from rlscope_otel.schema import arrow_schema

SUFFIX: Final = ".arrows"
"""The name of an open journal ends with it; that of the Parquet file which replaces it with `.parquet`."""
_SEAL_KEY: Final = "seal"
_DIGITS: Final = 40
_SEAL: Final = re.compile(rb"[0-9a-f][0-9a-f]{39}(?![0-9a-f])")
_NUMBERS: Final = struct.Struct(">QIII")
"""The numbers of a seal: first row, rows, length, CRC-32."""
_MARKER: Final = b"\xff\xff\xff\xff"
"""Every message of an Arrow IPC stream begins with it, followed by the length of its metadata in four bytes."""
_PREFIX_BYTES: Final = 8
_OPTIONS: Final = pa.ipc.IpcWriteOptions()
_LONGEST_METADATA: Final = 1 << 20
"""Maximum bytes of a message's metadata: a batch of the widest table needs three kilobytes."""


class SealedBatch(NamedTuple):
    """A whole batch, as found in the bytes of a journal."""

    first_row: int
    """Number of its first row among all rows of the worker and table, from 0."""
    rows: int
    start: int
    """Position of its first byte."""
    end: int
    """Position after its last byte."""


@cache
def plain_schema(table: str) -> pa.Schema:
    """Return the table's columns without units and meanings, which would double the size of a short journal.

    Raises KeyError for an unknown table.
    """
    return pa.schema([field.remove_metadata() for field in arrow_schema(table)])


def head(table: str, stamp: Mapping[str, str | int]) -> bytes:
    """Return the first bytes of a journal. stamp: where it belongs, by `schema.STAMP_KEYS`.

    Raises KeyError for an unknown table.
    """
    metadata = {**(arrow_schema(table).metadata or {}), **{key: str(value) for key, value in stamp.items()}}
    return plain_schema(table).with_metadata(metadata).serialize().to_pybytes()


def sealed(batch: pa.RecordBatch, first_row: int, head_crc32: int) -> bytes:
    """Return the message that appends a batch. head_crc32: CRC-32 of the journal's head.

    Raises pa.ArrowInvalid if the batch cannot be written.
    """
    sink, zeros = pa.BufferOutputStream(), {_SEAL_KEY: "0" * _DIGITS}
    # The stream is not closed: an end mark would follow the batch.
    pa.ipc.new_stream(sink, batch.schema, options=_OPTIONS).write_batch(batch, custom_metadata=zeros)
    stream = memoryview(sink.getvalue())
    content = stream[_metadata_end(stream) :]
    metadata = content[: _metadata_end(content)]
    at = bytes(metadata).index(b"0" * _DIGITS)
    before, after = content[:at], content[at + _DIGITS :]
    stated = f"{first_row:016x}{batch.num_rows:08x}{len(content):08x}".encode()
    crc32 = zlib.crc32(after, zlib.crc32(stated, zlib.crc32(before, head_crc32)))
    return b"".join((before, stated, f"{crc32:08x}".encode(), after))


def whole_batches(content: bytes | memoryview, start: int, head_crc32: int) -> Iterator[SealedBatch]:
    """Yield each whole batch from a position on, up to the first that is incomplete or not as it was written."""
    view, size_bytes = memoryview(content), len(content)
    while bytes(view[start : start + 4]) == _MARKER:
        metadata_bytes = int.from_bytes(view[start + 4 : start + _PREFIX_BYTES], "little")
        metadata_end = start + _PREFIX_BYTES + min(metadata_bytes, _LONGEST_METADATA)
        seal = _SEAL.search(view, start + _PREFIX_BYTES, metadata_end)
        if seal is None:
            return
        first_row, rows, length, crc32 = _NUMBERS.unpack(unhexlify(seal[0]))
        end, seal_end = start + length, seal.end()
        if not metadata_end <= end <= size_bytes:
            return
        if zlib.crc32(view[seal_end:end], zlib.crc32(view[start : seal_end - 8], head_crc32)) != crc32:
            return
        yield SealedBatch(first_row, rows, start, end)
        start = end


def head_length(content: bytes | memoryview) -> int | None:
    """Return the length of a journal's head; None if the content does not begin with a whole one.

    Its text is not checked here: the seal of every batch covers it.
    """
    if content[:4] != _MARKER:
        return None
    length = _metadata_end(content)
    return length if _PREFIX_BYTES < length <= min(len(content), _LONGEST_METADATA) else None


def is_cut_head(content: bytes | memoryview) -> bool:
    """Return whether the content is the beginning of a head: what is left if a worker is killed as it begins a journal.

    After a power cut, zeros may follow.
    """
    written = bytes(content).rstrip(b"\0")
    return written[:4] == _MARKER[: len(written)] and head_length(content) is None


def _metadata_end(message: bytes | memoryview) -> int:
    """Return where the metadata of a message ends; a schema is nothing else."""
    return _PREFIX_BYTES + int.from_bytes(message[4:_PREFIX_BYTES], "little")
