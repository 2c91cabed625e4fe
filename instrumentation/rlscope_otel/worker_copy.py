"""Copies one worker's part of a run folder to a store, one round at a time.

1. Copy the table files that the worker file counts. Small files are copied as one file (`copied_files.py`).
2. Copy the worker file, with the checksums of the files in the store.
3. Remove stored files that lie inside a new file.

So at any moment a reader finds every row once, and all files that the worker file counts. The local files stay.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false

import contextlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol, cast

import pyarrow as pa
import pyarrow.parquet as pq

from rlscope_otel import parquet, schema
from rlscope_otel.copied_files import grouped, outermost, whole
from rlscope_otel.merged_file import statement
from rlscope_otel.schema import FileNumbers
from rlscope_otel.stored_files import StoredFile

_GROUP_ROWS: Final = 50_000
_RUN_FILE: Final = "run.json"


class Store(Protocol):
    """Destination of the copy. Each call may raise any error of its client."""

    def put(self, name: str, data: bytes) -> None:
        """Store a file under a name, whatever was there."""
        ...

    def get(self, name: str) -> bytes | None:
        """Return the content of a file. None if there is no such file."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        ...

    def names(self, folder: str) -> list[str]:
        """The names of the files right in a folder."""
        ...


class _Part(NamedTuple):
    """A complete local file."""

    path: Path
    stored: StoredFile


class _Tail(NamedTuple):
    """The last file that was made of others, to be made longer by the next ones."""

    numbers: FileNumbers
    part: _Part


class WorkerCopy:
    """The copy of one worker."""

    def __init__(self, run_dir: Path, worker_id: str, store: Store, max_bytes: int) -> None:
        self._run_dir = run_dir
        self._worker_id = worker_id
        self._store = store
        self._max_bytes = max_bytes
        self._stored: dict[str, dict[FileNumbers, int | None]] = {}
        """By table, the files in the store with the CRC-32 of those that others were merged into."""
        self._tails: dict[str, _Tail] = {}
        self._run_text = b""
        self._last: bytes | None = None

    def round(self) -> bool:
        """Copy what is new; True once the worker has stopped and all of it is copied.

        Raises OSError and what the client raises: the next round does what this one did not.
        """
        text = (self._run_dir / "workers" / f"{self._worker_id}.json").read_bytes()
        document = cast("dict[str, object]", json.loads(text))
        has_stopped = document.get("stopped_ns") is not None
        self._copy_run_file(again=has_stopped)
        if text == self._last:
            return has_stopped
        written = cast("Mapping[str, Mapping[str, int]]", document["written"])
        superfluous = [
            (table, numbers)
            for table, stated in written.items()
            for numbers in self._copy_table(str(document.get("run_id")), table, stated["last_file"])
        ]
        shown = {**document, "written": {table: self._statement(table, stated) for table, stated in written.items()}}
        self._store.put(f"workers/{self._worker_id}.json", json.dumps(shown, indent=1).encode())
        for table, numbers in superfluous:
            self._store.remove(f"{table}/{numbers.name}")
            del self._stored[table][numbers]
        self._last = text
        return has_stopped

    def close(self) -> None:
        """Remove the temporary files that were made for the copy."""
        for tail in self._tails.values():
            with contextlib.suppress(OSError):
                tail.part.path.unlink(missing_ok=True)
        self._tails.clear()

    def _copy_run_file(self, *, again: bool) -> None:
        """Add the local settings that the store's run file lacks. Workers of other nodes add theirs.

        If `again`, do so even if the local file did not change, because another worker may have written meanwhile.
        """
        text = (self._run_dir / _RUN_FILE).read_bytes()
        if text == self._run_text and not again:
            return
        own = cast("dict[str, object]", json.loads(text))
        found = self._store.get(_RUN_FILE)
        if found is None:
            self._store.put(_RUN_FILE, text)
        else:
            there = cast("dict[str, object]", json.loads(found))
            known, ours = (cast("dict[str, object]", each.get("config") or {}) for each in (there, own))
            if not ours.keys() <= known.keys():
                self._store.put(_RUN_FILE, json.dumps({**there, "config": {**ours, **known}}, indent=1).encode())
        self._run_text = text

    def _copy_table(self, run_id: str, table: str, last_file: int) -> list[FileNumbers]:
        """Copy the files of a table up to a number; the files of the store that are then of no use."""
        stored = self._stored_files(table)
        sizes = self._local_files(table, last_file)
        wanted = {whole(group): group for group in grouped(sizes, stored, self._max_bytes)}
        for numbers, group in wanted.items():
            if numbers in stored:
                continue
            if len(group) == 1:
                data = (self._run_dir / table / numbers.name).read_bytes()
            else:
                data = self._merged(run_id, table, group)
            self._store.put(f"{table}/{numbers.name}", data)
            is_merged = numbers.first < numbers.last
            stored[numbers] = zlib.crc32(data) if is_merged else None
        return [numbers for numbers in stored if numbers not in wanted and _lies_within(numbers, wanted)]

    def _stored_files(self, table: str) -> dict[FileNumbers, int | None]:
        """The files of the store: after a start what an earlier copy of this worker has left there."""
        if table not in self._stored:
            found = [FileNumbers.of(name.removesuffix(".parquet")) for name in self._store.names(table)]
            own = [each for each in found if each is not None and each.worker_id == self._worker_id]
            contents = {each: self._store.get(f"{table}/{each.name}") for each in own if each.first < each.last}
            self._stored[table] = {each: zlib.crc32(contents.get(each) or b"") or None for each in own}
        return self._stored[table]

    def _local_files(self, table: str, last_file: int) -> dict[FileNumbers, int]:
        folder, sizes = self._run_dir / table, dict[FileNumbers, int]()
        for path in folder.glob(f"{self._worker_id}-*.parquet") if last_file else ():
            numbers = FileNumbers.of(path.stem)
            if numbers is not None and numbers.worker_id == self._worker_id and numbers.last <= last_file:
                with contextlib.suppress(FileNotFoundError):
                    sizes[numbers] = path.stat().st_size
        return {numbers: sizes[numbers] for numbers in outermost(sizes)}

    def _merged(self, run_id: str, table: str, group: Sequence[FileNumbers]) -> bytes:
        """One file of several; where the last one that was made is the beginning of it, of that and the rest."""
        numbers, tail = whole(group), self._tails.pop(table, None)
        try:
            begun = [] if tail is None or not _begins(tail.numbers, group) else [tail.part]
            rest = [each for each in group if not begun or tail is None or each.first > tail.numbers.last]
            parts = begun + [_part(self._run_dir / table / each.name, each) for each in rest]
            own = (run_id, table, self._worker_id, numbers.last)
            stamp: parquet.Stamp = dict(zip(schema.STAMP_KEYS, own, strict=True))
            stored = [part.stored for part in parts]
            data = _file_of(table, {**stamp, **statement(stored)}, parts)
        finally:
            if tail is not None:
                tail.part.path.unlink(missing_ok=True)
        path = self._run_dir / table / f".{numbers.name}.copied"
        path.write_bytes(data)
        self._tails[table] = _Tail(numbers, _Part(path, StoredFile.of(stored, len(data), 0.0)))
        return data

    def _statement(self, table: str, stated: Mapping[str, object]) -> dict[str, object]:
        own = self._stored.get(table, {})
        merged = {numbers.range: crc32 for numbers, crc32 in own.items() if crc32 is not None}
        return {**{key: stated[key] for key in stated if key != "merged"}, **({"merged": merged} if merged else {})}


