"""What a command does beside its answer: it refuses early, suits scripts, and prints on any terminal."""

import io
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import rlscope
from rlscope.cli import app, main
from rlscope.cli.app import checked_output, folded, print_or_write, progress_on
from rlscope.errors import OutputError, QueryError
from rlscope.text_out import encoded_for, readable_on
from tests.cli.command import invoke
from tests.cli.conftest import Ended, Known, narrow


@pytest.fixture
def nothing_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("the work began before the outputs were checked")

    for name in ("analyze", "compare", "plan", "check", "list_runs", "export_perfetto", "open"):
        monkeypatch.setattr(rlscope, name, fail)


OUTPUTS = [
    ("analyze", "{run}", "-o"),
    ("analyze", "{run}", "--json"),
    ("compare", "{run}", "{run}", "-o"),
    ("compare", "{run}", "{run}", "--json"),
    ("what-if", "{run}", "--max-running", "8", "--json"),
    ("plan", "plan.toml", "--json"),
    ("list", "{run}", "-o"),
    ("check", "{run}", "-o"),
    ("query", "{run}", "ledger", "-o"),
    ("export", "{run}", "--perfetto"),
]


@pytest.mark.usefixtures("nothing_is_computed")
@pytest.mark.parametrize("arguments", OUTPUTS, ids=lambda arguments: f"{arguments[0]} {arguments[-1]}")
def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    arguments: tuple[str, ...], run_dir: Path, tmp_path: Path
) -> None:
    given = [each.format(run=run_dir) for each in arguments]
    with pytest.raises(OutputError, match=r"x\.html: found no folder .*gone; expected a file in a folder that exists"):
        invoke(*given, tmp_path / "gone" / "x.html")
    with pytest.raises(OutputError, match="found a folder; expected the path of a file"):
        invoke(*given, tmp_path)


def test_a_folder_that_takes_no_files_is_refused_and_a_device_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for given in (tmp_path / "x.html", Path("/dev/null"), "-", None):
        assert checked_output(given) == given
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(OutputError, match="no permission to write there"):
        checked_output(tmp_path / "x.html")


def test_the_summary_is_printed_before_the_page_is_drawn_and_also_if_that_fails(known: Known, run_dir: Path) -> None:
    (run_dir / "report.html").mkdir()
    result = CliRunner().invoke(app, ["analyze", str(run_dir)])
    (run_dir / "report.html").rmdir()
    assert isinstance(result.exception, OutputError)
    assert known.drawn == [run_dir / "report.html"]
    assert "No verdict" in result.stdout and "wrote" not in result.stderr


def test_quiet_prints_nothing_and_writes_what_is_asked_for(known: Known, run_dir: Path, tmp_path: Path) -> None:
    result = invoke("analyze", run_dir, "-q", "-o", tmp_path / "p.html", "--json", tmp_path / "a.json")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    assert known.drawn == [tmp_path / "p.html"]
    assert json.loads((tmp_path / "a.json").read_text())["run"]["run_id"]
    printed = invoke("analyze", run_dir, "--quiet", "--no-page", "--json", "-")
    assert json.loads(printed.stdout)["run"]["run_id"] and printed.stderr == ""


