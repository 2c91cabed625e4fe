"""Hostile names reach no reader as anything but text: each format's own parser reads what each command writes."""

import csv
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import rlscope
from rlscope.cli import main
from rlscope.reports.page.html import render
from rlscope.text_out import as_json, for_csv, for_markdown, for_terminal, one_line
from rlscope.trace.adhoc import write_table
from tests.faults.mutations import HOSTILE_TEXTS
from tests.nightly import nightly
from tests.trace_folder import (
    activity,
    delivery_row,
    engine_row,
    queue_row,
    sample_row,
    train_row,
    worker,
    write_rows,
    write_run,
)

SECOND = 10**9
NOT_TEXT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufffe\uffff\ud800-\udfff]")
TEXTS = (*HOSTILE_TEXTS, "\ud800", "\udcff\udcfe", "\x85\u2028", "\u2066x", "%0A::error::x", "@everyone", 'a,b"c')


@pytest.mark.parametrize("text", TEXTS)
def test_no_format_holds_what_its_reader_would_take_for_a_command(text: str) -> None:
    assert NOT_TEXT.search(for_terminal(text)) is None
    assert "\n" not in one_line(text)
    assert json.loads(as_json({"a": [text]})) == {"a": [for_terminal(text)]}
    assert as_json({"a": text}).isascii()
    assert not for_csv(text).startswith(("=", "+", "-", "@", "\t"))
    assert "<" not in for_markdown(text)
    assert "\n" not in for_markdown(text)


def hostile_run(folder: Path, text: str) -> Path:
    """A run in which everything that is a free text is hostile."""
    storable = text.encode("utf-8", "replace").decode()
    workers = [
        worker("e0", "sampler", 0, 20 * SECOND, host=text, device_name=text),
        worker("t0", "trainer", 0, 20 * SECOND, host=text + "b", framework=text),
    ]
    steps = range(1, 9)
    run = write_run(
        folder,
        workers,
        {"framework": text, "currency": text, text: text, "max_staleness": text},
        samples=[sample_row(f"{storable}{n}", "e0", [(0, 0, 9)], group_id=storable, finished_ns=n) for n in steps],
        deliveries=[delivery_row(f"{storable}{n}", "t0", step=n, consumer_version=n) for n in steps]
        + [delivery_row("z", "t0", storable)],
        engine_steps=[engine_row("e0", n * SECOND, n * SECOND + 5) for n in steps],
        train_steps=[train_row("t0", n * SECOND, n * SECOND + SECOND, n) for n in steps],
        activities=[activity("t0", 0, SECOND, storable, storable), activity("e0", 0, SECOND, "wait", storable)],
        queue_depths=[queue_row("t0", n * SECOND, n, storable) for n in steps],
    )
    manifest = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(manifest | {"run_id": text or "x"}))
    return run


class _Page(HTMLParser):
    """The scripts and the handlers of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


RUNS = {
    "everything at once": "".join(TEXTS),
    "a new line first": "\n::error::injected\r\n" + HOSTILE_TEXTS[5],
    "halves of pairs": "\ud800\udcff",
    "nothing": "",
}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> int:
    """Script elements in the page of a run without hostile names."""
    page = _Page()
    page.feed(render(rlscope.analyze(hostile_run(tmp_path_factory.mktemp("plain"), "name"))))
    return page.tags.count("script")


@pytest.mark.parametrize("name", ["everything at once", *map(nightly, list(RUNS)[1:])])
def test_every_output_of_a_hostile_run_is_read_by_its_formats_own_parser(
    name: str, scripts: int, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = hostile_run(tmp_path / "run", RUNS[name])
    (run.parent / "q.sql").write_text("SELECT queue, depth FROM queue_depths ORDER BY ALL")
    analysis = rlscope.analyze(run)
    json.loads(analysis.to_json())
    page = _Page()
    page.feed(html := render(analysis))
    assert page.handlers == []
    assert page.tags.count("script") == scripts
    assert NOT_TEXT.search(html) is None
    report = rlscope.check(run)
    json.loads(report.to_text("json"))
    texts = (report.to_text("text"), report.to_text("markdown"), analysis.to_markdown())
    assert all(NOT_TEXT.search(text) is None for text in texts)
    printed = _printed(["query", str(run), "-f", str(run.parent / "q.sql")], capfd)
    printed += _printed(["query", str(run), "-f", str(run.parent / "q.sql"), "--format", "csv"], capfd)
    assert NOT_TEXT.search(printed) is None
    printed = _printed(["query", str(run), "-f", str(run.parent / "q.sql"), "--format", "json"], capfd)
    assert len(json.loads(printed)) == 8
    monkeypatch.setattr(rlscope, "analyze", lambda *_: analysis)
    assert NOT_TEXT.search(_printed(["analyze", str(run), "--no-page"], capfd)) is None


def test_long_texts_are_shortened_and_stay_apart(tmp_path: Path) -> None:
    run = hostile_run(tmp_path / "run", "x" * 60_000)
    write_rows(
        run,
        "activities",
        "e0",
        [activity("e0", at * SECOND, (at + 1) * SECOND, "wait", "x" * 60_000 + str(at)) for at in (11, 13)],
    )
    analysis = rlscope.analyze(run)
    outputs = (render(analysis), analysis.to_json(), analysis.to_markdown())
    assert [output for output in outputs if "x" * 201 in output] == []
    reasons = [state.reason for state in analysis.ledger.states if state.reason and "60,002" in state.reason]
    assert (len(reasons), len(set(reasons))) == (2, 2)


def _printed(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sys.argv", ["rlscope", *arguments])
        capfd.readouterr()
        try:
            main()
        except SystemExit as end:
            assert not end.code
        out, _ = capfd.readouterr()
        return out


def test_an_error_that_names_a_hostile_folder_is_text(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patched, pytest.raises(SystemExit):
        patched.setattr("sys.argv", ["rlscope", "check", str(tmp_path / "a\x1b[2Jb")])
        main()
    _, err = capfd.readouterr()
    assert "a\ufffd[2Jb" in err


def test_a_cell_that_a_spreadsheet_would_run_is_text(tmp_path: Path) -> None:
    import polars as pl

    frame = pl.DataFrame({"=1+1": ["=HYPERLINK(1)", "+1", "-1", "@x", "plain"], "number": [-1, 2, 3, 4, 5]})
    write_table(frame, "csv", tmp_path / "out.csv")
    rows = list(csv.reader(io.StringIO((tmp_path / "out.csv").read_text())))
    assert rows[0] == ["'=1+1", "number"]
    assert [row[0] for row in rows[1:]] == ["'=HYPERLINK(1)", "'+1", "'-1", "'@x", "plain"]
    assert rows[1][1] == "-1"


def test_a_link_of_the_reports_name_is_replaced_and_not_followed(tmp_path: Path) -> None:
    from rlscope.text_out import write_file

    target = tmp_path / "precious"
    target.write_text("keep me")
    link = tmp_path / "report.html"
    link.symlink_to(target)
    write_file(link, b"page")
    assert target.read_text() == "keep me"
    assert (link.is_symlink(), link.read_bytes()) == (False, b"page")
