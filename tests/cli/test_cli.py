"""The command: data on stdout, everything else on stderr, and an exit code that a script can act on."""

import json
import sys
from collections.abc import Callable
from io import BytesIO, StringIO
from pathlib import Path

import polars as pl
import pytest

import rlscope
from rlscope.alerts.config import example
from rlscope.alerts.metrics import METRICS
from rlscope.cli import main
from rlscope.trace.questions import questions
from tests.alerts.given import run_of
from tests.cli.command import invoke
from tests.cli.conftest import Ended, Known


def test_analyze_prints_the_card_writes_the_page_beside_the_run_and_says_so_on_stderr(
    known: Known, run_dir: Path, execute: Callable[..., Ended]
) -> None:
    done = execute("analyze", run_dir)
    assert (done.returncode, known.drawn) == (0, [run_dir / "report.html"])
    assert "waiting for samples" in done.stdout.lower() and "wrote" not in done.stdout
    assert done.stderr == f"wrote {run_dir / 'report.html'}\n"


def test_analyze_as_json_on_stdout_is_json_and_nothing_else(
    known: Known, run_dir: Path, tmp_path: Path, execute: Callable[..., Ended]
) -> None:
    done = execute("analyze", run_dir, "--json", "-", "-o", tmp_path / "page.html")
    document = json.loads(done.stdout)
    assert (done.returncode, document["schema_version"], document["run"]["tokens_trained"]) == (0, 1, 4)
    assert "wrote" in done.stderr and known.drawn == [tmp_path / "page.html"]


@pytest.mark.parametrize(("form", "begins"), [("text", "╭"), ("markdown", "### No verdict"), ("json", "{")])
def test_without_a_page_there_is_the_format_that_is_asked_for_and_no_file(
    known: Known, run_dir: Path, form: str, begins: str, execute: Callable[..., Ended]
) -> None:
    done = execute("analyze", run_dir, "--format", form, "--no-page")
    assert (done.returncode, known.drawn, done.stderr) == (0, [], "")
    assert done.stdout.startswith(begins)
    assert ("╭" in done.stdout) == (form == "text")


@pytest.mark.usefixtures("known")
def test_colors_are_for_a_terminal_and_no_color_wins(run_dir: Path, execute: Callable[..., Ended]) -> None:
    arguments = ("analyze", run_dir, "--no-page")
    file = execute(*arguments, TERM="xterm-256color")
    colored = execute(*arguments, FORCE_COLOR="1").stdout
    plain = execute(*arguments, FORCE_COLOR="1", NO_COLOR="1").stdout
    assert "\x1b" not in file.stdout + file.stderr
    assert "\x1b[3" in colored or "\x1b[1;3" in colored
    assert "\x1b[3" not in plain and "\x1b[1;3" not in plain


def test_on_a_terminal_a_message_is_folded_and_still_points_at_what_is_wrong_in_a_select(
    run_dir: Path, tmp_path: Path, execute: Callable[..., Ended]
) -> None:
    (tmp_path / "bad.sql").write_text("SELECT worker_id FRM workers")
    arguments = ("query", run_dir, "-f", tmp_path / "bad.sql")
    whole = execute(*arguments).stderr
    folded = execute(*arguments, FORCE_COLOR="1", NO_COLOR="1", COLUMNS="40").stderr
    assert max(map(len, folded.splitlines())) <= 40 < max(map(len, whole.splitlines()))
    assert folded.split() == whole.split()
    assert folded.splitlines()[-1] == whole.splitlines()[-1]
    assert set(whole.splitlines()[-1].strip()) == {"^"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("analyze", "{above}"), ": found 1 recorded run below it: a run; expected one run, by its folder or its"),
        (("query", "{run}", "no_such"), "query 'no_such': found no such query; expected one that"),
        (("query", "{run}", "ledger", "--arg", "cell_ns"), "--arg cell_ns: found no NAME=VALUE"),
        (("query", "{run}", "-f", "{latin}"), "latin.sql: found text that cannot be read ('utf-8' codec"),
        (("query", "{run}", "batch_size", "--arg", "bins=5"), "found unknown argument bins; expected "),
        (
            ("query", "{run}", "-f", "{own}", "--arg", "a=1", "--arg", "b=2"),
            "--arg with -f: found arguments a, b; expe",
        ),
    ],
)
def test_what_the_user_can_fix_is_one_message_on_stderr_and_exit_code_1(
    arguments: tuple[str, ...], message: str, run_dir: Path, tmp_path: Path, execute: Callable[..., Ended]
) -> None:
    (tmp_path / "own.sql").write_text("SELECT 1")
    (tmp_path / "latin.sql").write_bytes("SELECT 'é'".encode("latin-1"))
    places = {"above": run_dir.parent, "run": run_dir, "own": tmp_path / "own.sql", "latin": tmp_path / "latin.sql"}
    done = execute(*(argument.format(**places) for argument in arguments))
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr and done.stderr.startswith("rlscope: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("query", "{run}"),
        ("query", "{run}", "ledger", "-f", "{sql}"),
        ("query", "{run}", "-f", "{tmp}/gone.sql"),
    ],
)
def test_a_wrong_command_line_is_exit_code_2_and_says_so_on_stderr(
    arguments: tuple[str, ...], run_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "own.sql").write_text("SELECT 1")
    places = {"tmp": tmp_path, "run": run_dir, "sql": tmp_path / "own.sql"}
    result = invoke(*(argument.format(**places) for argument in arguments))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr


