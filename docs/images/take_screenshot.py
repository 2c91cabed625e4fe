"""Take the README's picture of a report: `python docs/images/take_screenshot.py REPORT.html docs/images/report.png`."""

import sys
from pathlib import Path
from typing import Final

from playwright.sync_api import sync_playwright

CHROMIUM: Final = "/usr/bin/chromium"
WIDTH, HEIGHT = 1280, 812
PIXELS_PER_POINT: Final = 1.5


def take(report: Path, picture: Path) -> None:
    """Save the first screen of a report, light, once its charts are drawn."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        size = {"width": WIDTH, "height": HEIGHT}
        page = browser.new_page(viewport=size, device_scale_factor=PIXELS_PER_POINT, color_scheme="light")
        page.goto(report.resolve().as_uri())
        page.wait_for_function("() => ['drawn', 'all'].includes(document.documentElement.dataset.charts)")
        page.screenshot(path=picture)
        browser.close()


if __name__ == "__main__":
    take(Path(sys.argv[1]), Path(sys.argv[2]))
