"""`rlscope compare`, `list` and `check --baseline`: what they print, write and exit with."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rlscope.cli import app
from tests.comparison.conftest import TRACES

SLOW, FAST = TRACES / "starved_trainer", TRACES / "starved_trainer_after"
pytestmark = pytest.mark.usefixtures("stills_drawn_once")


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False)


@pytest.fixture(scope="module")
def documents(before, after, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Documents of both runs: reading them is quick."""
    folder = tmp_path_factory.mktemp("documents")
    for name, analysis in (("a", before), ("b", after)):
        (folder / f"{name}.json").write_text(analysis.to_json())
    return folder / "a.json", folder / "b.json"


def test_compare_prints_a_card_and_writes_what_it_is_asked_for(tmp_path: Path) -> None:
    page, picture = tmp_path / "page.html", tmp_path / "card.png"
    done = invoke("compare", SLOW, FAST, "-o", page, "--png", picture, "--json", tmp_path / "c.json")
    assert done.exit_code == 0 and "B against A: Faster" in done.stdout
    assert "Faster" not in done.stderr and f"wrote {page}" in done.stderr.replace("\n", "")
    assert page.read_text().rstrip().endswith("</html>") and picture.read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "c.json").read_text())["comparisons"][0]["label"] == "Faster"


def test_compare_takes_several_runs_and_documents(documents: tuple[Path, Path]) -> None:
    first, second = documents
    done = invoke("compare", first, second, first, "--format", "markdown")
    assert done.exit_code == 0 and done.stdout.count("### Not tested") == 2
    assert "from its JSON document" in done.stdout
    found = json.loads(invoke("compare", first, second, "--json", "-").stdout)
    assert [each["run"]["letter"] for each in found["comparisons"]] == ["B"]
    assert found["comparisons"][0]["promise"]["is_kept"] is True


def test_compare_refuses_two_things_on_stdout_and_a_missing_run(documents: tuple[Path, Path]) -> None:
    assert invoke("compare", *documents, "--json", "-", "--format", "json").exit_code == 2
    assert invoke("compare", documents[0]).exit_code == 2


@pytest.mark.parametrize(("limit", "code"), [("0.5", 0), ("1.6", 3)])
def test_check_exits_three_on_a_regression(limit: str, code: int) -> None:
    rule = f"throughput.steady_tokens_per_s < {limit} * baseline"
    assert invoke("check", FAST, "--baseline", SLOW, "--fail-if", rule).exit_code == code


def test_list_prints_a_line_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = invoke("list", TRACES / "starved_trainer", "-o", tmp_path / "list.html")
    assert done.exit_code == 0 and done.stdout.splitlines()[-1] == "1 run"
    assert "3.19k" in done.stdout and "3.19k" in (tmp_path / "list.html").read_text()
    found = json.loads(invoke("list", TRACES / "starved_trainer", "--format", "json").stdout)
    assert [each["bottleneck"] for each in found["runs"]] == ["samplers"]
    assert invoke("list", TRACES / "starved_trainer", "--filter", "alerts > 50").stdout.splitlines()[-1] == "0 runs"
