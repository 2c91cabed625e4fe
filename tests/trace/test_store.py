"""A run folder is opened as it is: what cannot be read is left out and named with why, and only no run is refused."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rlscope_otel.schema import TABLES, arrow_schema

from rlscope import pipeline
from rlscope.analysis.result import AnalysisResult
from rlscope.comparison.history import list_entries
from rlscope.errors import RunFolderError
from rlscope.trace import store
from rlscope.trace.config import RunConfig
from rlscope.trace.query import ask, ask_own
from rlscope.trace.store import OpenRun, open_run
from tests.trace_folder import Row, damaged, engine_row, sample_row, small_run, train_row, worker, write_rows, write_run

SECOND = 10**9


def analyze(folder: Path | str, **how: Any) -> AnalysisResult:
    return pipeline.analyze(folder, also_ask=(), **how)


def read(folder: Path) -> tuple[dict[str, str], list[int]]:
    """What is left out of a run and why, and the steps that remain."""

    def look(run: OpenRun) -> tuple[dict[str, str], list[int]]:
        return {file.path: file.why for file in run.skipped_files}, ask(run, "training_steps")["step"].to_list()

    return store.read_run(folder, look)


def skipped(folder: Path) -> dict[str, str]:
    return read(folder)[0]


def table_with(change: Callable[[pa.Table], pa.Table]) -> bytes:
    rows = [{"worker_id": "t0", "activity": "eval", "start_ns": 1, "end_ns": 2}]
    sink = pa.BufferOutputStream()
    pq.write_table(change(pa.Table.from_pylist(rows, schema=arrow_schema("activities"))), sink)
    return sink.getvalue().to_pybytes()


GOOD_BYTES = table_with(lambda table: table)
BAD_FILES: dict[str, tuple[bytes | None, str]] = {
    "folder": (None, "a folder"),
    "no byte": (b"", "0 bytes long, too short for a Parquet file"),
    "cut off": (GOOD_BYTES[:-20], "no Parquet magic bytes at its start and end: truncated, or not a Parquet file"),
    "text": (b"a long enough line of text", "no Parquet magic bytes at its start and end"),
    "damaged footer": (GOOD_BYTES[:-200] + b"\xff" * 192 + GOOD_BYTES[-8:], "cannot be read: "),
    "footer longer than the file": (b"PAR1" + b"\xff\xff\xff\x00PAR1", "cannot be read: "),
    "wrong type": (
        table_with(lambda table: table.set_column(table.column_names.index("end_ns"), "end_ns", pa.array([0.5]))),
        "column end_ns is double, expected int64",
    ),
    "missing column": (
        table_with(lambda table: table.drop_columns(["start_ns"])),
        "column start_ns is missing, expected int64",
    ),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_bad_file_is_left_out_and_named_with_why(kind: str, tmp_path: Path) -> None:
    content, why = BAD_FILES[kind]
    small_run(tmp_path)
    path = tmp_path / "activities" / "x-000001.parquet"
    path.mkdir() if content is None else path.write_bytes(content)
    # Neither files of other formats nor folders of other names are the run's.
    (tmp_path / "samples" / "notes.txt").write_text("not ours")
    (tmp_path / "extra").mkdir()
    (tmp_path / "extra" / "x-000001.parquet").write_bytes(b"")
    found, steps = read(tmp_path)
    assert list(found) == ["activities/x-000001.parquet"] and steps == [1]
    assert found["activities/x-000001.parquet"].startswith(why)


@pytest.mark.parametrize(
    ("table", "row"), [("samples", sample_row("z", "z", [(0, 0, 1)])), ("train_steps", train_row("z", 1, 2, 9))]
)
def test_a_damaged_page_inside_a_good_footer_costs_that_file_and_no_more(table: str, row: Row, tmp_path: Path) -> None:
    small_run(tmp_path)
    damaged(write_rows(tmp_path, table, "z", [row]))
    analysis = analyze(tmp_path)
    assert [file.path for file in analysis.data_quality.skipped_files] == [f"{table}/z-000001.parquet"]
    assert analysis.data_quality.skipped_files[0].why.startswith("cannot be read: ")
    assert (analysis.run.steps, analysis.run.tokens_trained) == (1, 4)


def test_a_text_that_is_not_utf8_costs_that_file_and_no_more(tmp_path: Path) -> None:
    text = pa.array([b"\xff"]).view(pa.string())
    content = table_with(lambda table: table.set_column(table.column_names.index("activity"), "activity", text))
    (small_run(tmp_path) / "activities" / "t0-000002.parquet").write_bytes(content)
    (file,) = analyze(tmp_path).data_quality.skipped_files
    assert file.path == "activities/t0-000002.parquet" and "UTF8" in file.why


def narrow(table: pa.Table) -> pa.Table:
    kinds = {"start_ns": pa.int32(), "end_ns": pa.uint16(), "activity": pa.dictionary(pa.int8(), pa.string())}
    return table.cast(pa.schema([pa.field(f.name, kinds.get(f.name, f.type)) for f in table.schema]))


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.append_column("note", pa.array(["mine"])),
        lambda table: table.drop_columns(["reason"]),
        lambda table: table.select(table.column_names[::-1]),
        narrow,
    ],
    ids=["one more", "an optional one missing", "another order", "narrower types"],
)
def test_the_files_of_a_table_may_differ_in_their_columns(
    change: Callable[[pa.Table], pa.Table], tmp_path: Path
) -> None:
    small_run(tmp_path)
    for number in (0, 2):
        (tmp_path / "activities" / f"t0-{number:06d}.parquet").write_bytes(table_with(change))
    with open_run(tmp_path) as run:
        assert run.skipped_files == ()
        frame = ask_own(run, "SELECT * FROM activities ORDER BY start_ns DESC")
    assert frame.columns == [column.name for column in TABLES["activities"]]
    assert frame.select("activity", "reason", "end_ns").rows() == [
        *[("eval", None, 2)] * 2, ("wait", "samples", 2 * SECOND)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (
            '{"format": "rlscope-trace", "version": 2}',
            "format 'rlscope-trace' version 2; expected format 'rlscope-trace' "
            "version 1. Analyze it with the rlscope version that matches",
        ),
        ('{"format": "rlscope-trace", "version": "1"}', "format 'rlscope-trace' version '1'"),
        ('{"format": "other", "version": 1}', "format 'other' version 1"),
        ("\udcff", "unreadable JSON"),
        ("[]", "a JSON list"),
    ],
)
def test_a_run_json_of_another_format_is_refused(content: str, found: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(RunFolderError) as error:
        analyze(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / 'run.json'}: found {found}")


def test_a_folder_without_run_json_a_file_and_a_path_to_nothing_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, found in (
        (tmp_path, "no run.json"),
        (tmp_path / "file", "a file"),
        (tmp_path / "gone", "no such file or folder"),
    ):
        with pytest.raises(RunFolderError, match=f"found {found}; expected the folder of a run"):
            analyze(path)


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with names that others would match."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("run1", "run", "runs", "other", "runner"):
        write_run(folder / name, [worker("t9")], train_steps=[train_row("t9", 0, 1, step) for step in range(50)])
    return folder


@pytest.mark.parametrize(
    "name",
    ["a run", "run[1]", "run*", "run?", "{run,other}", "it's", 'say "run"', "läuft-実行-🏃", "-run", "a%20b", "$HOME"],
)
def test_a_folder_of_any_name_is_read_and_nothing_beside_it_that_its_name_would_match(name: str, beside: Path) -> None:
    assert read(small_run(beside / name)) == ({}, [1])


def test_a_folder_whose_name_is_not_utf8_is_refused_and_the_list_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = small_run(tmp_path / "run").rename(tmp_path / os.fsdecode(b"run\xff"))
    with pytest.raises(RunFolderError, match="a name that is not UTF-8"):
        analyze(run)
    (entry,) = list_entries(tmp_path, use_cache=True, progress=pipeline.say_nothing)
    assert "a name that is not UTF-8" in (entry.problem or "")


def test_a_folder_may_be_named_relative_to_where_one_stands_and_through_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_run(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real", target_is_directory=True)
    monkeypatch.chdir(tmp_path / "real")
    assert [read(path) for path in (Path("."), Path("../link"), Path("../real"))] == [({}, [1])] * 3


def good_worker(**changes: Any) -> str:
    return json.dumps(dict(worker("w")) | changes)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "unreadable JSON"),
        ("[]", "a JSON list"),
        (good_worker(worker_id="other"), "worker_id is 'other', expected 'w', the name of the file"),
        (good_worker(role="boss"), "role is 'boss', expected one of sampler, trainer, colocated, auxiliary"),
        (good_worker(started_ns=-1), "started_ns is -1, expected a 64-bit whole number of at least 0"),
        (good_worker(stopped_ns="now"), "stopped_ns is 'now', expected a 64-bit whole number or null"),
        (good_worker(gpu_count=2**31), "gpu_count is 2147483648, expected a 32-bit whole number of at least 0"),
        (good_worker(started_ns=2**63), "expected a 64-bit whole number of at least 0"),
        (good_worker(last_flush_ns=-(2**63) - 1), "expected a 64-bit whole number or null"),
        (
            good_worker(stopped_ns=2**63 - 1),
            f"stopped_ns is {2**63 - 1}, expected nanoseconds since 1970, before the year 2116 (2^62); correct it, or "
            "write null if it is unknown",
        ),
        (good_worker(started_ns=2**62), "before the year 2116 (2^62); correct the time"),
    ],
)
def test_a_worker_file_without_what_cannot_be_done_without_is_left_out(content: str, why: str, tmp_path: Path) -> None:
    small_run(tmp_path)
    (tmp_path / "workers" / "w.json").write_text(content)
    files = skipped(tmp_path)
    assert list(files) == ["workers/w.json"]
    assert why in files["workers/w.json"]


def test_a_run_that_lasts_until_the_latest_time_that_is_taken_is_analyzed(tmp_path: Path) -> None:
    start_ns = 2**62 - 1001
    write_run(
        tmp_path, [worker("t0", "trainer", start_ns, 2**62 - 1)], train_steps=[train_row("t0", start_ns, 2**62 - 1)]
    )
    assert analyze(tmp_path).ledger.total_gpu_ns == 1000


def test_optional_entries_of_a_worker_of_the_wrong_type_or_that_no_column_can_hold_read_as_missing(
    tmp_path: Path,
) -> None:
    workers = [
        worker("v", max_running="many", device_name=3, host=None, kv_capacity_tokens=True),
        worker("w", max_running=2**40, kv_capacity_tokens=2**63),
        worker("x", max_running=2**31 - 1),
    ]
    with open_run(write_run(tmp_path, workers)) as run:
        sql = "SELECT max_running, device_name, host, kv_capacity_tokens FROM workers ORDER BY worker_id"
        frame = ask_own(run, sql)
    assert frame.rows() == [(None, None, None, None), (None, None, "host-a", None), (2**31 - 1, None, "host-a", None)]


def test_open_phases_have_their_age_by_the_workers_own_clock_and_those_that_make_no_sense_are_left_out(
    tmp_path: Path,
) -> None:
    given = [
        {"doing": "wait", "since_ns": 60, "reason": "samples"},
        {"doing": "apply", "since_ns": 100, "version": "many"},
        {"doing": "eval", "since_ns": 101},
        {"doing": "eval"},
        {"doing": 3, "since_ns": 60},
        "eval",
    ]
    workers = [worker("w", stop_ns=None, last_flush_ns=100, open=given), worker("x", open="eval"), worker("y")]
    with open_run(write_run(tmp_path, workers)) as run:
        frame = ask_own(run, "SELECT worker_id, unnest(open, recursive := true) FROM workers ORDER BY ALL")
    assert frame.rows() == [("w", "apply", None, None, 0), ("w", "wait", "samples", None, 40)]


@pytest.mark.parametrize("created_ns", ["then", 2**70])
def test_entries_of_run_json_that_make_no_sense_are_not_read(created_ns: object, tmp_path: Path) -> None:
    small_run(tmp_path)
    manifest = json.loads((tmp_path / "run.json").read_text())
    odd = {"config": [1], "run_id": None, "created_ns": created_ns}
    (tmp_path / "run.json").write_text(json.dumps(manifest | odd))
    with open_run(tmp_path) as run:
        assert (run.config, run.run_id, run.created_ns, run.gaps) == (RunConfig(), tmp_path.name, None, ())


def test_a_setting_of_the_wrong_type_is_a_gap_of_the_analysis(tmp_path: Path) -> None:
    analysis = analyze(small_run(tmp_path, config={"max_staleness": "2"}))
    assert analysis.run.max_staleness is None
    gap = "run.json: config.max_staleness is '2', expected a whole number at least 0; it is ignored"
    assert gap in analysis.data_quality.gaps


def test_a_run_that_is_still_being_written_is_analyzed_up_to_its_last_flush(tmp_path: Path) -> None:
    recording = {"stop_ns": None, "last_flush_ns": 3 * SECOND}
    write_run(small_run(tmp_path), [worker("e0", "sampler", **recording), worker("t0", **recording)])
    (tmp_path / "samples" / "e0-000002.parquet.tmp").write_bytes(b"PAR1")
    (tmp_path / "samples" / ".e0-000003.parquet.tmp").write_bytes(b"")
    (tmp_path / "workers" / "e0.json.tmp").write_text("{")
    before = sorted(tmp_path.rglob("*"))
    quality = pipeline.analyze(tmp_path).data_quality
    assert quality.skipped_files == ()
    assert quality.workers_without_end == ("e0", "t0")
    assert sorted(tmp_path.rglob("*")) == before, "nothing is written into the run folder"
    with open_run(tmp_path) as run:
        extents = dict(ask(run, "worker_extents").select("worker_id", "end_ns").rows())
    assert extents == {"e0": 3 * SECOND, "t0": 4 * SECOND}


def test_a_file_that_vanishes_once_the_run_is_open_is_told_and_does_not_break_the_analysis(tmp_path: Path) -> None:
    small_run(tmp_path)
    extra = write_rows(tmp_path, "samples", "e0", [sample_row("c", "e0", [(0, 0, 9)])], sequence=2)

    def vanish(doing: str) -> None:
        if doing == "ledger" and extra.exists():
            os.remove(extra)

    assert analyze(tmp_path, progress=vanish).run.tokens_trained == 4


def test_dropped_rows_are_summed_over_workers_and_what_is_no_count_is_not_counted(tmp_path: Path) -> None:
    workers = [
        worker("e0", "sampler", dropped={"samples": 3, "engine_steps": 4}),
        worker("e1", "sampler", dropped={"samples": 2, "activities": 0, "deliveries": "many"}),
        worker("t0", dropped=[7]),
        worker("t1", dropped=None),
    ]
    assert analyze(write_run(tmp_path, workers)).data_quality.dropped_rows == {"samples": 5, "engine_steps": 4}


def test_rows_of_a_worker_without_a_worker_file_are_a_gap_and_no_gpu_second(tmp_path: Path) -> None:
    write_run(tmp_path, [worker("t0", stop_ns=10)], train_steps=[train_row("t0", 0, 10), train_row("gone", 0, 10)])
    analysis = analyze(tmp_path)
    assert "train_steps: 1 rows belong to a worker without a readable worker file" in analysis.data_quality.gaps
    assert analysis.ledger.total_gpu_ns == 10


def test_without_any_worker_file_the_gap_says_what_is_lost(tmp_path: Path) -> None:
    small_run(tmp_path)
    for path in (tmp_path / "workers").iterdir():
        path.unlink()
    (tmp_path / "workers").rmdir()
    analysis = analyze(tmp_path)
    assert "workers/: no readable worker file, so GPU time cannot be accounted for" in analysis.data_quality.gaps
    assert (analysis.ledger.total_gpu_ns, analysis.run.steps, analysis.verdict.bottleneck) == (0, 1, "unknown")


def test_a_worker_that_says_neither_when_it_stopped_nor_when_it_flushed_ends_at_its_last_row(tmp_path: Path) -> None:
    workers = [worker("t0", stop_ns=None, last_flush_ns=None)]
    analysis = analyze(write_run(tmp_path, workers, train_steps=[train_row("t0", 2, 30)]))
    assert (
        "workers/t0.json: last_flush_ns is missing; the worker is assumed to end at its last row"
        in analysis.data_quality.gaps
    )
    assert analysis.ledger.total_gpu_ns == 30


def test_a_run_of_nothing_but_run_json_is_analyzed(tmp_path: Path) -> None:
    analysis = analyze(write_run(tmp_path, []))
    assert (analysis.run.steps, analysis.run.duration_s, analysis.staleness.tokens) == (0, 0.0, None)
    assert analysis.throughput.achieved_tokens_per_s is None
    assert sum(gap.split(":")[0] in TABLES for gap in analysis.data_quality.gaps) == 6


@pytest.mark.parametrize(
    ("limits", "is_held"),
    [
        ({"SMALL_ROWS": 5}, True),
        ({"SMALL_ROWS": 4}, False),
        ({"SMALL_BYTES": 1}, False),
        ({"SMALL_ROWS": 4, "MANY_FILES": 5}, True),
        ({"SMALL_ROWS": 4, "MANY_FILES": 5, "_FILES_AT_ONCE": 2}, True),
        ({"SMALL_ROWS": 4, "MANY_FILES": 5, "SHORT_FILE_ROWS": 0}, False),
        ({"SMALL_ROWS": 4, "MANY_FILES": 6}, False),
    ],
)
def test_a_table_that_is_small_or_of_many_short_files_is_held_in_memory_with_the_same_rows(
    limits: dict[str, int], is_held: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in limits.items():
        monkeypatch.setattr(store, name, value)
    folder = write_run(tmp_path / "run", [worker("e0", "sampler", 0, 100)])
    for place in range(5):
        row = engine_row("e0", 10 * place, 10 * place + 5, kv_used_tokens=7)
        path = write_rows(folder, "engine_steps", "e0", [row], place + 1)
        if place == 3:
            pq.write_table(pq.read_table(path).drop_columns(["kv_used_tokens"]), path)
    with open_run(folder) as run:
        held = run.connection.sql("SELECT table_name FROM duckdb_tables() ORDER BY ALL").fetchall()
        rows = ask_own(run, "SELECT start_ns, kv_used_tokens FROM engine_steps ORDER BY start_ns").rows()
        assert ask(run, "engine_row_order").rows() == [(5, True, 25.0)]
    assert held == [*([("engine_steps",)] * is_held), ("worker_extents",), ("worker_spans",)]
    assert rows == [(0, 7), (10, 7), (20, 7), (30, None), (40, 7)]


@pytest.mark.parametrize(("rows", "memory"), [(2, "60.0 MiB"), (3, "90.0 MiB")])
def test_a_run_of_many_rows_may_hold_more_in_memory(
    rows: int, memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("MANY_ROWS", 2), ("MEMORY_LIMIT", "60MiB"), ("MANY_ROWS_MEMORY", "90MiB")):
        monkeypatch.setattr(store, name, value)
    steps = [engine_row("e0", 10 * place, 10 * place + 5) for place in range(rows)]
    folder = write_run(tmp_path / "run", [worker("e0", "sampler", 0, 100)], engine_steps=steps)
    with open_run(folder) as run:
        assert run.connection.sql("SELECT current_setting('memory_limit')").fetchall() == [(memory,)]


def test_temporary_files_leave_a_tenth_of_the_free_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=10 * 2**20)
    monkeypatch.setattr("rlscope.trace.store.shutil.disk_usage", lambda _path: usage)
    folder = write_run(tmp_path / "run", [worker("e0", "sampler", 0, 100)], engine_steps=[engine_row("e0", 0, 50)])
    with open_run(folder) as run:
        found = run.connection.sql("SELECT current_setting('max_temp_directory_size')").fetchall()
    assert found == [("9.0 MiB",)]