@pytest.mark.usefixtures("nothing_is_computed")
@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--no-page", "-o", "p.html"), "--no-page writes no report"),
        (("--quiet", "--format", "markdown"), "--quiet prints nothing"),
        (("--json", "-", "--format", "json"), "both print to stdout"),
    ],
)
def test_options_that_contradict_each_other_are_refused(arguments: tuple[str, ...], why: str, run_dir: Path) -> None:
    result = invoke("analyze", run_dir, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert why in " ".join(result.stderr.replace("│", " ").split())


COUNTED = "| n |\n|---|\n| 1 |\n"


def test_a_select_can_be_typed_as_the_argument_or_come_from_standard_input(run_dir: Path, tmp_path: Path) -> None:
    sql = "SELECT count(*) AS n FROM samples"
    (tmp_path / "own.sql").write_text(sql)
    assert invoke("query", run_dir, sql).stdout == COUNTED
    assert invoke("query", run_dir, "-f", "-", stdin=sql).stdout == COUNTED
    assert invoke("query", run_dir, "-f", tmp_path / "own.sql").stdout == COUNTED


def test_what_is_neither_a_question_nor_a_select_is_named_as_it_was_typed(run_dir: Path) -> None:
    with pytest.raises(QueryError, match="Did you mean 'worker_states'"):
        invoke("query", run_dir, "worker_state")
    with pytest.raises(QueryError, match="ad-hoc SQL 'DROP TABLE workers': found DROP; expected one SELECT"):
        invoke("query", run_dir, "DROP  TABLE\nworkers")
    with pytest.raises(QueryError, match="standard input: found text that cannot be read"):
        invoke("query", run_dir, "-f", "-", stdin=b"\xff")
    with pytest.raises(QueryError, match=r"found text that cannot be read \(more than 4,000,000 bytes\)"):
        invoke("query", run_dir, "-f", "-", stdin=b" " * 4_000_001)


def test_a_select_beyond_ascii_is_read_whatever_the_locale_and_what_is_no_text_is_refused(run_dir: Path) -> None:
    as_ascii_reads_it = "SELECT 'ü' AS name".encode().decode("ascii", "surrogateescape")
    assert json.loads(invoke("query", run_dir, as_ascii_reads_it, "--format", "json").stdout) == [{"name": "ü"}]
    with pytest.raises(QueryError, match="the SELECT of the command line: found text that cannot be read"):
        invoke("query", run_dir, "SELECT '\udcff'")
    with rlscope.open(run_dir) as run, pytest.raises(QueryError, match="SQL error: 'utf-8' codec can't encode"):
        run.sql("SELECT '\ud800'")


@pytest.mark.parametrize(
    ("sql", "quoted"),
    [
        ("SELECT nope FROM workers", "LINE 1: SELECT nope FROM workers\n               ^^^^"),
        ("SELECT 1 FRM workers", "LINE 1: SELECT 1 FRM workers\n" + " " * 21 + "^^^^^^^"),
        ("SELECT worker_id\nFROM workers\nWHERE nope", "LINE 3: WHERE nope\n              ^^^^"),
    ],
)
def test_an_error_of_sql_quotes_the_line_as_it_was_typed(sql: str, quoted: str, run_dir: Path) -> None:
    with rlscope.open(run_dir) as run, pytest.raises(QueryError) as caught:
        run.sql(sql)
    assert quoted in str(caught.value)
    *_, line, mark = str(caught.value).splitlines()
    assert line[mark.index("^") : mark.rindex("^") + 1] in ("nope", "workers")


def test_a_time_limit_is_a_duration_as_in_rules(run_dir: Path) -> None:
    assert invoke("query", run_dir, "SELECT count(*) AS n FROM samples", "--timeout", "1m30s").stdout == COUNTED
    refused = invoke("query", run_dir, "SELECT 1", "--timeout", "2x")
    assert refused.exit_code == 2 and "found '2x'; expected" in " ".join(refused.stderr.replace("│", " ").split())


def test_lines_end_between_words_and_keep_their_indent_on_a_terminal_only() -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, width=20)
    text = "short\n  a line that is too long\n/a/path/that/is/longer/than/that"
    assert folded(text, terminal) == "short\n  a line that is too\n  long\n/a/path/that/is/longer/than/that"
    assert folded("name    what it answers", terminal, hanging=8) == "name    what it\n        answers"
    assert folded(text, Console(file=io.StringIO(), width=20)) == text


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [("ascii", b"50% ? ????"), ("latin-1", b"50% \xd7 \xfc???"), ("utf-8", "50% × ü模型?".encode())],
)
def test_what_a_terminal_cannot_show_is_a_question_mark(encoding: str, shown: bytes) -> None:
    text = "50% × ü模型\ud800"
    stream = narrow(encoding)
    readable_on(stream)
    stream.write(text)
    assert stream.buffer.getvalue() == shown  # type: ignore[attr-defined]
    assert encoded_for(stream, text) == shown


def test_text_on_stdout_is_in_its_encoding_and_data_in_that_of_its_format(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = narrow("ascii")
    monkeypatch.setattr("sys.stdout", stream)
    print_or_write("-", "5 × ü")
    print_or_write("-", "<a>ü</a>", is_data=True)
    assert stream.buffer.getvalue() == b"5 ? ?\n" + "<a>ü</a>\n".encode()  # type: ignore[attr-defined]


@pytest.mark.usefixtures("known")
def test_commands_print_on_a_terminal_of_ascii(run_dir: Path, tmp_path: Path, execute: Callable[..., Ended]) -> None:
    assert execute("analyze", run_dir, "--no-page", encoding="ascii").stdout.startswith("+-  No verdict  -")
    assert "| ?? " in execute("query", run_dir, "SELECT 'ü→' AS name", encoding="ascii").stdout
    assert "gone?: " in execute("check", tmp_path / "gone→", encoding="ascii").stderr


def test_the_command_loads_nothing_heavy_before_it_knows_what_it_is_to_do() -> None:
    program = "import sys, rlscope.cli; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "typer" in loaded
    assert not {"duckdb", "polars", "pyarrow", "numpy", "scipy", "altair", "vl_convert", "pydantic", "mcp"} & set(
        loaded
    )


def test_progress_says_what_is_being_done_and_for_how_long_on_a_terminal_only() -> None:
    shown = {}
    for name, settings in {"terminal": {"force_terminal": True}, "file": {}, "quiet": {"quiet": True}}.items():
        notes = Console(file=io.StringIO(), width=80, color_system=None, **settings)
        with progress_on(notes) as say:
            say("fitting the model")
        shown[name] = notes.file.getvalue()
    assert "fitting the model 0:00:00" in shown["terminal"]
    assert (shown["file"], shown["quiet"]) == ("", "")


@pytest.mark.parametrize(
    "arguments",
    [
        *(f"{name} {{gone}}" for name in ("analyze", "doctor", "what-if", "check", "list")),
        "query {gone} ledger",
        "export {gone} --perfetto {tmp}/x",
        "import {gone} {tmp}/new",
        "compare {gone} {run}",
        "compare {run} {gone}",
        "check {run} --baseline {gone}",
        "push {gone} --tensorboard {tmp}",
        "plan {gone}",
    ],
)
def test_every_command_names_a_path_that_does_not_exist(arguments: str, run_dir: Path, tmp_path: Path) -> None:
    places = {"gone": str(tmp_path / "gone"), "tmp": str(tmp_path), "run": str(run_dir)}
    given = [word.format_map(places) for word in arguments.split()]
    ended = CliRunner().invoke(app, given)
    assert re.search(r"gone: found no such file or ", str(ended.exception), re.IGNORECASE), ended.output


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_that_a_library_makes_an_error_of_ends_the_command_as_a_signal(
    number: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        try:
            signal.raise_signal(number)
        except BaseException as error:
            raise QueryError("SQL error: counting the rows of the Arrow source failed") from error

    monkeypatch.setattr("rlscope.cli.app", interrupted)
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, capsys.readouterr().err) == (code, "")
