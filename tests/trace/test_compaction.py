"""Few large files say what many small ones said, whatever happens while they are written."""

import json
import os
import shutil
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlscope_otel.parquet import write_table
from rlscope_otel.schema import (
    MERGED_KEYS,
    STAMP_KEYS,
    TABLES,
    FileNumbers,
    arrow_schema,
    chained_checksum,
    joined_checksum,
)
from rlscope_otel.worker_file import Written

import rlscope
from rlscope.alerts.live import files as live_files
from rlscope.alerts.live.files import LiveFiles
from rlscope.alerts.live.rows import _stored_rows
from rlscope.errors import ArgumentError, OutputError, RlscopeError, UnreadableDataError, VanishedFileError
from rlscope.trace import closed_files, compacted_file, compaction
from rlscope.trace.compacted_file import CompactedFile, CompactionSource
from rlscope.trace.compaction import Compaction, compact_run
from rlscope.trace.completeness import Completeness
from rlscope.trace.files import SkippedFile, TableFiles, list_table, read_workers
from rlscope.trace.segments import SEGMENTS_KEY, Segment, decoded, encoded
from rlscope.trace.store import open_run
from tests.faults.runs import store_run
from tests.nightly import nightly
from tests.trace.recorded import record, state, write_flush
from tests.trace_folder import Row, delivery_row, engine_row, sample_row, train_row, worker, write_rows, write_run

