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
    {"errors", "format", "input_file", "text_out"},
    {"trace", "model"},
    {"analysis", "importers", "cluster"},
    {"diagnose", "planning"},
    {"alerts"},
    {"pipeline", "comparison"},
    {"reports", "exports"},
    {"api", "answers"},
    {"cli"},
)
"""Each package imports itself and what stands before it; packages of one layer may import each other."""
CONFINED = {
    "duckdb": {"trace"},
    "altair": {"reports/charts"},
    "vl_convert": {"reports/page"},
    "jinja2": {"reports/page"},
    "typer": {"cli"},
    "rich": {"cli", "reports/terminal", "format.py"},
    "opentelemetry": set[str](),
    "perfetto": {"exports"},
    "google": {"exports"},
    "wandb": {"exports"},
    "mlflow": {"exports"},
    "ray": {"cluster.py"},
    "tensorboardX": {"exports"},
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


def layer(name: str) -> int:
    """The layer of a module: that of the package, or of the module beside the packages, which its name begins with."""
    (index,) = [index for index, members in enumerate(LAYERS) if name.split(".")[0] in members]
    return index


@pytest.mark.parametrize("path", ANALYSIS, ids=module_name)
def test_modules_import_only_their_own_layer_and_those_before_it(path: Path) -> None:
    if (own := module_name(path)) == "__init__":
        return
    for name in imports(path):
        if name.startswith("rlscope."):
            assert layer(name.removeprefix("rlscope.")) <= layer(own), f"{own} imports {name}"


def test_the_layers_are_packages_and_every_package_is_in_one() -> None:
    named = [name for members in LAYERS for name in members]
    assert len(LAYERS) <= 9
    assert sorted(named) == sorted({module_name(path).split(".")[0] for path in ANALYSIS} - {"__init__"})


@pytest.mark.parametrize("path", ANALYSIS, ids=module_name)
def test_libraries_stay_where_they_belong(path: Path) -> None:
    where = path.relative_to(ROOT / "rlscope").as_posix()
    for name in imports(path):
        allowed = CONFINED.get(name.split(".")[0])
        assert allowed is None or any(where == a or where.startswith(f"{a}/") for a in allowed), f"{where}: {name}"


def test_a_command_computes_nothing_itself() -> None:
    """It parses, calls the front door and prints; rules, watch and queries have one package to call."""
    computing = {"pipeline", "analysis", "model", "diagnose", "reports.documents", "reports.page", "trace.store"}
    for path in (ROOT / "rlscope" / "cli").glob("*.py"):
        used = {name.removeprefix("rlscope.") for name in imports(path) if name.startswith("rlscope.")}
        assert not {name for name in used for each in computing if f"{name}.".startswith(f"{each}.")}, path.name


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
    modules = (
        "rlscope.alerts.offline",
        "rlscope.alerts.live.watch",
        "rlscope.trace.adhoc",
        "rlscope.reports.documents.check",
    )
    program = f"import sys, {', '.join(modules)}; print(*(name.split('.')[0] for name in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "duckdb" in loaded and not {"scipy", "altair", "jinja2"} & set(loaded)


def test_an_analysis_loads_no_library_that_it_hardly_needs() -> None:
    trace = ROOT / "sample_traces" / "synchronous"
    program = f"import sys; from rlscope.pipeline import analyze; analyze({str(trace)!r}); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert {"polars", "rlscope.model.forecast.result"} <= set(loaded)
    assert not {"pandas", "scipy", "altair", "jinja2", "opentelemetry", "psutil"} & set(loaded)


def code_lines(text: str) -> set[int]:
    """The lines that hold more than a comment; of text over several lines, the first."""
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {token.start[0] for token in tokens if token.type not in skipped}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_functions_stay_under_forty_lines_of_code_and_modules_under_six_hundred(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 600
    code = code_lines(text)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            own = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            assert len(code.intersection(own)) <= 40, node.name


ALIKE = ("diagnose", "reports/sections", "cli")
"""Folders of alike things, of which a tuple lists each: there a short module with one importer is not a fragment."""


def test_no_module_is_a_fragment_of_the_one_that_imports_it() -> None:
    """Packages and alike things aside, a short module has several importers."""
    assert len(ANALYSIS) <= 290
    importers: dict[str, set[str]] = {}
    for path in ANALYSIS:
        for name in set(imports(path)):
            importers.setdefault(name.removeprefix("rlscope."), set()).add(module_name(path))
    for path in ANALYSIS:
        folder, lines = path.parent.relative_to(ROOT / "rlscope").as_posix(), len(path.read_text().splitlines())
        if path.name != "__init__.py" and folder not in ALIKE and lines < 60:
            assert len(importers[module_name(path)]) > 1, f"{module_name(path)} has {lines} lines and one importer"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_module_says_what_it_is_for_and_is_named_for_it(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert path.stem not in {"utils", "util", "helpers", "common", "base", "manager", "misc"}


@pytest.mark.parametrize("path", sorted((ROOT / "queries").rglob("*.sql")), ids=lambda path: path.stem)
def test_a_question_fits_a_screen(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert path.stem == "macros" or len(lines) <= 100
    assert max(map(len, lines)) <= 120
