"""The questions, templates and tables of frameworks are in a checkout, the wheel and the sdist."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from rlscope.trace.questions import macros_sql, queries_folder, questions

ROOT = Path(__file__).parent.parent
QUERIES = sorted(path.relative_to(ROOT / "queries").as_posix() for path in (ROOT / "queries").rglob("*.sql"))
FRAMEWORKS = sorted(path.name for path in (ROOT / "rlscope" / "frameworks").glob("*.toml"))
TEMPLATES = sorted(path.name for path in (ROOT / "rlscope" / "reports" / "templates").iterdir() if path.is_file())


def built(target: str, folder: Path, root: Path = ROOT, **environment: str) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    env = os.environ | environment
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (archive,) = folder.iterdir()
    return archive


def test_the_checkout_s_questions_are_the_ones_that_are_asked() -> None:
    assert queries_folder() == ROOT / "queries"
    stems = [Path(path).stem for path in QUERIES]
    assert sorted([*questions(), "macros"]) == sorted(stems)
    assert "CREATE MACRO" in macros_sql()


@pytest.mark.services
def test_the_wheel_holds_every_question_template_and_framework_and_no_test_and_finds_its_questions(
    tmp_path: Path,
) -> None:
    wheel = zipfile.ZipFile(built("wheel", tmp_path / "built"))
    names = wheel.namelist()
    assert [name for name in QUERIES if f"rlscope/queries/{name}" not in names] == []
    assert [name for name in TEMPLATES if f"rlscope/reports/templates/{name}" not in names] == []
    assert FRAMEWORKS and [name for name in FRAMEWORKS if f"rlscope/frameworks/{name}" not in names] == []
    assert {name.split("/")[0] for name in names} == {"rlscope", "rlscope-0.1.0.dist-info"}
    wheel.extractall(tmp_path)
    say = "from rlscope.trace.questions import queries_folder as f, questions; print(f()); print(len(questions()))"
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {say}"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.split()
    assert said == [str(tmp_path / "rlscope" / "queries"), str(len(questions()))]


@pytest.mark.services
def test_the_sdist_holds_what_the_wheel_is_built_from(tmp_path: Path) -> None:
    with tarfile.open(built("sdist", tmp_path)) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {f"queries/{name}" for name in QUERIES} <= names
    assert {f"rlscope/reports/templates/{name}" for name in TEMPLATES} <= names
    assert {"pyproject.toml", "README.md", "rlscope/cli/app.py"} <= names


@pytest.mark.nightly
def test_the_wheel_with_the_compiled_event_loop_analyzes_a_run_as_the_checkout_does(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in ("rlscope", "queries"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, source)
    wheel = built("wheel", tmp_path / "built", source, HATCH_BUILD_HOOK_ENABLE_MYPYC="true")
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    say = "import sys, rlscope; from rlscope.model.simulate import loop; run = rlscope.analyze(sys.argv[1])"
    say += "; print(loop.__file__.split('.')[-1], run.to_json())"
    said = []
    for root in (tmp_path / "installed", ROOT):
        command = [sys.executable, "-c", say, str(ROOT / "sample_traces" / "fleet")]
        env = os.environ | {"PYTHONPATH": str(root)}
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
        said.append(done.stdout.split(maxsplit=1))
    (kind, compiled), (kind_here, interpreted) = said
    assert (kind, kind_here) == ("so", "py")
    assert compiled == interpreted
