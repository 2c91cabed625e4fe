"""Files of a run in progress vanish when its recorder merges them: an analysis lists them again, or says why not."""

from collections.abc import Callable
from pathlib import Path

import pytest
from rlscope_otel.schema import TABLES

import rlscope
from rlscope import pipeline
from rlscope.errors import UnreadableDataError, VanishedFileError
from rlscope.trace import files, store
from rlscope.trace.footers import Footer
from rlscope.trace.query import ask
from rlscope.trace.store import MOST_READS, OpenRun, open_run
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


def swap(folder: Path) -> None:
    """Merge the files, or cut the merged file into them again: those that were there are gone."""
    merged = folder / "train_steps" / "t0-000001_000002.parquet"
    if not merged.exists():
        merge(folder)
        return
    for step in (1, 2):
        row = train_row("t0", step * SECOND, (step + 1) * SECOND, step)
        write_rows(folder, "train_steps", "t0", [row], sequence=step)
    merged.unlink()


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


@pytest.mark.parametrize("times", [1, MOST_READS])
def test_files_that_are_merged_while_they_are_read_are_listed_again(
    times: int, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SMALL_ROWS", 0)
    said: list[str] = []

    def read(opened: OpenRun) -> list[int]:
        if len(said) < times:
            swap(run)
        return steps(opened)

    if times < MOST_READS:
        assert pipeline.read_run(run, read, said.append) == [1, 2]
    else:
        with pytest.raises(VanishedFileError, match=r"found a file that was removed while it was read.*--out COPY"):
            pipeline.read_run(run, read, said.append)
    assert said == ["the recorder merged files: listing them again"] * min(times, MOST_READS - 1)


@pytest.mark.parametrize("question", ["training_steps", "SELECT step FROM train_steps ORDER BY step"])
def test_a_question_to_an_open_run_is_asked_again_if_its_files_are_merged(
    question: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SMALL_ROWS", 0)
    with rlscope.open(run) as opened:
        swap(run)
        answer = opened.sql(question) if " " in question else opened.query(question)
        assert answer["step"].to_list() == [1, 2]


def test_files_that_vanish_before_their_checksum_is_read_are_no_damage(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def list_table(folder: Path, table: str) -> object:
        listed = real(folder, table)
        if table == list(TABLES)[-1]:
            swap(run)
        return listed

    real = store.list_table
    counted = {"rows": 2, "last_file": 2, "checksum": 1}
    write_run(run, [worker("t0", "trainer", 0, 10 * SECOND, written={"train_steps": counted})])
    monkeypatch.setattr(store, "list_table", list_table)
    with pytest.raises(VanishedFileError), open_run(run):
        pass


def test_a_file_that_breaks_is_no_file_that_vanished(run: Path) -> None:
    assert not isinstance(UnreadableDataError.while_reading(run, ValueError("corrupt")), VanishedFileError)
