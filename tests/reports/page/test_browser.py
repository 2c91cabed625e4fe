"""The page in a browser: it draws all, asks for nothing, and can be read by anybody, with and without its scripts."""

import re
from dataclasses import replace
from functools import cache

import pytest

from rlscope.model.step_bounds import StepPhases, step_bounds
from rlscope.reports.page.html import render
from tests.nightly import nightly
from tests.reports.analysis_fixture import empty_analysis, full_analysis, hostile_analysis
from tests.reports.conftest import DESKTOP, wait_until_drawn, watched
from tests.reports.model_fixture import changing_model, short_model
from tests.reports.page.test_html import Page

NAMES = ("whole", "hostile", nightly("many"), "empty")
ORIGIN = "https://report.invalid/"
PHASES = StepPhases(20, 10.0, 4.0, 3.0, {"train": 3.0}, shares_gpus=False, is_synchronous=None)
pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("few_what_ifs")]


def whole():
    priced = replace(full_analysis(), model=changing_model())
    return replace(priced, run=replace(priced.run, gpu_hour_price=2.5, currency="EUR"))


MAKERS = {
    "whole": whole,
    "hostile": lambda: replace(hostile_analysis(), model=short_model()),
    "many": lambda: full_analysis(64),
    "empty": lambda: replace(empty_analysis(), step_bounds=step_bounds(PHASES)),
}


@cache
def text_of(name):
    return render(MAKERS[name]())


@pytest.fixture
def pages(opened):
    """Each page with its sections unfolded, and everything that it complained about or asked the network for."""

    def page(name):
        sheet, troubles = opened(name, text_of(name))
        sheet.evaluate("document.querySelectorAll('details.fold').forEach(fold => { fold.open = true; })")
        return sheet, troubles

    return page


@pytest.mark.parametrize("name", NAMES)
def test_every_chart_has_marks_and_nothing_is_complained_of_or_asked_for(pages, name):
    page, troubles = pages(name)
    assert troubles == []
    charts = len(Page(text_of(name)).specs)
    assert (charts == 0) == (name == "empty")
    drawn = page.evaluate("""() => [...document.querySelectorAll('.chart')].map(chart =>
        chart.querySelectorAll('.role-mark path, .role-mark line, .role-mark text, .role-mark rect').length)""")
    assert len(drawn) == charts and all(marks > 0 for marks in drawn)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [390, 768, nightly(1400)])
def test_no_width_scrolls_sideways(pages, name, width):
    page, _ = pages(name)
    page.set_viewport_size({"width": width, "height": 844})
    page.wait_for_function("() => [...document.querySelectorAll('.chart svg')].every(s => s.clientWidth <= innerWidth)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_no_cell_of_the_bounds_of_a_log_is_cut_off(pages):
    page, _ = pages("empty")
    cells = page.locator(".bounds td").all()
    assert len(cells) > 4
    assert max(box["x"] + box["width"] for cell in cells if (box := cell.bounding_box())) <= DESKTOP["width"]


def test_page_and_charts_follow_the_colour_scheme_and_print_is_light(pages):
    page, _ = pages("whole")
    read = """() => [getComputedStyle(document.body).backgroundColor,
                     getComputedStyle(document.querySelector('#figure-pass-curve .mark-symbol path')).fill]"""
    light = page.evaluate(read)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(read)
    page.emulate_media(color_scheme="dark", media="print")
    printed = page.evaluate(read)
    assert light[0] != dark[0] and light[1] != dark[1]
    assert printed == light


def test_pointing_at_a_mark_shows_its_numbers(pages):
    page, _ = pages("whole")
    page.locator("#figure-pass-curve .mark-symbol path").first.hover()
    page.wait_for_selector("#vg-tooltip-element.visible")
    assert "requests" in page.locator("#vg-tooltip-element").inner_text()


@pytest.mark.parametrize("name", NAMES)
def test_all_that_a_reader_in_a_hurry_needs_stands_on_the_first_screen(pages, name):
    page, _ = pages(name)
    page.evaluate("scrollTo({top: 0, behavior: 'instant'})")
    for place in ("quality", "verdict", "actions"):
        if page.locator(f".first > .{place}").count():
            box = page.locator(f".first > .{place}").bounding_box()
            assert box["y"] >= 0 and box["height"] > 20 and box["y"] + box["height"] <= 800, place
    assert page.locator(".first > .spent").bounding_box()["y"] <= 700


def test_the_advice_stands_beside_the_gpu_time_and_its_table_inside_its_column(pages):
    page, _ = pages("whole")
    spent, advice = (page.locator(place).bounding_box() for place in (".first .spent", ".first .advice"))
    assert spent["y"] == advice["y"] and spent["x"] + spent["width"] <= advice["x"] + 1
    inside = page.locator(".first .advice .rows").bounding_box()
    assert inside["x"] + inside["width"] <= advice["x"] + advice["width"]


@pytest.mark.parametrize("name", ["whole", nightly("hostile")])
def test_the_page_works_where_a_server_sends_its_policy_and_everything_else_is_refused(browser, name):
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text_of(name))[1].replace("&#39;", "'")
    assert "unsafe-eval" not in policy and "script-src 'sha256-" in policy
    context = browser.new_context(viewport=DESKTOP)
    refused = []

    def answer(route):
        if route.request.url == ORIGIN:
            headers = {"content-type": "text/html; charset=utf-8", "content-security-policy": policy}
            route.fulfill(body=text_of(name), headers=headers)
        else:
            refused.append(route.request.url)
            route.abort()

    context.route("**/*", answer)
    page, troubles = watched(context.new_page())
    page.goto(ORIGIN)
    wait_until_drawn(page)
    assert refused == [] and [each for each in troubles if each != ORIGIN] == []
    page.evaluate("""() => { const other = document.createElement('script'); other.textContent = 'window.ran = 1';
                             document.body.append(other); }""")
    assert page.evaluate("window.ran") is None and "Content Security Policy" in troubles[-1]
    context.close()


