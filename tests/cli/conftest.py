"""A small run, its analysis, and the whole of the command `rlscope` in this process."""

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import rlscope
from rlscope.cli import main
from rlscope.errors import OutputError
from tests.trace_folder import small_run


class Ended(NamedTuple):
    """What a command left: its exit code, and all that it wrote."""

    returncode: int
    stdout: str
    stderr: str


class Known(NamedTuple):
    """An analysis that takes no time, of which drawing the page is watched."""

    drawn: list[Path]
    analysis: rlscope.Analysis


def narrow(encoding: str) -> io.TextIOWrapper:
    """A terminal of an encoding."""
    return io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("runs") / "a run")


@pytest.fixture(scope="module")
def analysis(run_dir: Path) -> rlscope.Analysis:
    return rlscope.analyze(run_dir)


@pytest.fixture
def known(analysis: rlscope.Analysis, monkeypatch: pytest.MonkeyPatch) -> Known:
    drawn: list[Path] = []

    def to_html(_self: rlscope.Analysis, path: Path) -> Path:
        drawn.append(path)
        if path.name == "report.html" and path.is_dir():
            raise OutputError.of(path, found="a folder", expected="the name of a file", next_step="Name another one.")
        return path

    monkeypatch.setattr(rlscope, "analyze", lambda *_: analysis)
    monkeypatch.setattr(rlscope.Analysis, "to_html", to_html)
    return Known(drawn, analysis)


@pytest.fixture
def execute(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """The command from its arguments, environment and terminal to its exit code, without the start of a process."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # typer sets its own

    def ended(*arguments: str | Path, encoding: str = "utf-8", **environment: str) -> Ended:
        for name in ("NO_COLOR", "FORCE_COLOR"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {"COLUMNS": "120", **environment}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["rlscope", *map(str, arguments)])
        out, err = narrow(encoding), narrow(encoding)
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        with pytest.raises(SystemExit) as left:
            main()
        written = (each.buffer.getvalue().decode(encoding) for each in (out, err))  # type: ignore[attr-defined]
        return Ended(int(left.value.code or 0), *written)

    return ended
