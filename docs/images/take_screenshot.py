"""Take the README's picture of a report: `python docs/images/take_screenshot.py REPORT.html docs/images/report.png`."""

import sys
from pathlib import Path
from typing import Final

from playwright.sync_api import sync_playwright

CHROMIUM: Final = "/usr/bin/chromium"
WIDTH, HEIGHT = 1400, 1220


def take(report: Path, picture: Path) -> None:
    """Save the first screen of a report, light, once its charts are drawn."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto(report.resolve().as_uri())
        page.wait_for_function("document.documentElement.dataset.charts === 'drawn'")
        page.screenshot(path=picture)
        browser.close()


if __name__ == "__main__":
    take(Path(sys.argv[1]), Path(sys.argv[2]))
