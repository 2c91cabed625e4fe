"""`rlscope compact`, and what a run of very many small files is told."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rlscope.cli import app
from rlscope.trace import files
from rlscope.trace.files import many_files_note
from tests.trace.recorded import record
from tests.trace_folder import engine_row


@pytest.fixture
def run(tmp_path: Path) -> Path:
    flushes = [[engine_row("e0", at, at + 1)] for at in range(4)]
    record(tmp_path / "run", "e0", "sampler", {"engine_steps": flushes})
    return tmp_path / "run"


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def test_it_says_how_many_files_became_how_many(run: Path) -> None:
    done = invoke("compact", run, "--verify")
    size = [path.stat().st_size for path in (run / "engine_steps").iterdir()]
    assert (done.exit_code, len(size)) == (0, 1)
    assert done.stdout.startswith(f"{run}: 4 files became 1 file (")
    assert done.stdout.endswith(" after); rows verified\n")
    assert done.stderr == ""


def test_it_names_what_it_left(run: Path, tmp_path: Path) -> None:
    (run / "engine_steps" / "e0-000009.parquet").write_bytes(b"no file")
    (run / "engine_steps" / ".compacted.0.part").write_bytes(b"cut off")
    done = invoke("compact", run)
    assert "note: removed 1 file of an interrupted compaction" in done.stderr
    assert "note: not merged: engine_steps/e0-000009.parquet: 7 bytes long, too short" in done.stderr


def test_with_out_it_writes_another_folder(run: Path, tmp_path: Path) -> None:
    done = invoke("compact", run, "--out", tmp_path / "new")
    assert done.stdout.startswith(f"{tmp_path / 'new'}: 4 files became 1 file (")
    assert len(list((run / "engine_steps").iterdir())) == 4


@pytest.mark.parametrize(("least", "is_told"), [(4, True), (5, False)])
def test_a_run_of_many_files_is_told_the_cost_and_the_remedy_before_the_work(
    least: int, is_told: bool, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_MANY_FILES", least)
    done = invoke("query", run, "ledger")
    told = f"note: 4 files: opening them costs about 4.4 ms of CPU time per analysis. Run `rlscope compact {run}` first"
    assert done.stderr.startswith(told) == is_told
    assert "rlscope compact" not in done.stdout
    assert "files: opening" not in invoke("compact", run).stderr


def test_who_wants_errors_only_is_not_told_of_many_files(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_MANY_FILES", 4)
    assert "files: opening" not in invoke("analyze", run, "--no-page", "--quiet").stderr


def test_what_704_000_files_cost_is_said_in_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Entry:
        name = "e0-000001.parquet"

    class Listing(list[Entry]):
        def __enter__(self) -> "Listing":
            return self

        def __exit__(self, *_: object) -> None:
            pass

    def scandir(folder: Path) -> Listing:
        return Listing([Entry()] * (704_000 if folder.name == "samples" else 0))

    monkeypatch.setattr(files.os, "scandir", scandir)
    note = many_files_note(tmp_path)
    assert note is not None
    assert note.startswith("704,000 files: opening them costs about 12 min 54 s of CPU time per analysis. ")


@pytest.mark.parametrize("path", ["nowhere", "s3:/bucket/run", "file.log"])
def test_what_is_no_folder_of_a_run_is_told_nothing(path: str, tmp_path: Path) -> None:
    (tmp_path / "file.log").touch()
    assert many_files_note(tmp_path / path) is None
