"""Turns journals into Parquet files, in slices between the flushes, on the flush thread.

The files on disk are consistent at every moment, even if the process is killed:

1. The Parquet file is written beside the journal under a temporary name, and synced.
2. The worker file, written with the next flush, states its checksum. A reader takes no notice: the journal is there.
3. It is renamed. A reader sees it and the journal, and leaves the journal out, since both have the same number.
4. The journal is removed.
"""

import contextlib
import os
import time
import zlib
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rlscope_otel import forks, journal, schema
from rlscope_otel.faults import Faults
from rlscope_otel.open_journal import OpenJournal

_GROUP_ROWS = 50_000
_GROUP_BYTES = 8 * 2**20
_READ_BYTES = 2**20
_SLICE_S = 0.005
_REST_S = 60.0
"""After a failure: whoever filled the disk may make room."""


class Closing:
    """The journals of one worker that are being closed."""

    def __init__(self, faults: Faults) -> None:
        self.closed: dict[str, dict[str, int]] = {}
        """By table and number, the CRC-32 of the Parquet files that are there, or about to be."""
        self._faults = faults
        self._waiting: deque[OpenJournal] = deque()
        self._slices: Generator[int | None] | None = None
        self._complete: list[OpenJournal] = []
        """Journals whose Parquet file waits for the worker file to state it."""
        self._rests_until_s = 0.0

    def add(self, journals: Iterable[OpenJournal]) -> None:
        """Close these too. Nothing is appended to them any more."""
        self._waiting.extend(journals)

    def step(self) -> bool:
        """Do a slice of work. Returns False if there is none at the moment."""
        if not self._waiting or time.monotonic() < self._rests_until_s:
            return False
        closing = self._waiting[0]
        self._slices = self._slices or _written(closing)
        try:
            crc32 = next(self._slices)
        except Exception as error:  # A library may fail in any way on what it reads; the journal is still there.
            self._fail(error)
            return True
        if crc32 is not None:
            self.closed.setdefault(closing.table, {})[str(closing.number)] = crc32
            self._complete.append(closing)
            self._waiting.popleft()
            self._slices = None
        return True

    def stated(self) -> None:
        """The worker file is on disk and states all of `closed`: the Parquet files take the place of the journals."""
        complete, self._complete = self._complete, []
        for each in complete:
            try:
                os.replace(_part(each), each.closed_path)
                _sync_folder(each.path.parent)
                each.path.unlink(missing_ok=True)
            except OSError as error:
                self._faults.note(f"cannot close a journal of {each.table}", error)
                if each.path.exists() and not each.closed_path.exists():
                    self._put_back([each])

    def cancel(self) -> None:
        """Give room back to the disk, and do nothing for a while."""
        complete, self._complete = self._complete, []
        self._put_back(complete)

    def hurry(self) -> None:
        """The recording ends: rest no more."""
        self._rests_until_s = 0.0

    def _put_back(self, complete: Sequence[OpenJournal]) -> None:
        self._rests_until_s = time.monotonic() + _REST_S
        self._slices = None
        for each in complete:
            self.closed[each.table].pop(str(each.number))
            with contextlib.suppress(OSError):
                _part(each).unlink(missing_ok=True)
        self._waiting.extendleft(reversed(complete))

    def _fail(self, error: Exception) -> None:
        closing = self._waiting[0]
        self._slices = None
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, FileNotFoundError):
            self._rests_until_s = time.monotonic() + _REST_S
        else:
            # It was removed, or it is damaged: a reader reports the missing rows.
            self._waiting.popleft()
        if not isinstance(error, FileNotFoundError):
            self._faults.note(f"cannot close a journal of {closing.table}", error)


