import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final

import hypothesis
import pytest
from markupsafe import Markup

hypothesis.settings.register_profile("few", max_examples=40, deadline=None, derandomize=True)
hypothesis.settings.register_profile("many", max_examples=200, deadline=None)
hypothesis.settings.load_profile("few")

ROOT: Final = Path(__file__).parent.parent
SLOW: Final = (
    # They open a browser, draw whole pages, or run commands.
    "tests/reports/page",
    "tests/reports/documents/test_model.py",
    "tests/reports/sections/test_flow.py",
    "tests/reports/test_formats.py",
    "tests/reports/text/test_model.py",
    "tests/reports/text/test_rules.py",
    "tests/cli",
    # They open or analyse many runs, recorded or made.
    "tests/alerts/test_offline.py",
    "tests/analysis",
    "tests/benchmarks",
    "tests/comparison",
    "tests/diagnose",
    "tests/faults",
    "tests/test_sample_traces.py",
    "tests/trace",
    # They simulate, or fit the model, many times over.
    "tests/model/decode/test_fit.py",
    "tests/model/forecast",
    "tests/model/simulate/test_closed_forms.py",
    "tests/model/training/test_scaling_exponent.py",
    # They start processes, build packages, or wait for a clock.
    "tests/alerts/live/test_follow.py",
    "tests/alerts/notify/test_real_alertmanager.py",
    "tests/test_packaging.py",
    "tests/test_recording.py",
    "instrumentation/tests/integrations/test_scrape.py",
    "instrumentation/tests/test_endings.py",
    "instrumentation/tests/test_faults.py",
    "instrumentation/tests/test_upload.py",
    "instrumentation/tests/test_flush.py",
    "instrumentation/tests/test_imports.py",
    "instrumentation/tests/test_merging.py",
)
"""Folders and modules that `make check` leaves to `make test`: they take more than four fifths of its time."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow and put it first, so that no worker is left with it while the others have nothing to do."""
    slow = {ROOT / path for path in SLOW}
    if missing := sorted(str(path) for path in slow if not path.exists()):
        raise pytest.UsageError(f"SLOW in tests/conftest.py lists what does not exist: {', '.join(missing)}")
    for item in items:
        if not slow.isdisjoint((item.path, *item.path.parents)):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(scope="session")
def stills_drawn_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The same made runs are drawn again and again, and half of the time goes into the pictures for no scripts.

    Processes that test side by side share what each has drawn: the folder above theirs is that of the session.
    """
    from rlscope.reports.page import html

    own = tmp_path_factory.getbasetemp()
    folder, draw = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "stills", html.still
    folder.mkdir(exist_ok=True)

    def still(spec: str, anchor: str) -> Markup:
        path = folder / f"{sha256(f'{anchor} {spec}'.encode()).hexdigest()}.svg"
        if not path.exists():
            drawn = path.with_suffix(f".{os.getpid()}")
            drawn.write_text(draw(spec, anchor), encoding="utf-8")
            drawn.rename(path)
        return Markup(path.read_text(encoding="utf-8"))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(html, "still", still)
        yield
