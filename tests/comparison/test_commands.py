"""`rlscope compare` and `list`: what they print, write and exit with."""

import json
from pathlib import Path

import pytest

from tests.cli.command import invoke
from tests.comparison.conftest import TRACES
from tests.kept import analyze_kept

SLOW, FAST = TRACES / "starved_trainer", TRACES / "starved_trainer_after"


def test_compare_prints_a_card_and_writes_what_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlscope.comparison.runs.analyze", analyze_kept)
    page = tmp_path / "page.html"
    done = invoke("compare", SLOW, FAST, SLOW, "-o", page, "--json", tmp_path / "c.json")
    assert done.exit_code == 0 and "B against A: Faster" in done.stdout
    assert "C against A: No significant difference" in done.stdout
    assert "Faster" not in done.stderr and f"wrote {page}" in done.stderr.replace("\n", "")
    assert page.read_text().rstrip().endswith("</html>")
    assert json.loads((tmp_path / "c.json").read_text())["comparisons"][0]["label"] == "Faster"


def test_compare_refuses_two_things_on_stdout_and_a_missing_run() -> None:
    assert invoke("compare", SLOW, FAST, "--json", "-", "--format", "json").exit_code == 2
    assert invoke("compare", SLOW).exit_code == 2


def test_list_prints_a_line_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("rlscope.comparison.history.analyze", analyze_kept)
    done = invoke("list", TRACES / "starved_trainer", "-o", tmp_path / "list.html")
    assert done.exit_code == 0 and "1 run. " in done.stdout
    assert "3.19k" in done.stdout and "3.19k" in (tmp_path / "list.html").read_text()
    found = json.loads(invoke("list", TRACES / "starved_trainer", "--format", "json").stdout)
    assert [each["bottleneck"] for each in found["runs"]] == ["samplers"]
    assert "0 runs. " in invoke("list", TRACES / "starved_trainer", "--filter", "alerts > 50").stdout
