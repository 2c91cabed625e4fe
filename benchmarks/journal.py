"""Whether an append-only journal per worker and table works: polls, damage, growth, forks, a full disk and DuckDB.

A journal is an Arrow IPC stream. Each batch has a seal in its custom metadata: the number of its first row, its rows,
the length of its message, and a CRC-32 of the head of the stream and the whole message. Nothing stays open between two
writes or reads. All times are CPU times of this process. The last output is in `journal.txt`.

What needs no measuring: two workers with one id never share a journal, since the worker file is claimed before the
first row is written, and the second worker gets another id. An object store cannot append, so an open journal is put as
a whole whenever it has grown: at most 32 MB a round, and once more as a closed file.

    python benchmarks/journal.py
"""

import os
import re
import resource
import signal
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from rlscope_otel.schema import arrow_schema

OPEN_SEAL: Final = f"{0:040x}"
SEAL: Final = re.compile(rb"(?<![0-9a-f])([0-9a-f]{16})([0-9a-f]{8})([0-9a-f]{8})([0-9a-f]{8})(?![0-9a-f])")
MARKER: Final = b"\xff\xff\xff\xff"
SCHEMA: Final = pa.schema([field.remove_metadata() for field in arrow_schema("engine_steps")])
HEAD: Final = SCHEMA.serialize().to_pybytes()
WORKERS: Final = 10_000
BATCH_ROWS: Final = 100


def rows_from(first: int, count: int, worker: str = "sampler-0") -> pa.RecordBatch:
    """Engine steps whose start is their number."""
    rows = [
        (worker, first + n, first + n + 1, 1, 1, 64 - n % 5, n % 3, 64, 0, 100_000 + 61 * n, None, None)
        for n in range(count)
    ]
    columns = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def message_of(batch: pa.RecordBatch, first_row: int) -> bytes:
    """The sealed message of a batch."""
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, SCHEMA).write_batch(batch, custom_metadata={"seal": OPEN_SEAL})
    message = sink.getvalue().to_pybytes()[len(HEAD) :]
    at = message.index(OPEN_SEAL.encode())
    stated = f"{first_row:016x}{batch.num_rows:08x}{len(message):08x}".encode()
    crc32 = zlib.crc32(message[at + 40 :], zlib.crc32(stated, zlib.crc32(message[:at], zlib.crc32(HEAD))))
    return message[:at] + stated + b"%08x" % crc32 + message[at + 40 :]


def whole_batches(content: bytes, start: int) -> Iterator[tuple[int, int]]:
    """The end and the rows of each whole batch, up to the first that is incomplete or not as it was written."""
    while content[start : start + 4] == MARKER:
        metadata_end = start + 8 + int.from_bytes(content[start + 4 : start + 8], "little")
        seal = SEAL.search(content, start + 8, metadata_end)
        if seal is None:
            return
        _, rows, length, crc32 = (int(number, 16) for number in seal.groups())
        end, stated = start + length, content[seal.start() : seal.end() - 8]
        found = zlib.crc32(stated, zlib.crc32(content[start : seal.start()], zlib.crc32(HEAD)))
        if not metadata_end <= end <= len(content) or zlib.crc32(content[seal.end() : end], found) != crc32:
            return
        yield end, rows
        start = end


def append(path: Path, data: bytes, size: int) -> int:
    """Append to a file of so many bytes, or leave it as it was. Returns its size; raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        written = 0
        while written < len(data):
            written += os.pwrite(descriptor, data[written:], size + written)
    except OSError:
        os.ftruncate(descriptor, size)
        raise
    finally:
        os.close(descriptor)
    return size + len(data)


def read_from(path: Path, offset: int) -> bytes:
    """The bytes from an offset on."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, os.fstat(descriptor).st_size - offset, offset)
    finally:
        os.close(descriptor)


def cpu_s(work: Callable[[], object]) -> float:
    """CPU time of a call."""
    began_s = time.process_time()
    work()
    return time.process_time() - began_s