def _begins(tail: FileNumbers, group: Sequence[FileNumbers]) -> bool:
    """Whether the first files of a group are exactly those that were made into a tail."""
    begun = [each for each in group if each.first <= tail.last]
    return bool(begun) and (begun[0].first, begun[-1].last) == (tail.first, tail.last)


def _lies_within(numbers: FileNumbers, others: Mapping[FileNumbers, object]) -> bool:
    """Whether others together stand for all of these numbers."""
    reached = numbers.first
    for each in sorted(others):
        if each.first <= reached <= each.last:
            reached = each.last + 1
    return reached > numbers.last


def _part(path: Path, numbers: FileNumbers) -> _Part:
    """A local file with what it says of itself."""
    text = path.read_bytes()
    metadata = pq.read_metadata(pa.BufferReader(text))
    if numbers.first == numbers.last:
        stored = StoredFile.flushed(numbers.last, metadata.num_rows, len(text), zlib.crc32(text), 0.0)
    else:
        said = metadata.metadata or {}
        files, checksum = (int(said[key.encode()]) for key in schema.MERGED_KEYS[1:3])
        stored = StoredFile(numbers.first, numbers.last, files, metadata.num_rows, len(text), checksum, 1, 0.0)
    return _Part(path, stored)


def _file_of(table: str, stamp: parquet.Stamp, parts: Sequence[_Part]) -> bytes:
    """The bytes of one file with the rows of others."""
    sink, rows = pa.BufferOutputStream(), 0
    with parquet.open_writer(sink, schema.arrow_schema(table), stamp) as writer:
        for group in _row_groups(table, parts):
            writer.write_table(group)
            rows += group.num_rows
    if rows != sum(part.stored.rows for part in parts):
        raise OSError(f"{rows} rows in files of {table} that state another number")
    return sink.getvalue().to_pybytes()


def _row_groups(table: str, parts: Sequence[_Part]) -> Iterator[pa.Table]:
    held, arrow_schema = list[pa.Table](), schema.arrow_schema(table)
    for part in parts:
        file = pq.ParquetFile(pa.OSFile(str(part.path)), page_checksum_verification=True, pre_buffer=False)
        for group in range(file.num_row_groups):
            columns = file.read_row_group(group, use_threads=False).columns
            held.append(pa.Table.from_arrays(columns, schema=arrow_schema))
            if sum(each.num_rows for each in held) >= _GROUP_ROWS:
                yield pa.concat_tables(held).combine_chunks()
                held = []
    if held:
        yield pa.concat_tables(held).combine_chunks()
