"""The front door: `import rlscope` and what its names do, say of themselves, and refuse."""

import inspect
import json
import subprocess
import sys
from dataclasses import fields
from importlib import metadata
from pathlib import Path
from unittest.mock import Mock

import polars as pl
import pytest

import rlscope
from rlscope import errors
from rlscope.analysis.advise import Constraints
from rlscope.changes import CHANGEABLE
from rlscope.errors import (
    ArgumentError,
    ImpossibleChangeError,
    OutputError,
    QueryError,
    RlscopeError,
    RuleError,
)
from rlscope.format import printable
from rlscope.model.forecast.change import Change
from rlscope.model.forecast.result import NoModelResult
from rlscope.pipeline import DRAWN
from rlscope.planning.schema import EXAMPLE
from tests.kept import analysis_of, analyze_kept
from tests.planning.small_plan import write_plan
from tests.reports.terminal_card import card
from tests.trace_folder import small_run

ROOT = Path(__file__).parents[1]
TRACE = ROOT / "sample_traces" / "vllm_trl"
SECOND = 10**9
COMMANDS = """import sys
from rlscope.cli import app
for name, *rest in (
    ("check", "--format", "json", "--fail-if", "queue.depth > 100000", "--fail-on-finding", "critical"),
    ("query", "SELECT 1"),
    ("watch", "--plain"),
):
    app([name, sys.argv[1], *rest], standalone_mode=False)"""
HEAVY = {"scipy", "altair", "jinja2", "vl_convert"}


@pytest.fixture(scope="module")
def analysis() -> rlscope.Analysis:
    """Of a real recording, with a model."""
    return analysis_of(TRACE.name)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """One training step, which is too little for a model."""
    return small_run(tmp_path / "a run")


def modules_after(program: str, *arguments: str | Path) -> set[str]:
    """What is loaded once a program has run in a process of its own."""
    whole = f"{program}\nimport sys; print('loaded:', *sys.modules)"
    command = [sys.executable, "-c", whole, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("loaded:")[2].split())


def test_the_public_names_are_these() -> None:
    names = [
        "Analysis", "CheckReport", "Comparison", "DoctorReport", "ImportOptions", "PlanAnswer", "RlscopeError", "Run",
        "RunList", "WhatIfAnswer", "analyze", "check", "compare", "doctor", "export_perfetto", "import_options",
        "list_runs", "open", "plan", "__version__",
    ]  # fmt: skip
    assert rlscope.__all__ == names and dir(rlscope) == sorted(names)
    assert rlscope.__version__ == metadata.version("rlscope")
    for name in names:
        assert inspect.getdoc(getattr(rlscope, name)), name
    with pytest.raises(AttributeError, match="module 'rlscope' has no attribute 'analyz'"):
        rlscope.analyz  # noqa: B018


def test_importing_rlscope_loads_no_library_and_no_module_of_its_own() -> None:
    loaded = modules_after("import rlscope")
    assert {name for name in loaded if name.startswith("rlscope")} <= {"rlscope"}
    assert not loaded & {*HEAVY, "polars", "duckdb", "numpy", "pyarrow", "typer"}


def test_who_checks_watches_or_asks_waits_for_neither_the_model_nor_charts(run_dir: Path) -> None:
    loaded = modules_after(COMMANDS, run_dir)
    assert "duckdb" in loaded and not loaded & HEAVY


