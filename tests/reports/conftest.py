from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlscope.model.forecast import grid

CHROMIUM = Path("/usr/bin/chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Closed with its module: until then playwright's event loop runs in this thread, and asyncio bears no other."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip(f"there is no Chromium at {CHROMIUM}")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def few_what_ifs() -> Iterator[None]:
    """The panel of a page solves the splits alone: its other settings take most of a page's time."""
    grid.solve_grid.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid, "_values", lambda _: {})
        yield
    grid.solve_grid.cache_clear()