COMPLETE = Completeness("complete", is_verified=True)
ENGINE_FLUSHES = [
    [engine_row("e0", at, at + 1, decode_tokens=at), engine_row("e0", at + 1, at + 2)] for at in (0, 2, 4)
]
OTHER_FLUSHES = [[engine_row("e1", at, at + 2)] for at in (0, 2, 4, 6)]
SAMPLES = [[sample_row(f"s{at}", "e0", [(0, 0, 2), (1, 2, 4)], finished_ns=at)] for at in (1, 3, 5)]
TRAINER = {
    "train_steps": [[train_row("t0", 10 * step, 10 * step + 5, step, loss=0.5**step)] for step in (1, 2, 3)],
    "deliveries": [[delivery_row(f"s{at}", "t0", taken_ns=at + 10, step=1)] for at in (1, 3, 5)],
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two engines and a trainer, in 16 files, which states all that it wrote."""
    record(tmp_path / "run", "e0", "sampler", {"engine_steps": ENGINE_FLUSHES, "samples": SAMPLES})
    record(tmp_path / "run", "e1", "sampler", {"engine_steps": OTHER_FLUSHES})
    record(tmp_path / "run", "t0", "trainer", TRAINER)
    return tmp_path / "run"


def rows_of(folder: Path) -> dict[str, list[Any]]:
    """Every row of every table as an analysis sees it, in the order in which it sees them."""
    with open_run(folder) as opened:
        found = (table for table in TABLES if (folder / table).is_dir())
        return {table: opened.connection.sql(f"SELECT * FROM {table}").fetchall() for table in found}


def completeness(folder: Path) -> Completeness:
    with open_run(folder) as opened:
        return opened.completeness


def skipped(folder: Path) -> dict[str, str]:
    with open_run(folder) as opened:
        return {file.path: file.why for file in opened.skipped_files}


def files(folder: Path) -> list[str]:
    """Every file of the tables, hidden ones too."""
    return sorted(path.relative_to(folder).as_posix() for table in TABLES for path in (folder / table).glob("*"))


def tables_of(names: list[str]) -> list[str]:
    return [name.partition("/")[0] for name in names]


def test_each_table_becomes_one_file_with_the_same_rows_in_the_same_order(run: Path) -> None:
    before = rows_of(run)
    done = compact_run(run)
    assert (done.files_before, done.files_after, done.rows, done.left) == (16, 4, 6 + 4 + 3 + 3 + 3, ())
    assert tables_of(files(run)) == ["deliveries", "engine_steps", "samples", "train_steps"]
    assert all(name.partition("/")[2].startswith("compacted.") for name in files(run))
    assert rows_of(run) == before
    assert completeness(run) == COMPLETE
    assert skipped(run) == {}
    assert [path.name for path in run.iterdir() if path.name.startswith(".")] == []


def test_compacting_again_changes_nothing(run: Path) -> None:
    compact_run(run)
    before = files(run)
    assert compact_run(run).rows == 0
    assert files(run) == before


@pytest.mark.parametrize("recorder", ["counting", nightly("old")])
def test_every_question_is_answered_alike_before_and_after(recorder: str, tmp_path: Path) -> None:
    folder = store_run(tmp_path / "run", recorder, steps=8)  # type: ignore[arg-type]

    def answers() -> dict[str, pl.DataFrame]:
        with rlscope.open(folder) as opened:
            asked = ("ledger", "staleness_histogram", "token_staleness", "length_counts", "worker_states", "row_faults")
            return {name: opened.query(name) for name in asked}

    before, stated = answers(), completeness(folder)
    assert compact_run(folder, verify=True).files_after == 7
    assert {name: after.equals(before[name]) for name, after in answers().items()} == dict.fromkeys(before, True)
    assert (completeness(folder), stated.state) == (stated, "complete")


def test_the_whole_analysis_of_a_small_run_is_the_same_text(run: Path) -> None:
    before = rlscope.analyze(run, page=False).to_json()
    compact_run(run)
    assert rlscope.analyze(run, page=False).to_json() == before


def test_a_file_ends_with_the_source_at_which_it_reaches_its_size(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = rows_of(run)
    monkeypatch.setattr(compacted_file, "_GROUP_ROWS", 1)
    sizes = {(run / name).stat().st_size for name in files(run)}
    monkeypatch.setattr(compaction, "TARGET_BYTES", max(sizes) + 1)
    done = compact_run(run)
    assert 4 < done.files_after < 16
    assert rows_of(run) == before
    assert completeness(run) == COMPLETE


def test_a_file_of_the_wanted_size_is_left_as_it_is(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "TARGET_BYTES", min((run / name).stat().st_size for name in files(run)))
    before = files(run)
    assert (compact_run(run).files_after, files(run)) == (16, before)


class Killed(BaseException):
    """The process ended here."""


def kill_at(monkeypatch: pytest.MonkeyPatch, step: int) -> Callable[[], bool]:
    """End the process at this change of a name, before it happens; nothing can be tidied up after that."""
    changes = 0

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **named: Any) -> Any:
            nonlocal changes
            changes += 1
            if changes > step:
                raise Killed
            return change(*arguments, **named)

        return wrapper

    monkeypatch.setattr(os, "replace", counted(os.replace))
    monkeypatch.setattr(Path, "unlink", counted(Path.unlink))
    return lambda: changes > step


def test_a_kill_at_any_moment_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    record(run, "e0", "sampler", {"engine_steps": ENGINE_FLUSHES[:2], "samples": SAMPLES[:2]})
    record(run, "e1", "sampler", {"engine_steps": OTHER_FLUSHES[:1]})
    before = rows_of(run)
    for step in range(100):
        folder = tmp_path / f"killed-{step}"
        shutil.copytree(run, folder)
        with pytest.MonkeyPatch.context() as monkeypatch:
            was_killed = kill_at(monkeypatch, step)
            with suppress(Killed):
                compact_run(folder)
        assert rows_of(folder) == before, step
        assert (completeness(folder), skipped(folder)) == (COMPLETE, {}), step
        again = compact_run(folder)
        assert (again.files_after, len(files(folder)), rows_of(folder)) == (2, 2, before), step
        assert completeness(folder) == COMPLETE
        if not was_killed():
            break
    assert step > 7  # Each of 5 files was removed, and 2 got their names.


def test_what_is_recorded_after_a_compaction_is_compacted_with_it(run: Path) -> None:
    compact_run(run)
    more = [[engine_row("e1", at, at + 2)] for at in (8, 10)]
    counted = Written(**json.loads((run / "workers" / "e1.json").read_text())["written"]["engine_steps"])
    for sequence, rows in enumerate(more, start=5):
        _, checksum = write_flush(run, "engine_steps", "e1", sequence, rows)
        counted = counted.and_file(sequence, 1, checksum)
    state(run, "e1", "sampler", {"engine_steps": counted})
    before = rows_of(run)
    assert completeness(run) == COMPLETE
    assert compact_run(run).files_after == 4
    assert {table: sorted(rows) for table, rows in rows_of(run).items()} == {
        table: sorted(rows) for table, rows in before.items()
    }
    assert completeness(run) == COMPLETE


def live_run(folder: Path, flushes: int, counted: int, **more: Any) -> Path:
    """An engine that records: `counted` of its files are in its worker file, and all were written an hour ago."""
    rows = [[engine_row("e0", at, at + 1)] for at in range(flushes)]
    written = record(folder, "e0", "sampler", {"engine_steps": rows[:counted]}, **recording())["engine_steps"]
    for sequence in range(counted + 1, flushes + 1):
        write_flush(folder, "engine_steps", "e0", sequence, rows[sequence - 1])
    state(folder, "e0", "sampler", {"engine_steps": written}, **{**recording(), **more})
    for path in (folder / "engine_steps").iterdir():
        os.utime(path, ns=(0, 0))
    return folder


def recording() -> dict[str, object]:
    return {"stopped_ns": None, "last_flush_ns": time.time_ns()}


@pytest.mark.parametrize(("counted", "left"), [(5, ["e0-000005"]), (3, ["e0-000004", "e0-000005"])])
def test_of_a_worker_that_records_the_newest_file_and_those_it_has_not_counted_stay(
    counted: int, left: list[str], tmp_path: Path
) -> None:
    folder = live_run(tmp_path / "run", 5, counted)
    before = rows_of(folder)
    assert compact_run(folder).recording == ("e0",)
    assert files(folder)[1:] == [f"engine_steps/{name}.parquet" for name in left]
    assert rows_of(folder) == before
    assert completeness(folder).state == "complete"


def test_a_run_that_goes_on_is_complete_after_each_compaction(tmp_path: Path) -> None:
    folder = live_run(tmp_path / "run", 5, 5)
    compact_run(folder)
    counted = Written(**json.loads((folder / "workers" / "e0.json").read_text())["written"]["engine_steps"])
    for sequence in (6, 7, 8):
        path, checksum = write_flush(folder, "engine_steps", "e0", sequence, [engine_row("e0", sequence, sequence + 1)])
        os.utime(path, ns=(0, 0))
        counted = counted.and_file(sequence, 1, checksum)
        state(folder, "e0", "sampler", {"engine_steps": counted}, **recording())
        compact_run(folder)
        assert completeness(folder) == COMPLETE
        assert len(files(folder)) == 2
    state(folder, "e0", "sampler", {"engine_steps": counted})
    compact_run(folder)
    assert (len(files(folder)), len(rows_of(folder)["engine_steps"])) == (1, 8)
    assert completeness(folder) == COMPLETE


@pytest.mark.parametrize(("age_ns", "count"), [(closed_files.SETTLED_NS - 1, 5), (closed_files.SETTLED_NS, 2)])
def test_files_of_a_worker_that_records_are_left_until_a_watch_has_read_them(
    age_ns: int, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, now_ns = live_run(tmp_path / "run", 5, 5), time.time_ns()
    for path in (folder / "engine_steps").iterdir():
        os.utime(path, ns=(now_ns - age_ns, now_ns - age_ns))
    monkeypatch.setattr(closed_files.time, "time_ns", lambda: now_ns)
    assert compact_run(folder).files_after == count


@pytest.mark.parametrize(("silent_ns", "count"), [(closed_files.SILENT_NS, 2), (closed_files.SILENT_NS + 1, 1)])
def test_a_worker_that_was_killed_is_over_once_it_is_silent_for_an_hour(
    silent_ns: int, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = time.time_ns()
    folder = live_run(tmp_path / "run", 5, 5, last_flush_ns=now_ns - silent_ns)
    written_ns = now_ns - closed_files.WRITES_NS
    os.utime(folder / "workers" / "e0.json", ns=(written_ns, written_ns))
    monkeypatch.setattr(closed_files.time, "time_ns", lambda: now_ns)
    assert compact_run(folder).files_after == count


@pytest.mark.parametrize(
    ("clock_ns", "age_ns", "is_recording"),
    [
        (-2 * 3_600 * 10**9, 0, True),
        (2 * 3_600 * 10**9, 0, True),
        (2 * 3_600 * 10**9, closed_files.SILENT_NS, True),
        (2 * 3_600 * 10**9, closed_files.SILENT_NS + 1, False),
    ],
    ids=["behind", "ahead", "ahead and nearly silent", "ahead and killed"],
)
def test_whether_a_worker_records_does_not_hang_on_the_clock_of_its_host(
    clock_ns: int, age_ns: int, is_recording: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = time.time_ns()
    folder = live_run(tmp_path / "run", 5, 5, last_flush_ns=now_ns - age_ns + clock_ns)
    os.utime(folder / "workers" / "e0.json", ns=(now_ns - age_ns, now_ns - age_ns))
    monkeypatch.setattr(closed_files.time, "time_ns", lambda: now_ns)
    assert bool(compact_run(folder).recording) == is_recording


@pytest.mark.parametrize("times", [1, 3])
def test_a_copy_of_a_run_whose_files_are_merged_meanwhile_is_whole_or_not_made(
    times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = live_run(tmp_path / "run", 5, 5)
    before, gone = rows_of(folder), folder / "engine_steps" / "e0-000003.parquet"
    kept, calls = gone.read_bytes(), list[int]()

    def add(file: CompactedFile, source: CompactionSource, joins_until: int | None = None) -> str | None:
        if source.path == gone and len(calls) < times:
            calls.append(1)
            gone.unlink()
        return real(file, source, joins_until)

    def listed(of: Path, table: str) -> tuple[TableFiles, list[SkippedFile]]:
        gone.write_bytes(kept)
        return list_table(of, table)

    real = CompactedFile.add
    monkeypatch.setattr(CompactedFile, "add", add)
    monkeypatch.setattr(compaction, "list_table", listed)
    if times == 3:
        with pytest.raises(VanishedFileError, match="vanished while they were copied, 3 times"):
            compact_run(folder, tmp_path / "copy")
        return
    compact_run(folder, tmp_path / "copy")
    assert rows_of(tmp_path / "copy") == before


def test_a_recorder_that_merges_its_own_files_is_left_to_it(tmp_path: Path) -> None:
    folder = live_run(tmp_path / "run", 5, 5)
    document = json.loads((folder / "workers" / "e0.json").read_text())
    document["written"]["samples"] = {"rows": 0, "last_file": 0, "checksum": 0, "merged": {"000001_000002": 7}}
    (folder / "workers" / "e0.json").write_text(json.dumps(document))
    done = compact_run(folder)
    assert (done.files_after, done.recording) == (5, ("e0",))


def test_rows_that_a_killed_worker_had_not_counted_stay_no_gap(tmp_path: Path) -> None:
    folder = live_run(tmp_path / "run", 5, 3, last_flush_ns=1)
    os.utime(folder / "workers" / "e0.json", ns=(0, 0))
    before = completeness(folder)
    assert compact_run(folder).files_after == 1
    assert (completeness(folder), len(rows_of(folder)["engine_steps"])) == (before, 5)


def merged_by_its_recorder(run: Path, first: int, last: int) -> tuple[Path, int]:
    """Files of e1 merged as a recorder does it, and the CRC-32 of what came of it."""
    paths = [run / "engine_steps" / f"e1-{number:06d}.parquet" for number in range(first, last + 1)]
    checksum = 0
    for number, path in enumerate(paths, start=first):
        checksum = chained_checksum(checksum, number, zlib.crc32(path.read_bytes()))
    parts = ",".join(f"{number}:1" for number in range(first, last + 1))
    stamp = dict(zip(STAMP_KEYS, ("run", "engine_steps", "e1", last), strict=True))
    stamp |= dict(zip(MERGED_KEYS, (first, len(paths), checksum, parts), strict=True))
    held = pa.concat_tables([pq.read_table(path) for path in paths])
    held = held.replace_schema_metadata(arrow_schema("engine_steps").metadata)
    path = run / "engine_steps" / FileNumbers("e1", first, last).name
    crc32 = write_table(held, path, stamp)
    for each in paths:
        each.unlink()
    return path, crc32


@pytest.mark.parametrize("is_stated", [True, False])
def test_files_that_a_recorder_merged_are_compacted_if_they_are_what_it_states(is_stated: bool, run: Path) -> None:
    path, crc32 = merged_by_its_recorder(run, 1, 3)
    document = json.loads((run / "workers" / "e1.json").read_text())
    document["written"]["engine_steps"]["merged"] = {"000001_000003": crc32 if is_stated else crc32 ^ 1}
    (run / "workers" / "e1.json").write_text(json.dumps(document))
    before, stated = rows_of(run), completeness(run)
    done = compact_run(run)
    assert [each.why for each in done.left] == (
        [] if is_stated else ["its content does not match its recorder's checksum"]
    )
    assert path.exists() != is_stated
    assert {table: sorted(rows) for table, rows in rows_of(run).items()} == {
        table: sorted(rows) for table, rows in before.items()
    }
    assert completeness(run) == stated
    assert (stated == COMPLETE) == is_stated


def test_what_a_killed_recorder_had_merged_and_not_removed_goes_too(run: Path) -> None:
    parts = {path: path.read_bytes() for path in (run / "engine_steps").glob("e1-*")}
    _, crc32 = merged_by_its_recorder(run, 1, 4)
    for path, content in parts.items():
        path.write_bytes(content)
    document = json.loads((run / "workers" / "e1.json").read_text())
    document["written"]["engine_steps"]["merged"] = {"000001_000004": crc32}
    (run / "workers" / "e1.json").write_text(json.dumps(document))
    before = rows_of(run)
    assert (compact_run(run).files_after, len(files(run)), rows_of(run)) == (4, 4, before)
    assert completeness(run) == COMPLETE


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    column = pq.read_metadata(path).row_group(0).column(1)
    content[column.data_page_offset + column.total_compressed_size - 3] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("lost", ["e1", "e0", None])
def test_a_compacted_folder_of_two_runs_outlives_the_loss_of_a_worker_file(lost: str | None, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for worker_id, run_id in (("e0", "run"), ("e1", "other")):
        rows = [[engine_row(worker_id, at, at + 1)] for at in range(2)]
        written = record(folder, worker_id, "sampler", {"engine_steps": rows})
        own = Written()
        for sequence in (1, 2):
            path = folder / "engine_steps" / f"{worker_id}-{sequence:06d}.parquet"
            stamp = dict(zip(STAMP_KEYS, (run_id, "engine_steps", worker_id, sequence), strict=True))
            own = own.and_file(sequence, 1, write_table(pq.read_table(path), path, stamp))
        state(folder, worker_id, "sampler", written | {"engine_steps": own}, run_id=run_id)
    assert compact_run(folder).files_after == 1
    if lost is not None:
        (folder / "workers" / f"{lost}.json").unlink()
    with open_run(folder) as opened:
        assert (opened.skipped_files, opened.row_counts["engine_steps"]) == ((), 4)
        assert (lost is None) == (opened.completeness.state == "complete")


def test_a_damaged_file_is_left_and_named_and_the_rest_is_compacted(run: Path) -> None:
    flip_a_bit(run / "engine_steps" / "e1-000002.parquet")
    before, said = rows_of(run), skipped(run)
    done = compact_run(run)
    assert [each.path for each in done.left] == ["engine_steps/e1-000002.parquet"]
    assert "cannot be read" in done.left[0].why
    assert (rows_of(run), skipped(run), len(files(run))) == (before, said, 5)
    assert [(gap.kind, gap.worker_id, gap.rows) for gap in completeness(run).gaps] == [("missing", "e1", 1)]


def test_a_copy_holds_nothing_that_links_of_the_run_point_to(run: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("password")
    for name in ("notes.txt", "workers/x.json", "engine_steps/e1-000009.parquet"):
        (run / name).symlink_to(tmp_path / "secret")
    (run / "alias.json").symlink_to(run / "run.json")
    compact_run(run, tmp_path / "copy")
    copied = [path for path in (tmp_path / "copy").rglob("*") if path.is_file()]
    assert "alias.json" in {path.name for path in copied}
    assert not [path for path in copied if b"password" in path.read_bytes()]


def test_a_column_that_the_format_does_not_have_is_not_lost(run: Path) -> None:
    path = run / "engine_steps" / "e1-000002.parquet"
    held = pq.read_table(path)
    pq.write_table(held.append_column("mine", pa.array([7])), path)
    done = compact_run(run)
    assert [each.why for each in done.left] == ["it has a column mine, which is not in the format"]
    assert pq.read_table(path)["mine"].to_pylist() == [7]


def test_a_column_that_an_older_recorder_did_not_write_is_null_as_before(tmp_path: Path) -> None:
    folder = write_run(tmp_path, [worker("e0", "sampler")])
    for sequence in (1, 2):
        path = write_rows(folder, "engine_steps", "e0", [engine_row("e0", sequence, sequence + 1)], sequence)
        pq.write_table(pq.read_table(path).drop_columns(["source", "preemptions"]), path)
    before = rows_of(folder)
    assert (compact_run(folder).files_after, rows_of(folder)) == (1, before)


@pytest.mark.parametrize(
    ("kind", "ids", "left"),
    [
        (pa.string(), ["s0"], []),
        (pa.large_string(), ["s0"], []),
        (pa.dictionary(pa.int32(), pa.string()), ["s0"], []),
        (pa.string(), [None], ["column sample_id holds NULL, which the format does not allow"]),
    ],
)
@pytest.mark.parametrize("whole_bytes", [4 * 10**6, 0])
def test_files_of_other_writers_are_compacted_unless_they_hold_what_the_format_cannot(
    kind: pa.DataType, ids: list[str | None], left: list[str], whole_bytes: int, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(compacted_file, "_WHOLE_BYTES", whole_bytes)
    folder = write_run(tmp_path, [worker("e0", "sampler")])
    for sequence in (1, 2):
        path = write_rows(folder, "samples", "e0", [sample_row(f"s{sequence}", "e0", [])], sequence)
    held = pq.read_table(path).set_column(0, pa.field("sample_id", kind), pa.array(ids, kind))
    place = held.schema.get_field_index("prompt_tokens")
    pq.write_table(held.set_column(place, pa.field("prompt_tokens", pa.int64()), pa.array([7], pa.int64())), path)
    before, done = rows_of(folder), compact_run(folder)
    assert [each.why.removeprefix("cannot be read: ") for each in done.left] == left
    assert (len(files(folder)), rows_of(folder)) == (1 + len(left), before)


@pytest.mark.parametrize("worker_id", ["e0", "x9"])
def test_a_file_of_another_run_is_left_for_it_would_cost_all_rows_compacted_with_it(worker_id: str, run: Path) -> None:
    before = rows_of(run)
    held = pq.read_table(run / "engine_steps" / "e0-000001.parquet").replace_schema_metadata(None)
    path = run / "engine_steps" / f"{worker_id}-000009.parquet"
    stamp: dict[str, Any] = dict(zip(STAMP_KEYS, ("another", "engine_steps", worker_id, 9), strict=True))
    write_table(held.cast(arrow_schema("engine_steps")), path, stamp)
    os.utime(path, (1, 1))
    (left,) = compact_run(run).left
    assert (left.path, left.why) == (f"engine_steps/{path.name}", "it belongs to run 'another' according to its footer")
    assert rows_of(run) == before
    assert completeness(run).state == "complete"


def test_other_content_is_named_after_a_compaction_as_before(run: Path) -> None:
    path = run / "train_steps" / "t0-000001.parquet"
    held = pq.read_table(path)
    stamp = {key: pq.read_metadata(path).metadata[key.encode()].decode() for key in STAMP_KEYS}
    changed = held.set_column(1, held.schema.field(1), pa.array([9]))
    write_table(changed.replace_schema_metadata(arrow_schema("train_steps").metadata), path, stamp)
    before = completeness(run)
    assert [(gap.kind, gap.table) for gap in before.gaps] == [("changed", "train_steps")]
    compact_run(run)
    assert completeness(run) == before


def test_a_page_damaged_in_a_compacted_file_costs_that_file_and_names_its_workers(run: Path) -> None:
    compact_run(run)
    (path,) = (run / "engine_steps").iterdir()
    flip_a_bit(path)
    (why,) = skipped(run).values()
    assert why.startswith("damaged after it was written: ") and why.endswith("its 10 rows are left out")
    gaps = [(gap.kind, gap.worker_id, gap.rows) for gap in completeness(run).gaps]
    assert gaps == [("missing", "e0", 6), ("missing", "e1", 4)]


def test_other_content_of_a_compacted_file_is_named_by_worker(run: Path) -> None:
    compact_run(run)
    (path,) = (run / "engine_steps").iterdir()
    held = pq.read_table(path)
    held = held.set_column(1, held.schema.field(1), pa.array([each + 1 for each in held[1].to_pylist()]))
    listed = pq.read_metadata(path).metadata[SEGMENTS_KEY.encode()].decode()
    write_table(held.replace_schema_metadata(arrow_schema("engine_steps").metadata), path, {SEGMENTS_KEY: listed})
    gaps = [(gap.kind, gap.worker_id) for gap in completeness(run).gaps]
    assert gaps == [("changed", "e0"), ("changed", "e1")]
    before = files(run)
    record(run, "e2", "sampler", {"engine_steps": [[engine_row("e2", 0, 1)], [engine_row("e2", 1, 2)]]})
    done = compact_run(run)
    assert [each.why for each in done.left] == ["its content does not match the checksum in its name"]
    assert set(before) <= set(files(run))


def test_a_copy_of_a_compacted_file_is_counted_once(run: Path) -> None:
    before = rows_of(run)
    compact_run(run)
    (path,) = (run / "samples").iterdir()
    shutil.copy(path, path.with_name("compacted.00000000.parquet"))
    assert rows_of(run) == before


def test_with_out_the_run_is_written_elsewhere_and_stays_as_it_was(run: Path, tmp_path: Path) -> None:
    (run / "pipeline_summary.json").write_text("{}")
    flip_a_bit(run / "engine_steps" / "e1-000002.parquet")
    (run / "samples" / "e0-000009.parquet").write_bytes(b"no file")
    names, before = files(run), rows_of(run)
    done = compact_run(run, tmp_path / "new" / "run", verify=True)
    assert (done.path, done.files_before, done.files_after) == (tmp_path / "new" / "run", 17, 6)
    assert (files(run), rows_of(done.path), skipped(done.path)) == (names, before, skipped(run))
    top = sorted(path.name for path in done.path.iterdir())
    assert top == [
        "deliveries", "engine_steps", "pipeline_summary.json", "run.json", "samples", "train_steps", "workers"
    ]  # fmt: skip


def test_a_copy_that_was_cut_off_is_no_run_and_is_begun_anew(run: Path, tmp_path: Path) -> None:
    before = rows_of(run)
    with pytest.MonkeyPatch.context() as monkeypatch:
        kill_at(monkeypatch, 2)
        with pytest.raises(Killed):
            compact_run(run, tmp_path / "new")
    with pytest.raises(rlscope.RlscopeError, match="found no run"):
        rlscope.open(tmp_path / "new")
    assert compact_run(run, tmp_path / "new").files_after == 4
    assert rows_of(tmp_path / "new") == before


@pytest.mark.parametrize(
    ("out", "why"),
    [("full", "existing files"), ("run/inside", "a folder inside the run"), (".", "or one that contains it")],
)
def test_a_folder_that_cannot_take_the_copy_is_refused(out: str, why: str, run: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    with pytest.raises(OutputError, match=why):
        compact_run(run, tmp_path / out)
    assert (tmp_path / "full" / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize(("path", "out"), [("s3://runs/monday", None), ("run", "s3:/runs/monday")])
def test_a_run_in_an_object_store_is_refused(path: str, out: str | None, run: Path) -> None:
    with pytest.raises(ArgumentError, match="s3://runs/monday: found an address in an object store"):
        compact_run(run if path == "run" else Path(path), None if out is None else Path(out))


def test_rows_that_differ_when_they_are_verified_cost_the_new_file_and_nothing_else(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files(run)

    def lossy(file: compacted_file.CompactedFile, group_rows: int) -> None:
        file._held = file._held[1:]  # pyright: ignore[reportPrivateUsage]
        write(file, group_rows)

    write = compacted_file.CompactedFile._write_held  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(compacted_file.CompactedFile, "_write_held", lossy)
    with pytest.raises(UnreadableDataError, match=r"found 2 rows .*; expected 3 rows"):
        compact_run(run, verify=True)
    assert files(run) == before


@pytest.mark.parametrize("change", [{"decode_tokens": 8}, {"source": "measured"}, {"kv_used_tokens": 0}])
def test_the_checksum_of_rows_changes_with_a_value_and_not_with_their_order(change: Row, tmp_path: Path) -> None:
    rows = [engine_row("e0", at, at + 1, decode_tokens=7) for at in range(3)]

    def fingerprint(*given: Row) -> tuple[int, int]:
        path = write_rows(write_run(tmp_path, []), "engine_steps", "e0", given)
        return compacted_file.fingerprint("engine_steps", [path])

    assert fingerprint(*rows) == fingerprint(*reversed(rows))
    assert fingerprint(*rows) != fingerprint(*rows[:2], {**rows[2], **change})
    assert fingerprint(*rows)[0] == 3


def test_while_another_compaction_works_on_the_run_it_is_refused(run: Path) -> None:
    with compaction._locked(run), pytest.raises(RlscopeError, match="another compaction in progress"):  # pyright: ignore
        compact_run(run)
    assert compact_run(run).files_after == 4


def test_a_lock_whose_file_cannot_be_removed_is_released(run: Path) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(Path, "unlink", Mock(side_effect=PermissionError))
        # What was raised keeps every frame alive, and with it what they hold.
        with pytest.raises(PermissionError) as refused, compaction._locked(run):  # pyright: ignore
            pass
    assert compact_run(run).files_after == 4
    assert refused.type is PermissionError


def test_a_folder_that_cannot_be_written_is_said_and_loses_nothing(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = files(run)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", str(run / "samples"))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left on device"):
        compact_run(run)
    assert files(run) == before


def segment(worker_id: str, first: int, last: int, checksum: int = 0, rows: int = 1) -> Segment:
    return Segment("run", FileNumbers(worker_id, first, last), last - first + 1, checksum, rows, 0, 9)


@given(st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=9), st.data())
def test_segments_joined_anywhere_have_the_checksum_of_all_files(crc32s: list[int], data: st.DataObject) -> None:
    def chained(first: int, last: int) -> int:
        checksum = 0
        for number in range(first, last + 1):
            checksum = chained_checksum(checksum, number, crc32s[number - 1])
        return checksum

    count, cut = len(crc32s), data.draw(st.integers(1, len(crc32s) - 1))
    before, after = segment("e0", 1, cut, chained(1, cut)), segment("e0", cut + 1, count, chained(cut + 1, count))
    assert before.is_followed_by(after) and not after.is_followed_by(before)
    assert before.joined(after) == segment("e0", 1, count, chained(1, count), rows=2)
    assert joined_checksum(chained(1, cut), chained(cut + 1, count), count - cut) == chained(1, count)


def test_a_list_of_segments_is_read_as_it_was_written() -> None:
    segments = (segment("e0", 1, 4), segment("e1", 2, 2)._replace(first_ns=None, last_ns=None, run_id=""))
    assert decoded({SEGMENTS_KEY.encode(): encoded(segments).encode()}, rows=2) == segments
    assert decoded({}, rows=2) == ()


@pytest.mark.parametrize(
    "listed",
    [
        "no list", "{}", "[7]", "[[]]", '[["r","e",1,2,2,0,3,0,9]]', '[["r","e",2,1,1,0,2,0,9]]',
        '[["r","e",0,1,1,0,2,0,9]]', '[["r","e",1,1,2,0,2,0,9]]', '[["r","e",1,1,1,4294967296,2,0,9]]',
        '[["r","e",1,99999999,99999999,0,2,0,9]]', '[["r","e",1,1,1,0,-1,0,9],["r","e",2,2,1,0,3,0,9]]',
    ],
)  # fmt: skip
def test_a_list_of_segments_that_cannot_be_makes_the_file_unreadable(listed: str, run: Path) -> None:
    held = pq.read_table(run / "train_steps" / "t0-000001.parquet")
    held = pa.concat_tables([held, held]).replace_schema_metadata(arrow_schema("train_steps").metadata)
    write_table(held, run / "train_steps" / "compacted.00000000.parquet", {SEGMENTS_KEY: listed})
    assert "cannot be read" in skipped(run)["train_steps/compacted.00000000.parquet"]


def test_a_watch_that_begins_after_a_compaction_sees_the_same_rows_and_one_that_began_before_sees_none_twice(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seen(files: LiveFiles) -> dict[tuple[str, str], int]:
        rows: dict[tuple[str, str], int] = {}
        found = files.look(workers, 0)
        for read in found.read:
            ids = [numbers.worker_id for numbers in read.numbers]
            assert read.rows["worker_id"].to_pylist() == np.repeat(ids, read.counts).tolist()
            for worker_id, count in zip(ids, read.counts.tolist(), strict=True):
                rows[read.table, worker_id] = rows.get((read.table, worker_id), 0) + count
        for file in found.files:
            held = _stored_rows(file)
            assert set(held["worker_id"].to_pylist()) == {file.numbers.worker_id}
            assert held.num_rows == file.rows
            key = (file.table, file.numbers.worker_id)
            rows[key] = rows.get(key, 0) + held.num_rows
        return rows

    workers, _ = read_workers(run)
    before, after = LiveFiles(run, 0, TABLES), LiveFiles(run, 0, TABLES)
    rows = seen(before)
    assert rows[("engine_steps", "e0")] == 6
    compact_run(run)
    monkeypatch.setattr(live_files, "_PIECE_ROWS", 4)
    monkeypatch.setattr(live_files, "_LIST_EVERY", 1)
    assert seen(before) == {}
    assert seen(after) == rows
    assert (after.last_ns, after.stored_rows, after.skipped) == (before.last_ns, before.stored_rows, before.skipped)
    assert after.step_end_ns == before.step_end_ns == 35
    assert all(map(after.is_complete, workers))
    assert seen(after) == {}


def test_what_a_worker_of_any_name_writes_meanwhile_is_no_leftover(run: Path) -> None:
    part = run / "engine_steps" / ".compacted.e0-000001.parquet.part"
    part.write_bytes(b"being written")
    assert (compact_run(run).leftovers, part.exists()) == (0, True)


def test_a_watch_names_a_compacted_file_that_stays_unreadable_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compact_run(run)
    monkeypatch.setattr(live_files, "_LIST_EVERY", 1)
    (path,) = (run / "train_steps").iterdir()
    path.write_bytes(path.read_bytes()[:-4])
    workers, _ = read_workers(run)
    watch = LiveFiles(run, patience_ns=10)
    for now_ns in (0, 9):
        watch.look(workers, now_ns)
        assert watch.skipped == []
    for now_ns in (10, 20, 30):
        watch.look(workers, now_ns)
    (why,) = watch.skipped
    assert why.startswith(f"skipped train_steps/{path.name}: no Parquet magic bytes")


def test_what_came_of_it_has_no_surprise(run: Path) -> None:
    done = rlscope.compact(run)
    sizes = sum((run / name).stat().st_size for name in files(run))
    assert isinstance(done, Compaction)
    assert (done.bytes_after, done.is_verified, done.leftovers, done.recording) == (sizes, False, 0, ())
    assert done.bytes_before > done.bytes_after
