import gc
from collections.abc import Generator
from pathlib import Path
from typing import Final

import hypothesis
import pytest

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
    "tests/reports/text/test_panel.py",
    "tests/reports/text/test_rules.py",
    "tests/cli",
    # They open or analyze many runs, recorded or made.
    "tests/alerts/live/test_log.py",
    "tests/alerts/live/test_scrape.py",
    "tests/alerts/test_finding_gate.py",
    "tests/alerts/test_offline.py",
    "tests/alerts/test_whole_run.py",
    "tests/analysis",
    "tests/benchmarks",
    "tests/comparison",
    "tests/diagnose",
    "tests/exports",
    "tests/faults",
    "tests/importers/test_commands.py",
    "tests/importers/test_log_laws.py",
    "tests/importers/test_own_framework.py",
    "tests/importers/test_step_bounds.py",
    "tests/queries/test_cases.py",
    "tests/test_action.py",
    "tests/test_api.py",
    "tests/test_sample_traces.py",
    "tests/trace",
    # They simulate, or fit the model, many times over.
    "tests/model/decode/test_fit.py",
    "tests/model/forecast",
    "tests/model/simulate/test_closed_forms.py",
    "tests/model/simulate/test_laws.py",
    "tests/model/training/test_scaling_exponent.py",
    # They start processes, build packages, or wait for a clock.
    "tests/alerts/live/test_follow.py",
    "tests/alerts/notify/test_real_alertmanager.py",
    "tests/test_mcp_server.py",
    "tests/test_packaging.py",
    "tests/test_processors.py",
    "tests/test_recording.py",
    "instrumentation/tests/integrations/test_scrape.py",
    "instrumentation/tests/test_endings.py",
    "instrumentation/tests/test_faults.py",
    "instrumentation/tests/test_upload.py",
    "instrumentation/tests/test_flush.py",
    "instrumentation/tests/test_imports.py",
    "instrumentation/tests/test_closing.py",
)
"""Folders and modules that `make check` leaves to `make test`: they take more than four fifths of its time."""


_SLOW_PATHS: Final = {ROOT / path for path in SLOW}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where only the others run, the slow modules are not imported either, which each worker would do for itself."""
    return True if "not slow" in config.option.markexpr and collection_path in _SLOW_PATHS else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow and put it first, so that no worker is left with it while the others have nothing to do."""
    if missing := sorted(str(path) for path in _SLOW_PATHS if not path.exists()):
        raise pytest.UsageError(f"SLOW in tests/conftest.py lists what does not exist: {', '.join(missing)}")
    for item in items:
        if not _SLOW_PATHS.isdisjoint((item.path, *item.path.parents)):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """Look for no garbage among what is collected, which stays until the end; afterwards rarely, as the commands do.

    It takes each worker a second, and a twentieth of the time of the tests.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        gc.enable()


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Analyses ask the model nothing, which would take them seconds."""
    from rlscope.model.forecast.result import NoModelResult

    monkeypatch.setattr("rlscope.analysis.advise.advise", lambda *_: NoModelResult("not asked"))