def test_an_open_run_answers_questions_and_sql_until_it_is_closed(run_dir: Path) -> None:
    with rlscope.open(str(run_dir)) as run:
        assert run.query("staleness_histogram").rows() == [(1, 4)]
        assert run.sql("SELECT worker_id FROM workers ORDER BY 1")["worker_id"].to_list() == ["e0", "t0"]
        assert repr(run) == f"Run({run.run_id!r}: {run_dir})"
    for ask in (lambda: run.query("ledger"), lambda: run.sql("SELECT 1")):
        with pytest.raises(QueryError, match="found a closed run"):
            ask()
    assert repr(run).endswith("(closed))")


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("ledger", {"cell_ns": "soon"}, "argument cell_ns = 'soon'; expected a BIGINT"),
        ("throughput", {"bucket_ns": 0}, "expected a whole number, at least 1. Pass bucket_ns=VALUE"),
    ],
)
def test_a_question_that_cannot_be_asked_says_what_can(
    name: str, arguments: dict[str, object], message: str, run_dir: Path
) -> None:
    with rlscope.open(run_dir) as run, pytest.raises(QueryError, match=message):
        run.query(name, **arguments)  # type: ignore[arg-type]


def test_everything_says_what_it_is_in_one_line(analysis: rlscope.Analysis, tmp_path: Path) -> None:
    checked = rlscope.check(TRACE)
    answers = analysis, analysis.charts, analysis.what_if(), rlscope.plan(write_plan(tmp_path)), checked
    for each in answers:
        assert repr(each).startswith(type(each).__name__ + "(") and printable(repr(each)) == repr(each)
    assert max(len(repr(each)) for each in answers if each is not analysis.charts) < 250
    paused = "partly because weight updates pause the engines"
    assert repr(analysis) == f"Analysis('vllm_trl-199fa049': Trainers wait for samples 47.8% of the time, {paused})"
    assert repr(checked) == "CheckReport('vllm_trl-199fa049': 3 of 13 rules fired)"


def test_in_a_notebook_an_analysis_is_its_verdict_card_and_loads_nothing(analysis: rlscope.Analysis) -> None:
    html = analysis._repr_html_()
    assert "Trainers wait for samples 47.8% of the time" in html and "waiting for samples" in html
    assert html.count("<div") == html.count("</div>") and len(html) < 20_000
    assert not [word for word in ("<script", "http", "url(", "@import", "src=") if word in html]


def test_every_other_answer_shows_itself_in_a_notebook_and_as_markdown(
    analysis: rlscope.Analysis, run_dir: Path, tmp_path: Path
) -> None:
    answers = (
        (rlscope.plan(write_plan(tmp_path)), "Uncertainties"),
        (analysis.what_if(max_running=48), "Predicted throughput"),
        (rlscope.check(run_dir, fail_if="throughput.steady_tokens_per_s < 1e9"), "not judged"),
        (rlscope.doctor(run_dir), "would add: "),
    )
    for answer, words in answers:
        html = answer._repr_html_()
        assert words in html and html.count("<div") == html.count("</div>") and "<script" not in html
        assert words.replace("_", "\\_") in answer.to_markdown()


def test_charts_are_listed_by_name_and_stand_alone(analysis: rlscope.Analysis) -> None:
    names = dir(analysis.charts)
    assert {"workers_all", "staleness_heat", "batch_size", "pass_curve"} <= set(names)
    for name in names:
        document = json.dumps(getattr(analysis.charts, name)().to_dict(validate=False))
        assert "var(--" not in document and '"container"' not in document, name
    assert analysis.charts.staleness_heat().to_dict(validate=True)["width"] == 760
    assert "Token staleness" in (analysis.charts.staleness_heat.__doc__ or "")


def test_a_chart_that_a_run_has_not_is_an_attribute_error_with_the_nearest(analysis: rlscope.Analysis) -> None:
    with pytest.raises(AttributeError, match="no chart 'staleness_haet'; did you mean 'staleness_heat'"):
        analysis.charts.staleness_haet()
    assert not hasattr(analysis.charts, "_ipython_display_")


def test_an_analysis_answers_questions_and_sql_of_its_run(analysis: rlscope.Analysis) -> None:
    by_step = analysis.query("token_staleness_by_step")
    assert isinstance(by_step, pl.DataFrame) and by_step.height == analysis.run.steps
    assert analysis.sql("SELECT count(*) AS n FROM deliveries")["n"][0] > 0


