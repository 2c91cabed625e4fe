"""Every row that a worker wrote is accounted for: what is missing, doubled, foreign or changed is named."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest

from rlscope.alerts.config import built_in_rules
from rlscope.errors import RunFolderError
from rlscope.pipeline import check
from rlscope.trace import worker_files
from rlscope.trace.completeness import Completeness
from rlscope.trace.store import open_run
from tests.faults.mutations import rewrite
from tests.faults.runs import store_run
from tests.trace_folder import engine_row, sample_row, train_row, worker, write_rows, write_run

SECOND = 10**9


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store_run(tmp_path_factory.mktemp("stored") / "run", "closed")


@pytest.fixture
def run(stored: Path, tmp_path: Path) -> Path:
    shutil.copytree(stored, tmp_path / "run")
    return tmp_path / "run"


class Seen(NamedTuple):
    """What is said of a run as it is opened."""

    completeness: Completeness
    counts: dict[str, int]
    skipped: dict[str, str]
    gaps: list[str]


def seen(folder: Path) -> Seen:
    with open_run(folder) as run:
        skipped = {file.path: file.why for file in run.skipped_files}
        return Seen(run.completeness, run.row_counts, skipped, list(run.gaps))


@pytest.mark.parametrize("name", ["sampler-0-000000", "trainer-000001", "x"])
def test_a_copy_of_a_file_is_named_and_left_out(run: Path, name: str) -> None:
    before = seen(run).counts
    shutil.copy(run / "samples" / "sampler-0-000001.parquet", run / "samples" / f"{name}.parquet")
    found = seen(run)
    assert list(found.skipped) == [f"samples/{name}.parquet"]
    assert found.skipped[f"samples/{name}.parquet"].startswith("a copy of sampler-0-000001.parquet; its ")
    assert (found.counts, found.completeness.state) == (before, "complete")


def test_a_file_that_was_renamed_is_read_as_what_it_was(run: Path) -> None:
    before = seen(run)
    (run / "samples" / "sampler-0-000002.parquet").rename(run / "samples" / "renamed.parquet")
    assert seen(run) == before
    assert before.completeness == Completeness("complete")


def test_a_column_of_one_type_in_the_schema_and_of_another_in_its_row_group_costs_that_file(tmp_path: Path) -> None:
    """pyarrow ends the process when it is asked for the statistics of such a column. Found by mutation 894."""
    folder = write_run(tmp_path, [worker("t0")], train_steps=[train_row("t0", 0, 10)])
    path = folder / "train_steps" / "t0-000001.parquet"
    stored = path.read_bytes()
    footer = len(stored) - 8 - int.from_bytes(stored[-8:-4], "little")
    place = stored.index(b"\x15\x04\x19", footer + 1)  # The type of a chunk, INT64, and its encodings.
    path.write_bytes(stored[: place + 1] + b"\x0c" + stored[place + 2 :])
    why = "cannot be read: column step is INT64 in the schema and BYTE_ARRAY in a row group"
    assert seen(folder).skipped == {"train_steps/t0-000001.parquet": why}


@pytest.mark.parametrize("recorder", ["closed", "plain"])
def test_rows_that_are_stored_twice_are_named_and_counted_once(recorder: str, tmp_path: Path) -> None:
    folder = store_run(tmp_path / "run", recorder)
    before = seen(folder).counts
    rewrite(folder / "samples" / "sampler-0-000001.parquet", lambda rows: pa.concat_tables([rows, rows.slice(0, 5)]))
    found = seen(folder)
    assert "samples: 5 rows are stored twice; they are counted once" in found.gaps
    assert found.counts == before
    assert ("beyond", 5) in [(gap.kind, gap.rows) for gap in found.completeness.gaps]


def test_a_run_whose_workers_count_nothing_is_not_known_to_be_complete(tmp_path: Path) -> None:
    folder = write_run(tmp_path, [worker("t0")], train_steps=[train_row("t0", 0, 10)])
    assert seen(folder).completeness == Completeness("unknown", (), ("t0",))


def test_a_null_where_none_is_allowed_is_named_and_the_row_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path, [worker("t0")])
    path = write_rows(folder, "train_steps", "t0", [train_row("t0", 0, 10)])
    step = pa.field("step", pa.int64())
    rewrite(path, lambda held: pa.concat_tables([held, held]).set_column(1, step, pa.array([1, None], pa.int64())))
    found = seen(folder)
    assert "train_steps: 1 rows have no step; they are left out" in found.gaps
    assert found.counts["train_steps"] == 1


@pytest.mark.parametrize(("length", "left_out"), [(65_536, 0), (65_537, 1)])
def test_a_text_that_is_no_name_is_named_and_the_row_left_out(length: int, left_out: int, tmp_path: Path) -> None:
    samples = [sample_row("a", "e0", [(0, 0, 1)]), sample_row("b", "e0", [(0, 0, 1)], group_id="x" * length)]
    folder = write_run(tmp_path, [worker("e0", "sampler")], samples=samples)
    found = seen(folder)
    assert found.counts["samples"] == 2 - left_out
    assert sum("group_id of more than 65,536 bytes" in gap for gap in found.gaps) == left_out


@pytest.mark.parametrize("far_ns", [0, 4 * 10**18])
def test_a_time_far_from_the_rest_stretches_nothing_and_is_named(far_ns: int, tmp_path: Path) -> None:
    start = 1_790_000_000 * SECOND
    workers = [worker("t0", "trainer", start, start + 100), worker("e0", "sampler", far_ns, start + 100)]
    rows = [engine_row("e0", start, start + 50), engine_row("e0", far_ns, far_ns + 50)]
    folder = write_run(tmp_path, workers, train_steps=[train_row("t0", start, start + 90)], engine_steps=rows)
    with open_run(folder) as run:
        extents, gaps = run.connection.table("worker_extents").pl(), run.gaps
    assert extents["start_ns"].min() == start
    assert extents["end_ns"].max() == start + 100
    assert any(gap.startswith("workers/e0.json: started_ns is ") for gap in gaps)
    assert "engine_steps: 1 rows have a time far from the rest of the run; they are left out" in gaps


@pytest.mark.parametrize("place", ["workers/{}.json", "samples/{}-000001.parquet"])
def test_what_is_no_file_is_named_and_never_opened(run: Path, place: str) -> None:
    odd = {each: run / place.format(each) for each in ("pipe", "folder", "link", "loop")}
    os.mkfifo(odd["pipe"])
    odd["folder"].mkdir()
    odd["link"].symlink_to("/etc/passwd")
    odd["loop"].symlink_to(odd["loop"])
    found = seen(run)
    assert set(found.skipped) == {path.relative_to(run).as_posix() for path in odd.values()}
    assert found.completeness.state == "complete"


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        bytes(5_000_000),
        b'{"dropped": ' + b"9" * 10_000 + b"}",
    ],
    ids=["lists", "objects", "zeros", "digits"],
)
def test_a_worker_file_that_cannot_be_read_in_bounds_is_named(run: Path, content: bytes) -> None:
    (run / "workers" / "x.json").write_bytes(content)
    assert list(seen(run).skipped) == ["workers/x.json"]


def test_incompleteness_fails_a_check(run: Path) -> None:
    assert not check(run, built_in_rules()).fails("critical")
    (run / "deliveries" / "trainer-000002.parquet").unlink()
    report = check(run, built_in_rules())
    assert report.fails("critical")
    assert "rows_missing" in {alert.rule for alert in report.alerts}
    assert any(re.match("deliveries: .* rows that trainer wrote are missing", note) for note in report.warnings)


def test_folders_that_may_not_be_listed_are_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> Iterator[Path]:
        if self.name == "samples":
            raise PermissionError(13, "Permission denied", str(self))
        return real(self)

    real = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", refuse)
    found = seen(run)
    assert found.skipped == {"samples": "a folder that cannot be listed (Permission denied)"}
    assert [(gap.kind, gap.table) for gap in found.completeness.gaps] == [("missing", "samples")]


def test_workers_that_may_not_be_listed_are_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Path) -> Iterator[tuple[str, tuple[int, int, int]]]:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(worker_files, "_json_files", refuse)
    found = seen(run)
    assert found.skipped["workers"] == "a folder that cannot be listed (Permission denied)"
    assert found.completeness.state == "unknown"


def test_a_run_that_may_not_be_read_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(RunFolderError, match="found a folder that you may not read"):
        seen(run)
