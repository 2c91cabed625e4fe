from dataclasses import replace
from pathlib import Path

import pytest
from analysis_fixture import empty_analysis, full_analysis, hostile_analysis
from outlook_fixture import changing_outlook, short_outlook

from rlscope.report.html import render

CHROMIUM = Path("/usr/bin/chromium")
pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip(f"there is no Chromium at {CHROMIUM}")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    pages = {
        "full": full_analysis(),
        "outlook": replace(full_analysis(), outlook=changing_outlook()),
        "short": replace(hostile_analysis(), outlook=short_outlook()),
        "many": full_analysis(64),
        "hostile": hostile_analysis(),
        "empty": empty_analysis(),
    }
    for name, analysis in pages.items():
        (folder / f"{name}.html").write_text(render(analysis), encoding="utf-8")
    return folder


def opened(browser, path, **options):
    """The page, drawn, and everything that it complained about or asked the network for."""
    page = browser.new_page(**options)
    troubles = []
    page.on("console", lambda message: troubles.append(message.text))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on(
        "request", lambda request: None if request.url.startswith(("file:", "data:")) else troubles.append(request.url)
    )
    page.on("dialog", lambda dialog: (troubles.append("dialog"), dialog.dismiss()))
    page.goto(path.as_uri())
    page.wait_for_function("document.documentElement.dataset.charts === 'drawn'")
    return page, troubles


@pytest.mark.parametrize(
    ("name", "charts"),
    [("full", 15), ("outlook", 19), ("short", 19), ("many", 15), ("hostile", 15), ("empty", 0)],
)
def test_every_chart_is_drawn_without_a_complaint_or_a_request(browser, files, name, charts):
    page, troubles = opened(browser, files / f"{name}.html")
    assert troubles == []
    assert page.locator(".chart svg .marks, .chart svg.marks").count() == charts
    assert page.locator(".chart svg[aria-label], .chart [aria-label]").count() >= charts
    page.close()


@pytest.mark.parametrize("name", ["full", "outlook", "short", "many", "hostile", "empty"])
@pytest.mark.parametrize("width", [375, 768, 1400])
def test_no_width_scrolls_sideways(browser, files, name, width):
    page, _ = opened(browser, files / f"{name}.html", viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def test_charts_get_narrower_with_the_window(browser, files):
    page, _ = opened(browser, files / "full.html", viewport={"width": 1400, "height": 800})
    page.set_viewport_size({"width": 375, "height": 800})
    page.wait_for_function("[...document.querySelectorAll('.chart svg')].every(svg => svg.clientWidth <= 375)")
    page.close()


def test_page_and_charts_follow_the_colour_scheme(browser, files):
    page, _ = opened(browser, files / "full.html", color_scheme="light")
    read = """() => [getComputedStyle(document.body).backgroundColor,
                     getComputedStyle(document.querySelector('#figure-ledger .mark-rect path')).fill]"""
    light = page.evaluate(read)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(read)
    page.emulate_media(color_scheme="dark", media="print")
    printed = page.evaluate(read)
    assert light[0] != dark[0] and light[1] != dark[1]
    assert printed == light
    page.close()


def test_pointing_at_a_mark_shows_its_numbers(browser, files):
    page, _ = opened(browser, files / "full.html")
    page.locator("#figure-ledger .mark-rect path").first.hover()
    page.wait_for_selector("#vg-tooltip-element.visible")
    assert "GPU-seconds" in page.locator("#vg-tooltip-element").inner_text()
    page.close()


@pytest.mark.parametrize("name", ["figure-gap", "figure-sweep", "figure-frontier", "figure-pass-curve"])
def test_the_charts_of_the_model_have_marks(browser, files, name):
    page, _ = opened(browser, files / "outlook.html")
    assert page.locator(f"#{name} .mark-rect path, #{name} .mark-symbol path").count() > 3
    page.close()


@pytest.mark.parametrize("name", ["full", "outlook", "short", "hostile", "empty"])
def test_all_that_a_reader_in_a_hurry_needs_stands_on_the_first_screen(browser, files, name):
    page, _ = opened(browser, files / f"{name}.html", viewport={"width": 1280, "height": 800})
    for place in ("quality", "verdict", "spent", "advice", "strip"):
        box = page.locator(f".first > .{place}").bounding_box()
        assert box["y"] >= 0 and box["height"] > 20 and box["y"] + box["height"] <= 800, place
    page.close()


def test_the_advice_stands_beside_the_gpu_time_and_its_table_inside_its_column(browser, files):
    page, _ = opened(browser, files / "outlook.html", viewport={"width": 1280, "height": 800})
    spent, advice = (page.locator(place).bounding_box() for place in (".first .spent", ".first .advice"))
    assert spent["y"] == advice["y"] and spent["x"] + spent["width"] <= advice["x"] + 1
    inside = page.locator(".first .advice .rows").bounding_box()
    assert inside["x"] + inside["width"] <= advice["x"] + advice["width"]
    page.close()