def writes(folder: Path) -> Iterator[str]:
    """Cost of one flush."""
    times = 300
    for count in (100, 500):
        batch, sizes = rows_from(0, count), [0]
        journal, table = folder / f"flush-{count}.arrows", pa.Table.from_batches([batch])

        def one_journal(batch: pa.RecordBatch = batch, journal: Path = journal, sizes: list[int] = sizes) -> None:
            for number in range(times):
                sizes[0] = append(journal, message_of(batch, number), sizes[0])

        def one_parquet(table: pa.Table = table) -> None:
            for _ in range(times):
                pq.write_table(table, folder / "flush.part", compression="snappy", store_schema=False)
                os.replace(folder / "flush.part", folder / "flush.parquet")

        journal_s, parquet_s = cpu_s(one_journal), cpu_s(one_parquet)
        bytes_each = (folder / "flush.parquet").stat().st_size
        yield f"a flush of {count} rows: journal {journal_s / times * 1e6:,.0f} us, {sizes[0] / times / 1e3:.1f} kB;"
        yield f"    a Parquet file {parquet_s / times * 1e6:,.0f} us, {bytes_each / 1e3:.1f} kB"


def polls(folder: Path) -> Iterator[str]:
    """One poll over the journals of many workers, each of which has one new batch."""
    message = message_of(rows_from(0, 13), 0)
    paths = [folder / f"worker-{number}.arrows" for number in range(WORKERS)]
    for path in paths:
        path.write_bytes(HEAD + message * 3)
    offsets = dict.fromkeys(paths, len(HEAD) + 2 * len(message))
    found: list[pa.Table] = []

    def poll() -> None:
        new: list[bytes] = []
        for path, offset in offsets.items():
            content = read_from(path, offset)
            ends = [end for end, _ in whole_batches(content, 0)]
            new.append(content[: ends[-1]])
        found.append(pa.ipc.open_stream(HEAD + b"".join(new)).read_all().combine_chunks())

    seconds = cpu_s(poll)
    assert found[0].num_rows == WORKERS * 13
    each_us = seconds / WORKERS * 1e6
    yield f"a poll of {WORKERS:,} journals with 13 new rows each: {seconds:.2f} s, {each_us:.0f} us a file,"
    yield f"    with {len(os.listdir('/proc/self/fd'))} open files; an offset a file is kept, no descriptor"


