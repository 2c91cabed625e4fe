"""Writes one file from several others, a slice at a time: read some rows, write a row group, sync it to the disk.

Between two slices the thread is free, no library holds a lock that a fork would copy, and at most one row group is in
memory. The name is a temporary one; `merger.py` renames it.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false

import contextlib
import os
import time
import zlib
from collections.abc import Generator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rlscope_otel import forks, parquet, schema
from rlscope_otel.stored_files import StoredFile

_GROUP_ROWS = 50_000
_GROUP_BYTES = 8 * 2**20
_SLICE_S = 0.005


class _Sink:
    """A file with a running checksum. It is inert in a forked child, whose exit would close the parent's file."""

    def __init__(self, path: Path) -> None:
        self.crc32 = 0
        self.bytes = 0
        # Interface that the library expects. A closed sink raises nothing when the library still writes to it.
        self.closed = False
        self._is_open = True
        self._pid = os.getpid()
        self._descriptor = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o644)

    def write(self, data: bytes) -> int:
        """Write all of it."""
        if not self._is_open or os.getpid() != self._pid:
            return len(data)
        left = memoryview(data)
        while left:
            left = left[os.write(self._descriptor, left) :]
        self.crc32 = zlib.crc32(data, self.crc32)
        self.bytes += len(data)
        return len(data)

    def tell(self) -> int:
        """The bytes so far."""
        return self.bytes

    def flush(self) -> None:
        """Nothing is held back."""

    def sync(self) -> None:
        """Wait until all of it would survive a power cut."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Give the descriptor back."""
        if self._is_open and os.getpid() == self._pid:
            self._is_open = False
            os.close(self._descriptor)


class MergedFile:
    """A file in the making."""

    def __init__(self, folder: Path, stamp: parquet.Stamp, owner: tuple[str, str], parts: Sequence[StoredFile]) -> None:
        """stamp: where it belongs, by `schema.STAMP_KEYS`. owner: the table and the worker."""
        self.table, self.worker_id = owner
        self.parts = tuple(parts)
        self.folder = folder
        self.is_complete = False
        self.numbers = schema.FileNumbers(self.worker_id, parts[0].first, parts[-1].last)
        self.path = folder / self.numbers.name
        self.temporary = folder / f".{self.numbers.name}.part"
        self._schema = schema.arrow_schema(self.table)
        self._stamp = {**stamp, **statement(self.parts)}
        self._slices = self._write()
        self._sink: _Sink | None = None

    @property
    def crc32(self) -> int:
        """Checksum of the whole file, once it is complete."""
        return self._sink.crc32 if self._sink is not None else 0

    @property
    def bytes(self) -> int:
        """Bytes written so far."""
        return self._sink.bytes if self._sink is not None else 0

    def step(self) -> None:
        """Do a slice of the work.

        Raises OSError when a file cannot be read or written, and pa.ArrowException or ValueError for a part that is not
        as it was written.
        """
        self.is_complete = next(self._slices, True)

    def cancel(self) -> None:
        """Remove what was written."""
        if self._sink is not None:
            self._sink.close()
        with contextlib.suppress(OSError):
            self.temporary.unlink(missing_ok=True)

    def _write(self) -> Generator[bool]:
        self._sink = sink = _Sink(self.temporary)
        with forks.writing():
            writer = parquet.open_writer(pa.PythonFile(sink, "w"), self._schema, self._stamp)
        rows = 0
        for group in self._groups():
            if group is not None:
                with forks.writing():
                    writer.write_table(group.combine_chunks())
                rows += group.num_rows
                sink.sync()
            yield False
        if rows != sum(part.rows for part in self.parts):
            raise ValueError(f"{rows} rows in the files of {self.numbers.range} of {self.table}")
        with forks.writing():
            writer.close()
        sink.sync()
        sink.close()
        yield True

    def _groups(self) -> Generator[pa.Table | None]:
        """Yield the rows of each row group, and None whenever other work is due."""
        held: list[pa.Table] = []
        rows, size_bytes, since_s = 0, 0, time.monotonic()
        for table in self._tables():
            held.append(table)
            rows, size_bytes = rows + table.num_rows, size_bytes + table.nbytes
            if rows >= _GROUP_ROWS or size_bytes >= _GROUP_BYTES:
                yield pa.concat_tables(held)
                held, rows, size_bytes = [], 0, 0
            elif time.monotonic() - since_s > _SLICE_S:
                yield None
            else:
                continue
            since_s = time.monotonic()
        if held:
            yield pa.concat_tables(held)

    def _tables(self) -> Generator[pa.Table]:
        for part in self.parts:
            path = self.folder / schema.FileNumbers(self.worker_id, part.first, part.last).name
            with forks.writing():
                # One thread and no read-ahead, so that no thread pool starts in the host's process.
                file = pq.ParquetFile(pa.OSFile(str(path)), page_checksum_verification=True, pre_buffer=False)
            for group in range(file.num_row_groups):
                with forks.writing():
                    table = file.read_row_group(group, use_threads=False)
                yield pa.Table.from_arrays(table.columns, schema=self._schema)


def statement(parts: Sequence[StoredFile]) -> parquet.Stamp:
    """Return the metadata of a merged file about its parts."""
    whole = StoredFile.of(parts, 0, 0)
    listed = ",".join(f"{part.last}:{part.rows}" for part in parts)
    return dict(zip(schema.MERGED_KEYS, (whole.first, whole.files, whole.checksum, listed), strict=True))


def sync_folder(folder: Path) -> None:
    """Make a rename in the folder survive a power cut, if the file system supports it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
