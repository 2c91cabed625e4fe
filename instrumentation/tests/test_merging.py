"""Small files are merged while the run goes on; whenever the process is killed, every row is there once."""

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlscope_otel import merged_file, schema, settings, start_run
from rlscope_otel.errors import SetupError
from rlscope_otel.schema import TABLES, FileNumbers, arrow_schema
from rlscope_otel.stored_files import Levels, StoredFile, TableFiles

from rlscope.trace.completeness import Completeness, check_files
from rlscope.trace.files import list_table, read_manifest, read_workers

TABLE = "engine_steps"
COMPLETE = Completeness("complete", is_verified=True)


def read_back(run_dir: Path) -> tuple[list[int], Completeness, list[str]]:
    """What the analysis makes of the folder: the first column of the rows, the verdict and the names of the files."""
    workers, skipped = read_workers(run_dir)
    tables = {table: list_table(run_dir, table)[0] for table in TABLES}
    checked = check_files(run_dir, read_manifest(run_dir).run_id, workers, tables)
    assert (skipped, checked.skipped) == ([], [])
    paths = checked.tables[TABLE].paths
    found = [start for path in paths for start in pq.read_table(path)["start_ns"].to_pylist()]
    return found, checked.completeness, [path.stem.removeprefix("w0-") for path in paths]


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def names(run_dir: Path) -> set[str]:
    return {path.name.removeprefix("w0-").removesuffix(".parquet") for path in (run_dir / TABLE).iterdir()}


# --- which files are merged when


def flushed(sequence: int, since_s: float, size_bytes: int = 10) -> StoredFile:
    return StoredFile.flushed(sequence, 1, size_bytes, sequence, since_s)


def files_of(intervals_s: tuple[float, ...], *files: StoredFile, max_bytes: int = 1000) -> TableFiles:
    table = TableFiles(Levels(intervals_s, max_bytes))
    for file in files:
        table.add(file)
    return table


def ranges(files: tuple[StoredFile, ...]) -> list[tuple[int, int]]:
    return [(file.first, file.last) for file in files]


@pytest.mark.parametrize(("now_s", "due"), [(299.9, []), (300.0, [(1, 1), (2, 2)])])
def test_flushes_are_merged_once_the_oldest_has_waited_the_first_interval(now_s: float, due: list[object]) -> None:
    files = files_of((300.0,), flushed(1, 0.0), flushed(2, 250.0))
    assert ranges(files.due(now_s, 2)) == due


def test_only_files_that_the_worker_file_counts_are_merged() -> None:
    files = files_of((300.0,), flushed(1, 0.0), flushed(2, 0.0), flushed(3, 0.0))
    assert ranges(files.due(300.0, 2)) == [(1, 1), (2, 2)]


@pytest.mark.parametrize(("max_bytes", "due"), [(30, [1, 2, 3]), (29, [1, 2])])
def test_files_are_merged_as_long_as_they_fit_the_largest_file(max_bytes: int, due: list[int]) -> None:
    files = files_of((1.0,), *(flushed(number, 0.0) for number in range(1, 5)), max_bytes=max_bytes)
    assert [part.first for part in files.due(1.0, 4)] == due


def test_a_file_without_company_waits_at_the_next_level() -> None:
    files = files_of((1.0, 5.0), flushed(1, 0.0))
    assert files.due(1.0, 1) == ()
    assert [(file.level, file.since_s) for file in files.files] == [(1, 1.0)]


def test_without_intervals_nothing_is_kept_in_mind() -> None:
    files = files_of((), flushed(1, 0.0), flushed(2, 0.0))
    assert (files.files, files.due(1e9, 2)) == ([], ())