def damage() -> Iterator[str]:
    """Every single flipped bit of a batch, and a stream that is cut at every byte."""
    message = message_of(rows_from(0, 20), 0)
    unseen = 0
    for place in range(len(message) * 8):
        changed = bytearray(message)
        changed[place // 8] ^= 1 << place % 8
        unseen += any(True for _ in whole_batches(bytes(changed), 0))
    yield f"{len(message) * 8:,} flipped bits, every one of a batch: {unseen} not found"
    content, wrong = message * 3, 0
    for length in range(len(content)):
        ends = [end for end, _ in whole_batches(content[:length], 0)]
        wrong += ends != [len(message) * (n + 1) for n in range(length // len(message))]
    yield f"{len(content):,} cuts, at every byte of three batches: {wrong} gave other than the whole batches"


def growth(folder: Path) -> Iterator[str]:
    """A file that is read, by opening it each time, while another process writes it."""
    path, batches = folder / "growing.arrows", 600
    child = os.fork()
    if not child:
        size = append(path, HEAD, 0)
        for number in range(batches):
            size = append(path, message_of(rows_from(number * 50, 50), number * 50), size)
        os._exit(0)
    seen, offset, looks, partial = 0, 0, 0, 0
    while seen < batches * 50:
        content = read_from(path, offset) if path.exists() else b""
        looks += bool(content)
        start = len(HEAD) if not offset else 0
        ends = list(whole_batches(content, start)) if len(content) > start else []
        if ends:
            own = pa.ipc.open_stream(HEAD + content[start : ends[-1][0]]).read_all()
            assert own["start_ns"].to_pylist() == list(range(seen, seen + own.num_rows))
            seen, offset = seen + own.num_rows, offset + ends[-1][0]
            partial += ends[-1][0] < len(content)
    os.waitpid(child, 0)
    yield f"a growing file, opened again at each of {looks:,} looks ({partial} of them in the middle of a write):"
    yield f"    {seen:,} rows, each once and in order"


def forks(folder: Path) -> Iterator[str]:
    """Children that are forked between flushes, and end in every way."""
    path, size, batches = folder / "forks.arrows", 0, 100
    size = append(path, HEAD, size)
    for number in range(batches):
        size = append(path, message_of(rows_from(number, 1), number), size)
        child = os.fork()
        if not child:
            os._exit(0) if number % 2 else os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
    rows = sum(rows for _, rows in whole_batches(path.read_bytes(), len(HEAD)))
    yield f"{batches} forks between flushes: {rows} rows of {batches}"


def full_disk(folder: Path) -> Iterator[str]:
    """A disk that is full at any byte of a batch, and has room again for the next attempt."""
    path, message = folder / "full.arrows", message_of(rows_from(0, 20), 0)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    size = append(path, HEAD, 0)
    size, wrong, attempts = append(path, message, size), 0, 0
    for room in range(0, len(message), 37):
        attempts += 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, resource.RLIM_INFINITY))
        try:
            append(path, message, size)
        except OSError:
            wrong += path.stat().st_size != size
        else:
            wrong += 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    size = append(path, message, size)
    whole = len(list(whole_batches(path.read_bytes(), len(HEAD))))
    yield f"{attempts} disks that were full within a batch: {wrong} left anything behind; then {whole} batches of 2"


def databases(folder: Path) -> Iterator[str]:
    """DuckDB over the open journals of 200 workers, as a table, against the same rows in closed files."""
    batches = [rows_from(0, BATCH_ROWS, f"sampler-{number}") for number in range(200)]
    for number, batch in enumerate(batches):
        message = message_of(batch, 0)
        (folder / f"open-{number}.arrows").write_bytes(HEAD + message * 100)
        pq.write_table(pa.Table.from_batches([batch] * 100), folder / f"closed-{number}.parquet", compression="zstd")
    query = "SELECT worker_id, count(*), sum(end_ns - start_ns), max(running) FROM {} GROUP BY ALL ORDER BY ALL"
    answers: list[list[object]] = []

    def over_journals() -> None:
        connection = duckdb.connect(config={"threads": 1})
        connection.from_arrow(SCHEMA.empty_table()).create("rows")
        tables: list[pa.Table] = []
        for number in range(200):
            content = (folder / f"open-{number}.arrows").read_bytes()
            assert sum(rows for _, rows in whole_batches(content, len(HEAD))) == 100 * BATCH_ROWS
            tables.append(pa.ipc.open_stream(content).read_all().combine_chunks())
        connection.from_arrow(pa.concat_tables(tables)).insert_into("rows")
        answers.append(connection.sql(query.format("rows")).fetchall())

    def over_files() -> None:
        connection = duckdb.connect(config={"threads": 1})
        files = f"read_parquet('{folder}/closed-*.parquet')"
        connection.sql(f"CREATE TABLE rows AS FROM {files}")
        answers.append(connection.sql(query.format("rows")).fetchall())

    opened_s, closed_s = cpu_s(over_journals), cpu_s(over_files)
    assert answers[0] == answers[1]
    yield f"DuckDB, 2,000,000 rows of 200 workers into a table and one question: open journals {opened_s:.2f} s,"
    yield f"    checksums included; closed files {closed_s:.2f} s; the same answer"


def main() -> None:
    print(f"command: python {' '.join(sys.argv)}\npyarrow {pa.__version__}, duckdb {duckdb.__version__}; s of CPU\n")
    with tempfile.TemporaryDirectory() as name:
        for part in (growth, forks, full_disk, writes, polls, databases):
            folder = Path(name) / part.__name__
            folder.mkdir()
            for line in part(folder):
                print(line, flush=True)
    for line in damage():
        print(line, flush=True)


if __name__ == "__main__":
    main()
