"""`rlscope list`: every run below a folder, cached where it can be rebuilt, sorted and filtered."""

import csv
import io
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import rlscope
from rlscope.comparison import history
from rlscope.comparison.history import RunEntry, cache_folder, filtered_entries, sorted_entries
from rlscope.errors import ArgumentError, RunFolderError
from rlscope.reports.text.history import SCOPES
from rlscope.results import RunList
from tests.reports.analysis_fixture import HOSTILE, empty_analysis
from tests.reports.terminal_card import printed
from tests.schemas import faults
from tests.trace_folder import small_run


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "rlscope" / "runs"


@pytest.fixture
def analyzed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The runs that were analyzed, and not taken from the cache; all are the same to the analysis."""
    done: list[Path] = []

    def counted(run: Path, *, progress: Callable[[str], None], also_ask: Sequence[str], **_how: Any):
        assert not also_ask, "the list draws nothing"
        progress("fitting the model")
        done.append(run)
        return empty_analysis()

    monkeypatch.setattr(history, "analyze", counted)
    return done


def test_every_run_below_a_folder_is_listed_by_its_path(tmp_path: Path) -> None:
    small_run(tmp_path / "runs" / "b", 40, {"framework": "trl", "gpu_hour_price": 2.0, "currency": "EUR"})
    small_run(tmp_path / "runs" / "deep" / "er" / "a")
    small_run(tmp_path / "runs" / "b" / "inside")  # A run holds no runs.
    small_run(tmp_path / "runs" / ".hidden")
    runs = rlscope.list_runs(tmp_path / "runs", sort="path")
    assert [each.path for each in runs.runs] == ["b", "deep/er/a"]
    first = runs.runs[0]
    assert (first.framework, first.layout, first.steps, first.bottleneck, first.alerts) == (
        "trl",
        "1:1",
        1,
        "unknown",
        0,
    )
    # 20 GPU-seconds for 40 tokens, at 2 an hour.
    assert first.gpu_hours_per_million_tokens == pytest.approx(20 / 3600 / 40e-6)
    assert first.cost_per_million_tokens == pytest.approx(2 * 20 / 3600 / 40e-6)
    assert runs.runs[1].cost_per_million_tokens is None
    assert repr(runs).startswith("RunList(") and len(runs) == 2


@pytest.mark.parametrize(
    ("marked", "plain", "cell", "note"),
    [
        (
            {"tokens_per_s": 900.0, "counts_prompts": True},
            ({"tokens_per_s": 500.0, "counts_prompts": False}, {"tokens_per_s": None, "counts_prompts": True}),
            "| 900\\* |",
            "\\* The trainer's count of tokens, prompts included",
        ),
        (
            {"bottleneck": "samplers", "hides_samplers": True},
            (
                {"bottleneck": "samplers", "hides_samplers": False},
                {"bottleneck": "weight_updates", "hides_samplers": True},
            ),
            "| samplers? |",
            "? Trainers wait for samples",
        ),
    ],
)
def test_a_rate_with_prompts_and_a_bottleneck_of_a_trainers_log_are_marked_and_explained(
    marked: dict[str, Any], plain: tuple[dict[str, Any], ...], cell: str, note: str
) -> None:
    others = tuple(RunEntry("other", "a", trainer_gpus=1, **each) for each in plain)
    text = RunList((*others, RunEntry("log", "b", trainer_gpus=1, **marked)), folder="runs").to_markdown()
    assert text.count(cell) == text.count(note) == 1
    assert note not in RunList(others, folder="runs").to_markdown()


@pytest.mark.parametrize(("width", "has_all"), [(120, True), (80, False)])
def test_a_run_is_a_line_that_fits_the_terminal_and_the_date_is_only_on_a_wide_one(width: int, has_all: bool) -> None:
    run = RunEntry("a_run", "a", trainer_gpus=1, sampler_gpus=1, tokens_per_s=900.0, counts_prompts=True, alerts=3)
    runs = RunList((run, replace(run, bottleneck="weight_updates")), folder="runs")
    lines = printed(runs.blocks, width).splitlines()
    assert max(map(len, lines)) <= width and len([line for line in lines if line.startswith("a_run")]) == 2
    assert ("date" in lines[1]) is has_all and "tokens/s" in lines[1]


def test_a_run_is_analyzed_once_until_one_of_its_files_changes(tmp_path: Path, analyzed: list[Path]) -> None:
    run = small_run(tmp_path / "runs" / "a")
    first = rlscope.list_runs(tmp_path / "runs").runs
    assert rlscope.list_runs(tmp_path / "runs").runs == first and len(analyzed) == 1
    os.utime(run / "run.json", ns=(1, 1))
    assert rlscope.list_runs(tmp_path / "runs").runs == first and len(analyzed) == 2
    rlscope.list_runs(tmp_path / "runs", cache=False)
    assert len(analyzed) == 3


def test_a_broken_cache_is_made_again(tmp_path: Path, cache: Path, analyzed: list[Path]) -> None:
    small_run(tmp_path / "runs" / "a")
    first = rlscope.list_runs(tmp_path / "runs").runs
    (kept,) = cache.iterdir()
    document = json.loads(kept.read_text())
    other_types = json.dumps({**document, "entry": {**document["entry"], "steps": "many"}})
    for broken in ("", "[]", "{}", '{"signature": "x", "entry": {}}', other_types):
        kept.write_text(broken)
        done = len(analyzed)
        assert rlscope.list_runs(tmp_path / "runs").runs == first and len(analyzed) == done + 1


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path, cache: Path, analyzed: list[Path]) -> None:
    cache.parent.parent.mkdir(parents=True)
    cache.parent.write_text("a file where a folder should be")
    small_run(tmp_path / "runs" / "a")
    assert len(rlscope.list_runs(tmp_path / "runs")) == 1


def test_a_relative_cache_folder_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    assert cache_folder() == Path.home() / ".cache" / "rlscope" / "runs"


def test_a_run_that_cannot_be_read_is_listed_with_why(tmp_path: Path) -> None:
    small_run(tmp_path / "runs" / "good")
    (tmp_path / "runs" / "bad").mkdir()
    (tmp_path / "runs" / "bad" / "run.json").write_text("{")
    runs = rlscope.list_runs(tmp_path / "runs")
    assert [(each.path, each.problem is None) for each in runs.runs] == [("good", True), ("bad", False)]
    assert "bad: not analyzed: " in runs.to_markdown() and f"2 runs. {SCOPES}" in runs.to_markdown()


def test_the_run_file_of_a_run_means_its_folder(tmp_path: Path) -> None:
    small_run(tmp_path / "run")
    (entry,) = rlscope.list_runs(tmp_path / "run" / "run.json").runs
    assert (entry.path, entry.problem, entry.steps) == (".", None, 1)


def test_a_file_and_a_folder_without_runs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("")
    with pytest.raises(RunFolderError, match="notes: found a file; expected a folder of runs"):
        rlscope.list_runs(tmp_path / "notes")
    with pytest.raises(RunFolderError, match="expected a folder"):
        rlscope.list_runs(tmp_path / "gone")
    with pytest.raises(RunFolderError, match=r"no run\.json in it or below; .* `rlscope import LOG RUN_DIR` made"):
        rlscope.list_runs(tmp_path)


ENTRIES = (
    RunEntry("a", "a", 1, tokens_per_s=5.0, bottleneck="samplers"),
    RunEntry("b", "b", 2, tokens_per_s=7.0, bottleneck="trainers"),
    RunEntry("c", "c", 3, tokens_per_s=None, bottleneck=None),
)


@pytest.mark.parametrize(
    ("column", "reverse", "paths"),
    [
        ("started_ns", False, "abc"),
        ("started_ns", True, "cba"),
        ("tokens_per_s", True, "bac"),
        ("tokens_per_s", False, "abc"),
    ],
)
def test_runs_without_a_value_come_last_whichever_way(column: str, reverse: bool, paths: str) -> None:
    assert "".join(each.path for each in sorted_entries(ENTRIES, column, reverse=reverse)) == paths


@pytest.mark.parametrize(
    ("filters", "paths"),
    [
        (["tokens_per_s > 5"], "b"),
        (["tokens_per_s>=5"], "ab"),
        (["tokens_per_s < 7"], "a"),
        (["bottleneck = samplers"], "a"),
        (["bottleneck != samplers"], "bc"),
        (["path ~ B"], "b"),
        (["bottleneck ~ rs", "tokens_per_s <= 5"], "a"),
    ],
)
def test_a_run_must_pass_every_filter(filters: list[str], paths: str) -> None:
    assert "".join(each.path for each in filtered_entries(ENTRIES, filters)) == paths


@pytest.mark.parametrize("text", ["tokens_per_s > many", "tokens_per_s >> 5", "steps !=", "counts_prompts = true"])
def test_a_filter_that_compares_numbers_with_text_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="expected a number"):
        filtered_entries((), [text])


@pytest.mark.parametrize("bad", [{"sort": "rate"}, {"filters": ["rate > 5"]}, {"filters": ["tokens_per_s"]}])
def test_an_unknown_column_is_refused_before_anything_is_analyzed(tmp_path: Path, bad, analyzed: list[Path]) -> None:
    small_run(tmp_path / "runs" / "a")
    with pytest.raises(ArgumentError, match="tokens_per_s"):
        rlscope.list_runs(tmp_path / "runs", **bad)
    assert analyzed == []


def test_a_run_that_a_filter_on_its_path_leaves_out_is_not_analyzed(tmp_path: Path, analyzed: list[Path]) -> None:
    for name in ("monday/a", "monday/b", "tuesday/a"):
        small_run(tmp_path / "runs" / name)
    runs = rlscope.list_runs(tmp_path / "runs", filters=["path ~ monday", "steps != 5", "path != monday/b"])
    assert [each.path for each in runs.runs] == ["monday/a"]
    assert [run.name for run in analyzed] == ["a"] and analyzed[0].parent.name == "monday"
    alone = rlscope.list_runs(tmp_path / "runs", filters="path ~ monday/a")
    assert [each.path for each in alone.runs] == ["monday/a"]


def test_the_list_says_which_run_it_is_at_and_what_is_being_done(tmp_path: Path, analyzed: list[Path]) -> None:
    said: list[str] = []
    for name in ("a", "b"):
        small_run(tmp_path / "runs" / name)
    rlscope.list_runs(tmp_path / "runs", progress=said.append)
    assert said == [
        "run 1 of 2, a: opening the run",
        "run 1 of 2, a: fitting the model",
        "run 2 of 2, b: opening the run",
        "run 2 of 2, b: fitting the model",
    ]
    said.clear()
    rlscope.list_runs(tmp_path / "runs", progress=said.append)
    assert said == []  # All from the cache.


def test_the_list_has_the_same_runs_in_every_form(tmp_path: Path) -> None:
    small_run(tmp_path / "runs" / "a")
    manifest = json.loads((small_run(tmp_path / "runs" / "b") / "run.json").read_text())
    (tmp_path / "runs" / "b" / "run.json").write_text(json.dumps({**manifest, "run_id": HOSTILE}))
    runs = rlscope.list_runs(tmp_path / "runs", sort="path")
    document = json.loads(runs.to_json())
    assert faults("list", runs.to_json()) == []
    rows = list(csv.DictReader(io.StringIO(runs.to_csv())))
    assert [row["run_id"] for row in rows] == ["run", HOSTILE] == [each["run_id"] for each in document["runs"]]
    assert isinstance(runs.frame(), pl.DataFrame) and runs.frame()["path"].to_list() == ["a", "b"]
    page = runs.to_html(tmp_path / "list.html").read_text()
    assert page.rstrip().endswith("</html>") and "<script" not in page and "<img" not in page
    assert "<table" in runs._repr_html_()