def test_parts_of_an_analysis_are_frames(analysis: rlscope.Analysis) -> None:
    ledger, staleness = analysis.frame("ledger"), analysis.frame("staleness")
    assert ledger["gpu_ns"].sum() == analysis.ledger.total_gpu_ns and {"role", "state", "gpu_s"} <= {*ledger.columns}
    tokens = analysis.staleness.tokens
    assert staleness.rows() == list(tokens.histogram)
    assert analysis.frame("findings")["rule"].to_list() == [each.rule for each in analysis.findings]
    actions = json.loads(analysis.to_json())["actions"]
    assert actions and analysis.frame("actions").select("headline", "gain_ratio", "gain_ratio_high").rows() == [
        (each["headline"], each["gain_ratio"]["value"], each["gain_ratio"]["high"]) for each in actions
    ]
    with pytest.raises(
        ArgumentError, match="part: found 'model'; expected one of ledger, staleness, findings, actions"
    ):
        analysis.frame("model")  # type: ignore[arg-type]


def written(known: rlscope.Analysis) -> list[str]:
    """Everything that is not the page."""
    return [card(known, 120), known.to_json(), known.to_markdown(), known._repr_html_(), repr(known)]


def test_an_analysis_without_a_page_asks_what_it_draws_once_it_is_drawn(run_dir: Path, tmp_path: Path) -> None:
    whole, lean = rlscope.analyze(run_dir), rlscope.analyze(run_dir, page=False)
    assert set(whole.answers) - set(lean.answers) == set(DRAWN)
    assert written(lean) == written(whole)
    pages = [each.to_html(tmp_path / "page.html").read_text() for each in (lean, whole)]
    assert pages[0] == pages[1] and 'id="figure-workers-all-spec"' in pages[0]
    assert dir(lean.charts) == dir(whole.charts)
    with pytest.raises(OutputError, match="found No such file or directory; expected a file that can be written"):
        whole.to_html(tmp_path / "no" / "page.html")


def test_progress_is_told_and_a_cap_on_staleness_reaches_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    told, asked = list[str](), Mock(return_value=NoModelResult("not asked"))
    monkeypatch.setattr("rlscope.analysis.advise.advise", asked)
    capped = rlscope.analyze(TRACE, page=False, max_staleness=0, progress=told.append)
    assert {"fitting the model", "evaluating the built-in alert rules"} <= set(told) and capped.path == TRACE
    assert Constraints(most_staleness=0) in asked.call_args.args


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_staleness": -1}, "max_staleness: found -1; expected a whole number, at least 0"),
        ({"max_staleness": 1.5}, "max_staleness: found 1.5"),
        ({"gpus_per_node": 0}, "gpus_per_node: found 0"),
        ({"gpus_per_node": True}, "gpus_per_node: found True"),
    ],
)
def test_a_number_out_of_range_is_an_error_of_the_user_and_of_its_value(
    arguments: dict[str, int], message: str
) -> None:
    for kind in (ArgumentError, ValueError):
        with pytest.raises(kind, match=message):
            rlscope.analyze(TRACE, **arguments)
    with pytest.raises(ArgumentError, match="max_staleness: found -1"):
        rlscope.plan(EXAMPLE, max_staleness=-1)


def test_every_change_has_a_limit_and_a_place_in_the_models_change() -> None:
    assert {*CHANGEABLE, "added_checkpoint_s"} == {each.name for each in fields(Change)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trainer_gpus": 0}, "trainer_gpus: found 0; expected a whole number, at least 1"),
        ({"trainer_gpus": 99}, "99 trainer GPUs are more than all 2; give both sides, or the total too"),
        ({"samples_per_step": 100_001}, "expected a whole number, 1 to 100,000"),
        ({"trainer_speed": float("nan")}, "trainer_speed: found nan; expected a number, 0.01 to 100"),
        ({"trainer_speed": "2"}, "trainer_speed: found '2'"),
        ({"weight_update_s": -0.1}, "weight_update_s: found -0.1"),
    ],
)
def test_a_change_that_cannot_be_names_the_values_that_can(
    analysis: rlscope.Analysis, changes: dict[str, float], message: str
) -> None:
    with pytest.raises(ImpossibleChangeError, match=message):
        analysis.what_if(**changes)  # type: ignore[arg-type]