def test_the_numbers_of_a_chart_open_with_the_keyboard(pages):
    page, _ = pages("whole")
    page.locator("#figure-queue-depth summary").focus()
    page.keyboard.press("Enter")
    page.locator("#figure-queue-depth table").wait_for(state="visible")


def test_without_scripts_verdict_and_tables_are_there_folds_open_and_the_switch_works(browser, pages):
    context = browser.new_context(java_script_enabled=False, viewport=DESKTOP)
    page, troubles = watched(context.new_page())
    page.goto(pages("whole")[0].url)
    assert page.locator("h1").inner_text() == "Trainers wait for samples 46.0% of the time"
    charts = len(Page(text_of("whole")).specs)
    assert page.locator("noscript .note").count() == charts
    page.locator("#latency > details > summary").click()
    assert page.locator("button:visible").count() == 0 and page.locator(".chart:visible").count() == 0
    page.locator("#figure-pass-curve summary").click()
    assert page.locator("#figure-pass-curve tbody tr").first.is_visible()
    page.locator("#glossary summary").click()
    assert page.locator("#glossary dl").is_visible()
    page.locator("#try > summary").click()
    assert page.locator("#try input:visible").count() == 0
    splits = page.locator("#try .splits tbody th").all_inner_texts()
    recommended = "4 : 4, max running per engine: 24, recommended"
    assert splits == ["1 : 7", "2 : 6, current", "3 : 5", recommended, "4 : 4", "5 : 3"]
    page.locator(".spent input[value=whole]").check()
    assert page.locator(".spent .of-whole").is_visible() and not page.locator(".spent .of-steady").is_visible()
    assert troubles == []
    context.close()


def test_the_page_prints(pages, tmp_path):
    page, _ = pages("whole")
    printed = page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert printed.startswith(b"%PDF") and 4 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 40
    page.emulate_media(media="print")
    assert page.locator("nav:visible, .numbers:visible, button:visible, input:visible, .skip:visible").count() == 0
    assert page.locator(".printed").is_visible()


def test_the_first_stop_of_the_keyboard_skips_to_the_verdict(pages):
    page, _ = pages("empty")
    page.locator("body").press("Tab")
    assert page.locator(":focus").inner_text() == "Skip to the verdict"
    assert page.locator(":focus").bounding_box()["y"] >= 0
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "verdict"


def test_motion_is_left_out_where_it_is_not_wanted(pages):
    page, _ = pages("whole")
    read = "getComputedStyle(document.documentElement).scrollBehavior"
    assert page.evaluate(read) == "smooth"
    page.emulate_media(reduced_motion="reduce")
    assert page.evaluate(read) == "auto"
