"""The charts over time in a browser: a drag on one, or its keys, zooms all; buttons choose the view of the workers."""

import re
from functools import cache

import pytest

from rlscope.reports.page.html import render
from tests.reports.analysis_fixture import DURATION_S
from tests.reports.timeline_fixture import WORST_STRETCH_S, timeline_analysis

WHOLE = (0.0, float(DURATION_S))
STEADY = (180.0, float(DURATION_S))
"""What charts over time show at first."""
pytestmark = pytest.mark.browser
AXES = """() => Object.fromEntries([...document.querySelectorAll('.chart.zooms')]
    .filter(chart => chart.offsetParent !== null)
    .map(chart => [chart.closest('figure').id, chart.querySelector('[aria-label^="X-axis"]').ariaLabel]))"""
PLOT = "chart => chart.querySelector('.role-frame .background').getBoundingClientRect().toJSON()"


@cache
def text():
    return render(timeline_analysis(workers=80))


@pytest.fixture
def page(opened):
    """The page as it opens: the next test finds the whole run and all workers again."""
    sheet, troubles = opened("timeline", text())
    sheet.evaluate("document.querySelectorAll('details.fold').forEach(fold => { fold.open = true; })")
    yield sheet
    sheet.get_by_role("radio", name="All workers").check()
    if sheet.locator("#zoom-reset").is_visible():
        sheet.locator("#zoom-reset").click()
    wait_for_zoom(sheet, "whole")
    assert troubles == []


def axes(page):
    """The ends of the horizontal axis of every chart over time that is seen, by its figure."""
    return {figure: ends(label) for figure, label in page.evaluate(AXES).items()}


def ends(label):
    low, high = re.search(r"values from ([\d.,]+) to ([\d.,]+)", label).groups()
    return float(low.replace(",", "")), float(high.replace(",", ""))


def shown(page):
    """The stretch that all of those charts show; fails where they differ."""
    stretches = set(axes(page).values())
    assert len(stretches) == 1, stretches
    return stretches.pop()


def wait_for_zoom(page, kind):
    page.wait_for_function("kind => document.documentElement.dataset.zoom === kind", arg=kind)


def drag(page, figure, from_ratio, to_ratio):
    """With the mouse over the plot of a figure, from one part of its width to another."""
    chart = page.locator(f"#{figure} .chart")
    chart.scroll_into_view_if_needed()
    box = chart.evaluate(PLOT)
    y = box["top"] + box["height"] / 2
    page.mouse.move(box["left"] + from_ratio * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["left"] + (from_ratio + to_ratio) / 2 * box["width"], y)
    page.mouse.move(box["left"] + to_ratio * box["width"], y)
    page.mouse.up()


def test_every_chart_over_time_begins_at_the_steady_stretch_and_a_button_shows_the_whole_run(page):
    assert {"figure-workers-all", "figure-throughput", "figure-batch-size",
            "figure-waiting-requests", "figure-kv-use", "figure-queue-depth"} <= set(axes(page))  # fmt: skip
    assert shown(page) == STEADY
    assert page.locator("#zoom-words").inner_text() == "Charts over time begin at the steady state, 180 s in."
    assert not page.locator("#zoom-reset").is_visible()
    page.get_by_role("button", name="Whole run").click()
    page.wait_for_function("() => document.getElementById('zoom-words').textContent.includes('whole run')")
    assert shown(page) == WHOLE
    assert not page.locator("#zoom-whole").is_visible()
    page.get_by_role("button", name="Reset zoom").click()
    page.wait_for_function("() => document.getElementById('zoom-words').textContent.includes('steady')")
    assert shown(page) == STEADY


def test_dragging_over_one_chart_zooms_all_and_the_button_shows_the_steady_stretch_again(page):
    drag(page, "figure-batch-size", 0.25, 0.5)
    wait_for_zoom(page, "part")
    low, high = shown(page)
    assert (low, high) == pytest.approx((450, 720), rel=0.02)
    assert f"of {DURATION_S:,} s" in page.locator("#zoom-words").inner_text()
    drag(page, "figure-workers-all", 0.9, 0.5)
    page.wait_for_function("low => document.getElementById('zoom-words').textContent.includes(low)", arg="show 58")
    assert shown(page) == pytest.approx((585, 693), rel=0.02)
    page.get_by_role("button", name="Reset zoom").click()
    wait_for_zoom(page, "whole")
    assert shown(page) == STEADY


def test_a_click_without_a_drag_zooms_nothing(page):
    drag(page, "figure-batch-size", 0.25, 0.252)
    assert shown(page) == STEADY
    assert page.locator(".brush").count() == 0


def test_the_keys_of_a_focused_chart_zoom_pan_and_reset(page):
    chart = page.locator("#figure-throughput .chart")
    chart.focus()
    page.keyboard.press("+")
    wait_for_zoom(page, "part")
    assert shown(page) == (450.0, 990.0)
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => document.getElementById('zoom-words').textContent.includes('558')")
    assert shown(page) == (558.0, 1098.0)
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    page.wait_for_function("() => document.getElementById('zoom-words').textContent.includes('720')")
    assert shown(page) == (720.0, 1260.0), "no further than the end of the run"
    page.keyboard.press("Escape")
    wait_for_zoom(page, "whole")
    assert shown(page) == STEADY
    page.keyboard.press("-")
    page.wait_for_function("() => document.getElementById('zoom-words').textContent.includes('whole run')")
    assert shown(page) == WHOLE, "no further out than the whole run"
    page.keyboard.press("Escape")
    page.wait_for_function("() => document.getElementById('zoom-words').textContent.includes('steady')")


def test_a_finger_drawn_sideways_zooms_as_a_mouse_does(page):
    chart = page.locator("#figure-queue-depth .chart").first
    chart.scroll_into_view_if_needed()
    box = chart.evaluate(PLOT)
    y, touch = box["top"] + 20, page.context.new_cdp_session(page)
    for kind, ratio in (("touchStart", 0.5), ("touchMove", 0.6), ("touchMove", 0.75), ("touchEnd", None)):
        points = [] if ratio is None else [{"x": box["left"] + ratio * box["width"], "y": y}]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    wait_for_zoom(page, "part")
    assert shown(page) == pytest.approx((720, 990), rel=0.02)


def test_the_worst_stretch_zooms_all_charts_and_the_worst_workers_have_lanes_of_their_own(page):
    views = [f"#figure-workers-{view}" for view in ("all", "worst-stretch", "worst-workers")]
    assert [page.locator(view).is_visible() for view in views] == [True, False, False]
    page.get_by_role("radio", name="Worst 1 min").check()
    wait_for_zoom(page, "part")
    assert [page.locator(view).is_visible() for view in views] == [False, True, False]
    assert shown(page) == tuple(map(float, WORST_STRETCH_S))
    page.get_by_role("radio", name="Worst 16 workers").check()
    assert [page.locator(view).is_visible() for view in views] == [False, False, True]
    assert "sampler-15" in page.locator(views[2]).inner_text()
    page.wait_for_function("id => document.querySelector(id + ' svg').clientWidth > 600", arg=views[2])
    page.get_by_role("radio", name="All workers").check()
    wait_for_zoom(page, "whole")
    assert [page.locator(view).is_visible() for view in views] == [True, False, False]