def test_a_change_that_there_is_not_is_a_type_error_with_the_nearest(analysis: rlscope.Analysis) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'trainer_gpu'; did you mean 'trainer_gpus'"):
        analysis.what_if(trainer_gpu=2)  # type: ignore[call-arg]


def test_a_check_takes_limits_instead_of_the_built_in_rules_and_beside_a_file_of_rules(tmp_path: Path) -> None:
    limit = "staleness.tokens.p95 > 2"
    alone = rlscope.check(TRACE, fail_if=limit)
    assert [outcome.rule.name for outcome in alone.rules] == [limit]
    assert alone.failed() and [alert.rule for alert in alone.alerts] == [limit]
    assert not rlscope.check(TRACE, fail_if=[limit.replace("2", "200")]).failed("info")
    (tmp_path / "rules.toml").write_text('[[rules]]\nname = "one"\nmetric = "queue.depth"\nabove = 1000\n')
    both = rlscope.check(TRACE, tmp_path / "rules.toml", [limit])
    assert [outcome.rule.name for outcome in both.rules] == ["one", limit]


def test_a_path_with_a_name_that_no_file_can_have_is_an_error_of_the_user(tmp_path: Path) -> None:
    for ask in (rlscope.analyze, rlscope.check, rlscope.doctor, rlscope.open, rlscope.list_runs):
        with pytest.raises(errors.RunFolderError, match="File name too long; expected the path of a run"):
            ask(tmp_path / ("x" * 300))


def test_a_check_refuses_other_forms_and_severities_than_there_are(run_dir: Path) -> None:
    checked = rlscope.check(run_dir)
    assert json.loads(checked.to_text("json"))["fail_on"] == "critical"
    with pytest.raises(ArgumentError, match="form: found 'xml'; expected one of text, json, markdown"):
        checked.to_text("xml")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="fail_on: found 'bad'; expected one of info, warning, critical"):
        checked.failed("bad")  # type: ignore[arg-type]
    with pytest.raises(RuleError, match=r"Did you mean 'staleness\.tokens\.p95'"):
        rlscope.check(run_dir, fail_if="staleness.token.p95 > 1")


def test_the_tree_of_errors_is_drawn_as_it_is() -> None:
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, RlscopeError)]
    drawn = [line for line in (errors.__doc__ or "").splitlines() if "──" in line]
    assert len(drawn) == len(kinds) - 1
    for kind in kinds:
        if kind is not RlscopeError:
            (line,) = [line for line in drawn if f"─ {kind.__name__} " in line]
            parent = kind.__bases__[0]
            assert (line.index("─") > 1) == (parent is not RlscopeError), kind


def test_the_notebook_of_the_examples_runs_cell_by_cell(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlscope.pipeline.analyze", analyze_kept)
    monkeypatch.setattr("rlscope.comparison.runs.analyze", analyze_kept)
    path = ROOT / "examples" / "notebook.py"
    cells = [
        cell
        for cell in path.read_text(encoding="utf-8").split("\n# %%")
        if not cell.removeprefix("# %%").startswith(" [markdown]")
    ]
    namespace: dict[str, object] = {"__file__": str(path)}
    for cell in cells:
        exec(compile(cell, path.name, "exec"), namespace)
    printed = capsys.readouterr().out
    assert "bottleneck: samplers" in printed and "trained tokens/s, 90% interval" in printed
    assert 8 < len(cells) < 16 and isinstance(namespace["analysis"], rlscope.Analysis)
