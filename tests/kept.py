"""What many tests look at and nobody changes: made once, and kept on disk until the code or a trace changes."""

import inspect
import os
import pickle
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import cache, wraps
from hashlib import sha256
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from filelock import FileLock

import rlscope
from rlscope.analysis.result import AnalysisResult
from rlscope.document import extended
from rlscope.importers.join import RunFolder
from rlscope.pipeline import analyze

_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")
ROOT: Final = Path(__file__).parents[1]
TRACES: Final = ROOT / "sample_traces"
FOLDER: Final = ROOT / ".pytest_cache" / "kept"
_MADE_FROM: Final = ("rlscope/**/*.py", "queries/**/*.sql", "instrumentation/rlscope_otel/**/*.py", "tests/**/*.py")


def kept(make: Callable[_Given, _Made]) -> Callable[_Given, _Made]:
    """What a function gives for its arguments, made once for all test processes. It must depend on nothing else."""
    source = Path(inspect.getfile(make)).read_text(encoding="utf-8")

    @cache
    @wraps(make)
    def given(*args: _Given.args, **kwargs: _Given.kwargs) -> _Made:
        name = sha256(f"{source} {make.__qualname__} {args} {kwargs}".encode()).hexdigest()
        path = _folder() / f"{name}.pickle"
        # A process that needs what another one is making waits for it.
        with FileLock(path.with_suffix(".lock")):
            if not path.exists():
                part = path.with_suffix(f".{os.getpid()}")
                part.write_bytes(pickle.dumps(make(*args, **kwargs)))
                part.rename(path)
        return pickle.loads(path.read_bytes())

    return given


@kept
def analyzed(trace: str) -> AnalysisResult:
    """The analysis of a sample trace, with all that its page draws."""
    return analyze(TRACES / trace)


def analyze_kept(folder: Path | str, **_how: object) -> AnalysisResult:
    """Stands in for `analyze` where a sample trace is analyzed as anybody would."""
    assert Path(folder).parent == TRACES
    return analyzed(Path(folder).name)


def analysis_of(trace: str) -> rlscope.Analysis:
    """The same as the public interface gives it."""
    return extended(rlscope.Analysis, analyzed(trace), path=TRACES / trace, folder=RunFolder(TRACES / trace))


@cache
def _folder() -> Path:
    """The folder of the code and of the processor that BLAS computes for; what was made by other code is removed."""
    digest = sha256(f"{sys.version} {os.environ.get('OPENBLAS_CORETYPE')}".encode())
    for path in _sources():
        digest.update(path.read_bytes())
    folder = FOLDER / digest.hexdigest()
    for other in FOLDER.glob("*"):
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _sources() -> Iterator[Path]:
    """Every file that can change what is made: of tests those that hold none, as they make what others test."""
    for pattern in _MADE_FROM:
        yield from sorted(path for path in ROOT.glob(pattern) if not path.name.startswith("test_"))
    yield from sorted(path for path in TRACES.rglob("*") if path.is_file() and path.name != "report.html")
