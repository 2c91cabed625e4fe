"""How large the page of a run is, and how long a browser takes until its verdict is seen and its charts are drawn.

Generates a run (see `generated_run.py`), analyses it, and opens the page from its file in a fresh context a round. The
verdict is the first content of the page, so the browser's own first contentful paint is when it is seen. The last
result is in `page_size.txt`.

    python benchmarks/page_size.py --samples 1000000
"""

import argparse
import os
import platform
import statistics
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from generated_run import SAMPLES_STEP, Shape, generate
from playwright.sync_api import Browser, sync_playwright

from rlscope.pipeline import analyze
from rlscope.reports.page.html import render

CHROMIUM: Final = "/usr/bin/chromium"
SCREEN: Final = {"width": 1280, "height": 800}
AIM_S: Final = 1.0
AIM_BYTES: Final = 2_500_000
FIRST_PAINT: Final = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


def seconds_until(browser: Browser, page_path: Path) -> tuple[float, float]:
    """Until the verdict is painted, and until every chart is drawn."""
    context = browser.new_context(viewport=SCREEN)
    page = context.new_page()
    page.goto(page_path.as_uri())
    page.wait_for_function("document.documentElement.dataset.charts === 'drawn'")
    drawn_ms, painted_ms = page.evaluate("performance.now()"), page.evaluate(FIRST_PAINT)
    assert page.locator("#headline").is_visible()
    context.close()
    return painted_ms / 1e3, drawn_ms / 1e3


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):6.2f}  ({min(values):6.2f} .. {max(values):6.2f})"


def measure(folder: Path, samples: int, repeats: int) -> str:
    generate(folder, Shape(samples, 1, gpu_samples=False))
    analysis = analyze(folder)
    html = render(analysis)
    path = folder / "page.html"
    path.write_text(html, encoding="utf-8")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        times = [seconds_until(browser, path) for _ in range(repeats)]
        shown = f"Chromium {browser.version}"
        browser.close()
    painted_s, drawn_s = zip(*times, strict=True)
    lines = [
        f"date      {datetime.now(UTC):%Y-%m-%d}",
        f"machine   {os.cpu_count()} cores, {platform.machine()}, {platform.system()}, {shown}",
        f"command   python benchmarks/page_size.py --samples {samples} --repeats {repeats}",
        f"run       {samples:,} samples, {analysis.run.tokens_trained:,} tokens trained",
        f"rounds    {repeats}, each a fresh context: median (least .. most)",
        "",
        f"page                  bytes {len(html.encode()):,}   aim: at most {AIM_BYTES:,}",
        f"verdict is seen       s     {spread(painted_s)}   aim: under {AIM_S:.0f}",
        f"every chart is drawn  s     {spread(drawn_s)}",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1_000_000, help=f"size, in steps of {SAMPLES_STEP}")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="where the result goes; printed too")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rlscope-page-") as folder:
        text = measure(Path(folder) / "run", given.samples, given.repeats)
    print(text)
    if given.out is not None:
        given.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