def test_queries_lists_every_question_with_its_sentence() -> None:
    lines = invoke("queries").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(questions())
    for line, question in zip(lines, questions().values(), strict=True):
        assert line.endswith(question.question)


def test_a_table_comes_as_text_csv_json_and_parquet(run_dir: Path) -> None:
    rows = [(1, 4, 1.0)]
    columns = ["step", "tokens", "staleness_mean"]
    asked = ("query", run_dir, "SELECT 1::BIGINT AS step, 4::BIGINT AS tokens, 1.0::DOUBLE AS staleness_mean")
    text = invoke(*asked).stdout
    assert [cell.strip() for cell in text.splitlines()[0].strip("|").split("|")] == columns
    assert [cell.strip() for cell in text.splitlines()[2].strip("|").split("|")] == ["1", "4", "1.0"]
    as_csv = pl.read_csv(StringIO(invoke(*asked, "--format", "csv").stdout))
    as_json = pl.read_json(StringIO(invoke(*asked, "--format", "json").stdout))
    as_parquet = pl.read_parquet(BytesIO(invoke(*asked, "--format", "parquet").stdout_bytes))
    for frame in (as_csv, as_json, as_parquet):
        assert (frame.columns, frame.rows()) == (columns, rows)


def test_text_shows_every_row_and_the_whole_of_each_cell(run_dir: Path) -> None:
    wide = "SELECT range AS n, repeat('x', 200) AS wide FROM range(1000)"
    lines = invoke("query", run_dir, wide).stdout.splitlines()
    assert len(lines) == 1002
    assert all("x" * 200 in line for line in lines[2:])


def test_nested_values_are_json_text_in_csv(run_dir: Path) -> None:
    nested = "SELECT versions, [1, 2] AS list, NULL::INTEGER[] AS nothing FROM samples"
    frame = pl.read_csv(StringIO(invoke("query", run_dir, nested, "--format", "csv").stdout))
    assert json.loads(frame["versions"][0]) == [{"version": 0, "start": 0, "end": 4}]
    assert frame.select("list", "nothing").rows() == [("[1, 2]", None)]


def test_a_table_goes_to_a_file_and_nothing_to_stdout(run_dir: Path, tmp_path: Path) -> None:
    result = invoke("query", run_dir, "staleness_histogram", "--format", "csv", "-o", tmp_path / "x.csv")
    assert (result.exit_code, result.stdout) == (0, "")
    assert (tmp_path / "x.csv").read_text() == "staleness,tokens\n1,4\n"


def test_an_argument_replaces_the_standard_one(run_dir: Path) -> None:
    arguments = ("--arg", "bucket_ns=3000000000", "--arg", "origin_ns=0", "--format", "csv")
    assert invoke("query", run_dir, "throughput", *arguments).stdout.splitlines()[1:] == [
        "0,0.0,0.3333333333333333",
        "3000000000,1.3333333333333333,0.0",
    ]


def test_a_bare_command_shows_its_help_and_version_prints_the_version() -> None:
    assert "analyze" in invoke("--help").stdout
    assert invoke("--version").stdout == "0.1.0\n"


def test_a_bug_of_ours_keeps_its_traceback(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rlscope, "open", None)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # typer sets its own
    monkeypatch.setattr(sys, "argv", ["rlscope", "query", str(run_dir), "ledger"])
    with pytest.raises(TypeError, match="'NoneType' object is not callable"):
        main()


def test_the_exit_code_of_a_check_is_0_3_or_2(tmp_path: Path, execute: Callable[..., Ended]) -> None:
    folder, rules = run_of(tmp_path / "run", (0, 60)), tmp_path / "rules.toml"
    rules.write_text('warm_up_steps = 0\n[[rules]]\nname = "idle"\nmetric = "idle.trainer_ratio"\nabove = 0.9\n')
    told = execute("check", folder, "--rules", rules, "--format", "json")
    assert (told.returncode, json.loads(told.stdout)["failed"], told.stderr) == (0, False, "")
    assert execute("check", folder, "--rules", rules, "--fail-on", "warning").returncode == 3
    wrong = execute("check", folder, "--fail-if", "idle.trainer_ratio > x")
    assert (wrong.returncode, wrong.stdout) == (2, "")


def test_rules_lists_every_metric_and_the_rules_that_hold() -> None:
    listed = invoke("rules").stdout
    assert all(f"  {metric.name} " in listed for metric in METRICS)
    assert "idle.trainer_ratio over 10m > 30.0%, for 5m" in listed
    assert invoke("rules", "--example").stdout == example()