@given(st.lists(st.tuples(st.floats(0.1, 5), st.integers(1, 60)), min_size=1, max_size=40))
def test_merging_keeps_every_number_in_order_and_never_merges_across_a_hole(steps: list[tuple[float, int]]) -> None:
    files, now_s = files_of((2.0, 7.0, 20.0), max_bytes=100), 0.0
    for sequence, (passed_s, size_bytes) in enumerate(steps, start=1):
        now_s += passed_s
        files.add(flushed(sequence, now_s, size_bytes))
        while parts := files.due(now_s, sequence):
            assert len({part.level for part in parts}) == 1
            assert sum(part.bytes for part in parts) <= 100
            files.replace(parts, StoredFile.of(parts, sum(part.bytes for part in parts), now_s))
        ends = [0, *(file.last for file in files.files)]
        assert [file.first for file in files.files] == [end + 1 for end in ends[:-1]]
        assert ends[-1] == sum(file.files for file in files.files) == sequence


# --- in a run


def test_flushes_become_larger_files_again_and_again_and_no_row_moves(tmp_path: Path) -> None:
    with start_run(tmp_path, "sampler", "w0", flush_interval_s=3600, merge_intervals_s=(0.05, 0.4)) as run:
        recorded = 0

        def record() -> bool:
            nonlocal recorded
            run.engine_step(recorded, recorded + 1)
            recorded += 1
            run.flush()
            return any(name.startswith("000001_0") and name > "000001_000020" for name in names(tmp_path))

        until(record)
        until(lambda: run.flush() and "000001" not in names(tmp_path))
    found, completeness, _ = read_back(tmp_path)
    assert (found, completeness) == (list(range(recorded)), COMPLETE)
    assert run.faults.counts == {}


def test_a_merged_file_has_the_rows_types_and_encodings_of_its_parts(tmp_path: Path) -> None:
    with start_run(tmp_path, "sampler", "w0", flush_interval_s=3600, merge_intervals_s=(0.5,)) as run:
        for number in range(3):
            sample = run.sample(f"s{number}", group_id=None if number else "g")
            sample.tokens(3, number)
            sample.finish()
            run.flush()
        merged = tmp_path / "samples" / "w0-000001_000003.parquet"
        until(lambda: run.flush() and merged.exists())
    rows = pq.read_table(merged)
    assert rows.schema.equals(arrow_schema("samples"), check_metadata=False)
    assert rows["sample_id"].to_pylist() == ["s0", "s1", "s2"]
    assert rows["versions"].to_pylist()[1] == [{"version": 1, "start": 0, "end": 3}]
    group = pq.read_metadata(merged).row_group(0)
    encodings = {group.column(index).path_in_schema: group.column(index).encodings for index in range(3)}
    assert "RLE_DICTIONARY" in encodings["sample_id"]
    assert "DELTA_BINARY_PACKED" in encodings["segment"]


def test_a_large_merge_holds_a_few_row_groups_and_not_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merged_file, "_GROUP_ROWS", 100)
    with start_run(tmp_path, "sampler", "w0", flush_interval_s=3600, merge_intervals_s=(1.0,)) as run:
        for number in range(1000):
            run.engine_step(number, number + 1)
            if number % 50 == 49:
                run.flush()
        until(lambda: run.flush() and names(tmp_path) == {"000001_000020"})
    assert read_back(tmp_path)[:2] == (list(range(1000)), COMPLETE)
    (path,) = (tmp_path / TABLE).iterdir()
    groups = pq.read_metadata(path)
    assert [groups.row_group(index).num_rows for index in range(groups.num_row_groups)] == [100] * 10


def test_the_parts_stay_for_who_listed_the_folder_before(tmp_path: Path) -> None:
    with start_run(tmp_path, "sampler", "w0", flush_interval_s=3600, merge_intervals_s=(0.8,)) as run:
        for number in range(3):
            run.engine_step(number, number + 1)
            run.flush()
        until(lambda: run.flush() and "000001_000003" in names(tmp_path))
        assert {"000001", "000002", "000003"} < names(tmp_path)
        until(lambda: run.flush() and names(tmp_path) == {"000001_000003"})


