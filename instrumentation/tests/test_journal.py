"""The format of a journal: what a reader takes from bytes that are whole, cut, damaged, or another journal's."""

import zlib
from collections.abc import Sequence

import pyarrow as pa
import pytest
from rlscope_otel import journal
from rlscope_otel.schema import STAMP_KEYS


def _head(number: int) -> bytes:
    owner: tuple[str | int, ...] = ("run-1", "queue_depths", "trainer-0", number)
    return journal.head("queue_depths", dict[str, str | int](zip(STAMP_KEYS, owner, strict=True)))


HEAD = _head(1)


def _message(depths: Sequence[int], first_row: int, head: bytes = HEAD) -> bytes:
    schema = pa.ipc.open_stream(head).schema
    rows = [
        {"queue": "samples", "worker_id": "trainer-0", "time_ns": 10 * depth, "depth": depth, "capacity": None}
        for depth in depths
    ]
    return journal.sealed(pa.RecordBatch.from_pylist(rows, schema=schema), first_row, zlib.crc32(head))


def _found(content: bytes) -> list[tuple[int, int]]:
    return [(batch.first_row, batch.rows) for batch in journal.whole_batches(content, len(HEAD), zlib.crc32(HEAD))]


def test_a_journal_cut_at_any_byte_gives_its_whole_batches_and_nothing_else():
    first, second = _message([4, 5], 0), _message([6], 2)
    for length in range(len(first) + len(second)):
        expected = [(0, 2)] if length >= len(first) else []
        assert _found(HEAD + (first + second)[:length]) == expected


def test_every_flipped_bit_of_a_batch_is_noticed():
    message = _message([4, 5], 0)
    for place in range(len(message) * 8):
        changed = bytearray(message)
        changed[place // 8] ^= 1 << place % 8
        assert _found(HEAD + bytes(changed)) == []


def test_batches_of_another_journal_are_not_taken_for_those_of_this_one():
    assert _found(HEAD + _message([4], 0) + _message([5], 1, _head(2))) == [(0, 1)]


@pytest.mark.parametrize("content", [b"", b"PAR1", HEAD[:-1], b"\xff\xff\xff\xff\xff\xff\xff\x7f"])
def test_content_without_a_whole_head_has_none(content):
    assert journal.head_length(content) is None
