"""The code's shape: which way it imports, who may use which library, and how long its parts are."""

import ast
import io
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ANALYSIS = sorted((ROOT / "rlscope").rglob("*.py"))
CAPTURE = sorted((ROOT / "instrumentation" / "rlscope_otel").rglob("*.py"))
MODULES = [*ANALYSIS, *CAPTURE]

LAYERS = (
    {"errors", "interval", "diagnose.finding", "alerts.alert"},
    {"model"},
    {"query_files", "run_config", "run_files", "plan_keys"},
    {"analysis"},
    {"plan_file"},
    {"store"},
    {"query"},
    {"ledger", "staleness", "run_facts", "data_quality"},
    {"diagnose"},
    {"verdict", "own_query", "table_output"},
    {"observation"},
    {"look_ahead", "other_runs", "plan_model", "plan_lengths", "plan_ahead", "report.numbers", "alerts"},
    {"analyze", "what_if"},
    {"alerts.check"},
    {"report"},
    {"cli"},
)
"""From what imports nothing of ours to what may import everything: a module imports its own layer and those above."""
CONFINED = {
    "duckdb": {"store.py", "query.py"},
    "altair": {"report/charts"},
    "vl_convert": {"report/html.py", "report/still.py", "report/picture.py"},
    "jinja2": {"report/templating.py"},
    "typer": {"cli"},
    "rich": {
        "cli",
        "report/terminal.py",
        "report/outlook_text.py",
        "report/what_if_text.py",
        "report/plain.py",
        "report/plan_text.py",
        "report/watch_screen.py",
    },
    "opentelemetry": set[str](),
}


def imports(path: Path, *, top_level_only: bool = False) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT / "rlscope").with_suffix("").parts).removesuffix(".__init__")


def layer(name: str) -> int | None:
    """The layer of a module or of a package that holds it; the longest name counts."""
    known = {member: index for index, members in enumerate(LAYERS) for member in members}
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        if (found := ".".join(parts[:length])) in known:
            return known[found]
    return None


@pytest.mark.parametrize("path", ANALYSIS, ids=module_name)
def test_modules_import_only_their_own_layer_and_those_below_it(path: Path) -> None:
    own = layer(module_name(path))
    if module_name(path) == "__init__":
        return
    assert own is not None, f"{path} is in no layer of this test"
    for name in imports(path):
        theirs = layer(name.removeprefix("rlscope.")) if name.startswith("rlscope.") else None
        assert theirs is None or theirs <= own, f"{module_name(path)} imports {name}"


@pytest.mark.parametrize("path", ANALYSIS, ids=module_name)
def test_libraries_stay_where_they_belong(path: Path) -> None:
    where = path.relative_to(ROOT / "rlscope").as_posix()
    for name in imports(path):
        allowed = CONFINED.get(name.split(".")[0])
        assert allowed is None or any(where == a or where.startswith(f"{a}/") for a in allowed), f"{where}: {name}"


def test_the_analysis_takes_nothing_of_the_capture_but_its_schema() -> None:
    taken = {name for path in ANALYSIS for name in imports(path) if name.startswith("rlscope_otel")}
    assert {name for name in taken if not name.startswith("rlscope_otel.schema")} == set()


def test_the_capture_takes_nothing_of_the_analysis_and_no_heavy_library() -> None:
    forbidden = {"rlscope", "duckdb", "polars", "altair", "typer", "torch", "numpy", "jinja2"}
    assert {name.split(".")[0] for path in CAPTURE for name in imports(path)} & forbidden == set()


def test_model_and_diagnosis_open_nothing_and_read_no_clock() -> None:
    pure = [path for path in ANALYSIS if {"model", "diagnose"} & set(path.relative_to(ROOT / "rlscope").parts)]
    assert len(pure) > 8
    for path in pure:
        used = {name.split(".")[0] for name in imports(path)}
        assert not used & {"os", "io", "pathlib", "time", "datetime", "logging", "random", "duckdb", "pyarrow"}, path


def test_who_checks_watches_or_asks_waits_for_no_model() -> None:
    modules = ("rlscope.alerts.check", "rlscope.alerts.watched_run", "rlscope.report.rule_report", "rlscope.own_query")
    program = f"import sys, {', '.join(modules)}; print(*(name.split('.')[0] for name in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "duckdb" in loaded and not {"scipy", "altair", "jinja2"} & set(loaded)


def code_lines(text: str) -> set[int]:
    """The lines that hold more than a comment; of text over several lines, the first."""
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {token.start[0] for token in tokens if token.type not in skipped}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_functions_stay_under_forty_lines_of_code_and_modules_under_three_hundred(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 300
    code = code_lines(text)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            own = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            assert len(code.intersection(own)) <= 40, node.name


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_module_says_what_it_is_for_and_is_named_for_it(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert path.stem not in {"utils", "util", "helpers", "common", "base", "manager", "misc"}


@pytest.mark.parametrize("path", sorted((ROOT / "queries").glob("*.sql")), ids=lambda path: path.stem)
def test_a_question_fits_a_screen(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert path.stem == "macros" or len(lines) <= 100
    assert max(map(len, lines)) <= 120