def test_a_part_that_is_not_as_it_was_written_is_merged_with_nothing(tmp_path: Path) -> None:
    with start_run(tmp_path, "sampler", "w0", flush_interval_s=3600, merge_intervals_s=(0.2,)) as run:
        for number in range(3):
            run.engine_step(number, number + 1)
            run.flush()
        path = tmp_path / TABLE / "w0-000002.parquet"
        content = bytearray(path.read_bytes())
        column = pq.read_metadata(path).row_group(0).column(1)
        content[column.data_page_offset + column.total_compressed_size - 1] ^= 1
        path.write_bytes(content)
        until(lambda: run.flush() and bool(run.faults.counts))
        for number in range(3, 5):
            run.engine_step(number, number + 1)
            run.flush()
        until(lambda: run.flush() and "000004_000005" in names(tmp_path))
    assert list(run.faults.counts) == ["cannot merge files of engine_steps"]
    assert {"000001", "000002", "000003"} < names(tmp_path)


def test_a_run_without_merging_keeps_every_flush(tmp_path: Path) -> None:
    with start_run(tmp_path, "sampler", "w0", flush_interval_s=3600, merge_intervals_s=()) as run:
        for number in range(3):
            run.engine_step(number, number + 1)
            run.flush()
    assert names(tmp_path) == {"000001", "000002", "000003"}


