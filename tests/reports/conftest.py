from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rlscope.model.forecast import grid

CHROMIUM = Path("/usr/bin/chromium")
DESKTOP = {"width": 1280, "height": 800}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Closed with its module: until then playwright's event loop runs in this thread, and asyncio bears no other."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip(f"there is no Chromium at {CHROMIUM}")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


def watched(page: Any) -> tuple[Any, list[str]]:
    """The page, and everything that it complains about or asks the network for."""
    troubles: list[str] = []
    page.on("console", lambda message: troubles.append(message.text))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on(
        "request", lambda request: None if request.url.startswith(("file:", "data:")) else troubles.append(request.url)
    )
    page.on("dialog", lambda dialog: (troubles.append("dialog"), dialog.dismiss()))
    return page, troubles


def wait_until_drawn(page: Any) -> None:
    """Until every chart is drawn, the folded ones too."""
    page.wait_for_selector("html[data-charts=all]", state="attached")


@pytest.fixture(scope="module")
def opened(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, str], Any]]:
    """Opens a page of a name and a text, once and drawn, on a desktop in light colors: the page and its troubles."""
    folder = tmp_path_factory.mktemp("pages")
    context = browser.new_context(has_touch=True)
    known: dict[str, tuple[Any, list[str]]] = {}

    def page_of(name: str, text: str) -> tuple[Any, list[str]]:
        if name not in known:
            (folder / f"{name}.html").write_text(text, encoding="utf-8")
            known[name] = watched(context.new_page())
            known[name][0].goto((folder / f"{name}.html").as_uri())
            wait_until_drawn(known[name][0])
        sheet, troubles = known[name]
        sheet.bring_to_front()  # Chromium draws a page behind another one once a second.
        sheet.set_viewport_size(DESKTOP)
        sheet.emulate_media(color_scheme="light", media="screen", reduced_motion="no-preference")
        return sheet, troubles

    yield page_of
    context.close()


@contextmanager
def solving(**values: list[int]) -> Iterator[None]:
    """The panel of a page solves the splits and these values of its settings alone: they take most of a page's time."""
    grid.solve_grid.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid, "_values", lambda _: values)
        yield
    grid.solve_grid.cache_clear()


@pytest.fixture(scope="module")
def few_what_ifs() -> Iterator[None]:
    with solving():
        yield
