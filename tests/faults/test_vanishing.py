"""Files of a run in progress vanish when its recorder merges them: an analysis lists them again, or says why not."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rlscope import pipeline
from rlscope.errors import UnreadableDataError, VanishedFileError
from rlscope.trace import files, store
from rlscope.trace.footers import Footer
from rlscope.trace.query import ask
from rlscope.trace.store import OpenRun, open_run
from tests.trace_folder import train_row, worker, write_rows, write_run

SECOND = 10**9


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two files of one row each."""
    folder = write_run(tmp_path / "run", [worker("t0", "trainer", 0, 10 * SECOND, rows={"train_steps": 2})])
    for step in (1, 2):
        row = train_row("t0", step * SECOND, (step + 1) * SECOND, step)
        write_rows(folder, "train_steps", "t0", [row], sequence=step)
    return folder


def merge(folder: Path) -> None:
    """What the recorder does: one file of both, and then they are removed."""
    rows = [train_row("t0", step * SECOND, (step + 1) * SECOND, step) for step in (1, 2)]
    write_rows(folder, "train_steps", "t0", rows).rename(folder / "train_steps" / "t0-000001_000002.parquet")
    for step in (1, 2):
        (folder / "train_steps" / f"t0-{step:06d}.parquet").unlink(missing_ok=True)


def steps(run: OpenRun) -> list[int]:
    return ask(run, "training_steps")["step"].to_list()


def test_files_that_are_merged_while_they_are_listed_are_found_where_they_went(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once: list[Callable[[Path], None]] = [merge]

    def read_footer(path: Path, table: str) -> Footer | str:
        if once:
            once.pop()(run)
        return real(path, table)

    real = files.read_footer
    monkeypatch.setattr(files, "read_footer", read_footer)
    with open_run(run) as opened:
        assert (steps(opened), opened.skipped_files) == ([1, 2], ())


@pytest.mark.parametrize("times", [1, 2])
def test_files_that_are_merged_while_they_are_read_are_listed_again_once(
    times: int, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SMALL_ROWS", 0)
    said: list[str] = []
    reads: list[int] = []

    def read(opened: OpenRun) -> list[int]:
        reads.append(1)
        if len(reads) <= times:
            merge(run) if len(reads) == 1 else (run / "train_steps" / "t0-000001_000002.parquet").unlink()
        return steps(opened)

    if times == 1:
        assert pipeline._read(run, read, said.append) == [1, 2]
    else:
        with pytest.raises(VanishedFileError, match=r"found a file that was removed while it was read.*--out COPY"):
            pipeline._read(run, read, said.append)
    assert (len(reads), said) == (2, ["a file was merged into another while it was read: listing them again"])


def test_a_file_that_breaks_is_no_file_that_vanished(run: Path) -> None:
    assert not isinstance(UnreadableDataError.while_reading(run, ValueError("corrupt")), VanishedFileError)