def open_writer(
    target: pa.NativeFile, arrow_schema: pa.Schema, stamp: Mapping[str, str | int] | None
) -> pq.ParquetWriter:
    """Return a writer of one file with the encodings of the format. stamp: its place, by `schema.STAMP_KEYS`.

    The Arrow schema is not stored a second time: for small files it would be half of the bytes.
    """
    leaves = list(_leaves(arrow_schema))
    texts = [leaf for leaf, leaf_type in leaves if pa.types.is_string(leaf_type)]
    integers = [leaf for leaf, leaf_type in leaves if pa.types.is_integer(leaf_type)]
    writer = pq.ParquetWriter(
        target,
        arrow_schema,
        compression="zstd",
        use_dictionary=texts,  # pyright: ignore[reportArgumentType]  # a bool or a list of columns, says its page
        column_encoding=dict.fromkeys(integers, "DELTA_BINARY_PACKED"),
        store_schema=False,
        write_page_checksum=True,
    )
    writer.add_key_value_metadata(arrow_schema.metadata or {})
    if stamp is not None:
        writer.add_key_value_metadata({key: str(value) for key, value in stamp.items()})
    return writer


def _leaves(parents: pa.Schema | pa.DataType, prefix: str = "") -> Iterator[tuple[str, pa.DataType]]:
    """Every leaf column by the path that Parquet gives it, such as `versions.list.element.start`."""
    for field in parents:
        if pa.types.is_list(field.type):
            yield from _leaves(field.type.value_type, f"{prefix}{field.name}.list.element.")
        else:
            yield prefix + field.name, field.type


def _part(closing: OpenJournal) -> Path:
    return closing.closed_path.with_name(f".{closing.closed_path.name}.part")


def _written(closing: OpenJournal) -> Generator[int | None]:
    """Write the Parquet file under its temporary name. Yields None after each slice, and at the end its CRC-32.

    Raises OSError, and ValueError or pa.ArrowException for a journal that is not as it was written.
    """
    # It is made in memory, a tenth of the journal's size: a library that has no file of ours loses none in a fork.
    sink, rows = pa.BufferOutputStream(), 0
    stamp = {**closing.stamp, schema.FIRST_ROW_KEY: closing.first_row}
    with forks.writing():
        writer = open_writer(sink, schema.arrow_schema(closing.table), stamp)
    for group in _groups(closing):
        if group is not None:
            with forks.writing():
                writer.write_table(group.combine_chunks())
            rows += group.num_rows
        yield None
    if rows != closing.rows:
        raise ValueError(f"{rows} rows in {closing.path.name}, which {closing.rows} were written to")
    with forks.writing():
        writer.close()
        content = sink.getvalue()
    _write_synced(_part(closing), content)
    yield zlib.crc32(content)


def _groups(closing: OpenJournal) -> Generator[pa.Table | None]:
    """Yield the rows of each row group, and None whenever other work is due."""
    held: list[pa.RecordBatch] = []
    rows, size_bytes, since_s = 0, 0, time.monotonic()
    for batch in _batches(closing):
        held.append(batch)
        rows, size_bytes = rows + batch.num_rows, size_bytes + batch.nbytes
        if rows >= _GROUP_ROWS or size_bytes >= _GROUP_BYTES:
            yield pa.Table.from_batches(held)
            held, rows, size_bytes = [], 0, 0
        elif time.monotonic() - since_s > _SLICE_S:
            yield None
        else:
            continue
        since_s = time.monotonic()
    if held:
        yield pa.Table.from_batches(held)


def _batches(closing: OpenJournal) -> Generator[pa.RecordBatch]:
    """Read the whole batches of a journal, some at a time."""
    plain, start, wanted_bytes = journal.plain_schema(closing.table), closing.head_bytes, _READ_BYTES
    while start < closing.bytes:
        content = _read(closing.path, start, min(wanted_bytes, closing.bytes - start))
        end = 0
        for sealed in journal.whole_batches(content, 0, closing.head_crc32):
            yield pa.ipc.read_record_batch(pa.py_buffer(content).slice(sealed.start, sealed.end - sealed.start), plain)
            end = sealed.end
        if not end and len(content) < wanted_bytes:
            return
        start, wanted_bytes = start + end, _READ_BYTES if end else 2 * wanted_bytes


def _read(path: Path, start: int, size: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, size, start)
    finally:
        os.close(descriptor)


def _write_synced(path: Path, content: pa.Buffer) -> None:
    """Write a file that survives a power cut. Raises OSError; nothing is left of the file then."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o644)
        try:
            left = memoryview(content)
            while left:
                left = left[os.write(descriptor, left) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        raise


def _sync_folder(folder: Path) -> None:
    """Make a rename in the folder survive a power cut, if the file system supports it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