@pytest.mark.parametrize(
    ("text", "intervals_s"),
    [("", (300.0, 10_800.0, 86_400.0)), ("60", (60.0,)), ("60,3600", (60.0, 3600.0)), ("0", ())],
)
def test_the_environment_says_when_files_are_merged(text, intervals_s, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLSCOPE_MERGE_INTERVALS_S", text)
    assert settings.merge_intervals_of(None) == intervals_s


@pytest.mark.parametrize("text", ["soon", "60,0", "-1", "60;3600", "nan"])
def test_intervals_that_cannot_be_are_refused_at_the_start(text: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("RLSCOPE_MERGE_INTERVALS_S", text)
    with pytest.raises(SetupError, match="expected"):
        start_run(tmp_path, "sampler", "w0")


# --- killed

RECORD = """
import os, signal, sys, threading, time, rlscope_otel
from rlscope_otel import merged_file, merger
{patch}
run = rlscope_otel.start_run(worker_id='w0', flush_interval_s={flush}, merge_intervals_s=({interval},))
def record(first, count):
    for number in range(first, first + count):
        run.engine_step(number, number + 1)
        run.flush()
record(0, 5)
{then}
"""
DIE = "os.kill(os.getpid(), signal.SIGKILL)"
LATER = """
from types import SimpleNamespace
ahead_s = [0]
merger.time = SimpleNamespace(monotonic=lambda: time.monotonic() + ahead_s[0])
"""
"""Merging has a clock that the program can set ahead: until then nothing is merged, on a slow machine too."""
MOMENTS = {
    "the temporary file is there": ("merged_file.MergedFile._groups = lambda self: {die}", False),
    "a row group is written": ("merged_file._Sink.sync = lambda self: {die}", False),
    "the footer is written": ("merged_file._Sink.close = lambda self: {die}", False),
    "the worker file states it": ("merger.Merger._finish = lambda self, job: {die}", False),
    "it has its name": ("merger.sync_folder = lambda folder: {die}", True),
    "one part is removed": (
        "from pathlib import Path\nunlink = Path.unlink\n"
        "def dying(path, **more):\n    unlink(path, **more)\n    path.suffix == '.parquet' and {die}\n"
        "Path.unlink = dying",
        True,
    ),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_in_a_merge_after(moment: str, start_script, tmp_path: Path) -> None:
    patch, is_merged = MOMENTS[moment]
    then = "while True:\n    ahead_s[0] += 4000\n    run.flush()\n    time.sleep(0.01)"
    process = start_script(RECORD.format(patch=LATER + patch.format(die=DIE), flush=3600, interval=3600, then=then))
    assert process.wait(timeout=30) == -signal.SIGKILL
    found, completeness, files = read_back(tmp_path)
    assert (found, completeness) == (list(range(5)), COMPLETE)
    assert files == (["000001_000005"] if is_merged else ["000001", "000002", "000003", "000004", "000005"])


def test_killed_at_any_moment_it_has_lost_no_flushed_row_and_doubled_none(start_script, tmp_path: Path) -> None:
    program = RECORD.format(
        patch="merged_file._GROUP_ROWS = 3",
        flush=3600,
        interval="0.01, 0.05, 0.2",
        then="number = 5\nwhile True:\n    record(number, 1)\n    print(number, flush=True)\n    number += 1",
    ).replace("worker_id='w0'", "run_dir=sys.argv[1], worker_id='w0'")
    script = tmp_path / "script.py"
    script.write_text(program)
    merged = 0
    for attempt in range(5):
        run_dir = tmp_path / f"run-{attempt}"
        process = start_script(f"import sys\nsys.argv = ['', {str(run_dir)!r}]\n" + program)
        for _ in range(4 + 11 * attempt):
            process.stdout.readline()
        process.kill()
        last = [int(line) for line in process.communicate(timeout=30)[0].split()][-1:]
        found, completeness, files = read_back(run_dir)
        assert found == list(range(len(found)))
        assert len(found) > max(last, default=0)
        assert completeness.state == "complete"
        merged += any("_" in name for name in files)
    assert merged


def test_sigterm_in_a_merge_writes_everything_and_leaves_nothing_half_done(start_script, tmp_path: Path) -> None:
    patch = """
step = merged_file.MergedFile.step
def slowly(self):
    print("merging", flush=True)
    time.sleep(0.05)
    step(self)
merged_file.MergedFile.step = slowly
merged_file._SLICE_S = 0
"""
    then = "number = 5\nwhile True:\n    run.engine_step(number, number + 1); number += 1; time.sleep(0.001)"
    process: subprocess.Popen[str] = start_script(RECORD.format(patch=patch, flush=0.02, interval=0.05, then=then))
    assert process.stdout.readline() == "merging\n"
    process.terminate()
    assert process.wait(timeout=30) == -signal.SIGTERM
    found, completeness, _ = read_back(tmp_path)
    assert (found, completeness) == (list(range(len(found))), COMPLETE)
    assert json.loads((tmp_path / "workers" / "w0.json").read_text())["stopped_ns"] is not None
    assert not list((tmp_path / TABLE).glob(".*"))


def test_a_child_forked_in_a_merge_leaves_the_parent_s_file_alone(start_script, tmp_path: Path) -> None:
    patch = """
step = merged_file.MergedFile.step
begun, forked = threading.Event(), threading.Event()
def waiting(self):
    step(self)
    begun.set()
    forked.wait(20)
merged_file.MergedFile.step = waiting
merged_file._SLICE_S = 0
"""
    then = """
begun.wait(20)
child = os.fork()
if child == 0:
    import gc
    gc.collect()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
forked.set()
while not any("_" in name and name[0] != "." for name in os.listdir(run.run_dir / "engine_steps")):
    run.flush()
"""
    process = start_script(RECORD.format(patch=patch, flush=0.02, interval=0.05, then=then))
    assert (process.communicate(timeout=30)[1], process.returncode) == ("", 0)
    found, completeness, files = read_back(tmp_path)
    assert (found, completeness) == (list(range(5)), COMPLETE)
    assert any("_" in name for name in files)


def test_what_a_merged_file_says_of_itself_is_what_the_format_asks_for(tmp_path: Path) -> None:
    with start_run(tmp_path, "sampler", "w0", flush_interval_s=3600, merge_intervals_s=(0.1,)) as run:
        for number in range(4):
            for _ in range(number + 1):
                run.engine_step(number, number + 1)
            run.flush()
        until(lambda: run.flush() and names(tmp_path) == {"000001_000004"})
    metadata = pq.read_metadata(tmp_path / TABLE / FileNumbers("w0", 1, 4).name).metadata or {}
    said = {key: metadata[key.encode()].decode() for key in (*schema.STAMP_KEYS[1:], *schema.MERGED_KEYS)}
    worker = json.loads((tmp_path / "workers" / "w0.json").read_text())["written"][TABLE]
    assert said == {
        "rlscope.table": TABLE,
        "rlscope.worker": "w0",
        "rlscope.sequence": "4",
        "rlscope.first": "1",
        "rlscope.files": "4",
        "rlscope.checksum": str(worker["checksum"]),
        "rlscope.parts": "1:1,2:2,3:3,4:4",
    }
    assert list(worker["merged"]) == ["000001_000004"]
