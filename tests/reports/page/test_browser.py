"""The page in a browser: it draws all, asks for nothing, and can be read by anybody, with and without its scripts."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from rlscope.model.step_bounds import StepPhases, step_bounds
from rlscope.reports import figure
from rlscope.reports.page.html import render
from tests.kept import analyzed
from tests.nightly import nightly
from tests.reports.analysis_fixture import DURATION_S, empty_analysis, full_analysis, hostile_analysis
from tests.reports.conftest import DESKTOP, solving, watched
from tests.reports.model_fixture import changing_model
from tests.reports.page.test_html import Page
from tests.reports.timeline_fixture import WORST_STRETCH_S, timeline_analysis

NAMES = ("whole", "hostile", nightly("many"), "empty")
READ = ("whole", nightly("vllm_trl"), nightly("fleet"))
"""Pages whose length and labels are looked at; the whole one has every chart."""
OPEN_PX = {1280: 4_800, 390: 8_000}
"""The most that a page may be high before anything is unfolded, by its width."""
A4_PX = 703
"""Width of a sheet between margins of 12 mm."""
PHASES = StepPhases(20, 10.0, 4.0, 3.0, {"train": 3.0}, shares_gpus=False, is_synchronous=None)
pytestmark = pytest.mark.browser
WHOLE_RUN_S = (0.0, float(DURATION_S))
STEADY_S = (180.0, float(DURATION_S))
"""What charts over time show at first."""
AXES = """() => Object.fromEntries([...document.querySelectorAll('.chart.zooms')]
    .filter(chart => chart.offsetParent !== null)
    .map(chart => [chart.closest('figure').id, chart.querySelector('[aria-label^="X-axis"]').ariaLabel]))"""
PLOT = "chart => chart.querySelector('.role-frame .background').getBoundingClientRect().toJSON()"

LABELS = """() => {
    const poor = [];
    for (const chart of document.querySelectorAll('.chart')) {
        const svg = chart.querySelector('svg');
        if (!svg || !chart.checkVisibility()) continue;
        const name = chart.closest('figure').id, edge = chart.getBoundingClientRect();
        const seen = [...svg.querySelectorAll('text')].filter(text =>
            text.textContent.trim() && text.getAttribute('opacity') !== '0');
        const boxes = seen.map(text => [text.textContent, text.getBoundingClientRect()]);
        boxes.forEach(([words, box], n) => {
            if (box.left < edge.left - 1 || box.right > edge.right + 1 || box.bottom > edge.bottom + 2)
                poor.push(`${name}: "${words}" is cut`);
            for (const [others, other] of boxes.slice(n + 1)) {
                // A label lies twice on the same place: its outline, and its words.
                if (words === others && Math.abs(box.left - other.left) < 3) continue;
                const wide = Math.min(box.right, other.right) - Math.max(box.left, other.left);
                const high = Math.min(box.bottom, other.bottom) - Math.max(box.top, other.top);
                if (wide > 1 && high > 3) poor.push(`${name}: "${words}" lies over "${others}"`);
            }
        });
        for (const axis of svg.querySelectorAll('.role-axis-label')) {
            const labels = [...axis.querySelectorAll('text')]
                .filter(text => text.getAttribute('opacity') !== '0').map(text => text.textContent).filter(Boolean);
            if (labels.some((label, n) => label === labels[n - 1])) poor.push(`${name}: ${labels} has a label twice`);
        }
    }
    return poor;
}"""


@pytest.fixture(scope="module", autouse=True)
def few_what_ifs_and_numbers() -> Iterator[None]:
    """Tables of numbers are short too: they take most of the time."""
    with solving(max_running=[24, 64], publish_every=[4]), pytest.MonkeyPatch.context() as patch:
        patch.setattr(figure, "TABLE_ROWS_MAX", 4)
        yield


def whole():
    made = replace(timeline_analysis(workers=80, updates=5, parts=6), model=changing_model())
    return replace(made, run=replace(made.run, gpu_hour_price=2.5, currency="EUR"))


MAKERS = {
    "whole": whole,
    "hostile": hostile_analysis,
    "many": lambda: full_analysis(64),
    "empty": lambda: replace(empty_analysis(), step_bounds=step_bounds(PHASES)),
}


@cache
def text_of(name):
    return render(MAKERS[name]() if name in MAKERS else analyzed(name))


@pytest.fixture
def page_of(opened):
    """A page of a width with every chart drawn, and its sections unfolded or not."""

    def page(name, width=DESKTOP["width"], *, is_open=True):
        sheet, _ = opened(name, text_of(name))
        sheet.set_viewport_size({"width": width, "height": DESKTOP["height"]})
        unfold(sheet, is_open=is_open)
        return sheet

    return page


def unfold(page, *, is_open):
    page.evaluate(
        """to => document.querySelectorAll(to ? 'details.fold' : 'details').forEach(each => { each.open = to; })""",
        is_open,
    )
    # The charts take their new width in the frame after.
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done())))")
    page.wait_for_function("""() => [...document.querySelectorAll('.chart')].every(chart => {
        const svg = chart.querySelector('svg');
        return !svg || !chart.checkVisibility() || Math.abs(svg.clientWidth - chart.clientWidth) < 4;
    })""")


@pytest.mark.parametrize("name", NAMES)
def test_every_chart_has_marks_and_nothing_is_complained_of_or_asked_for(opened, page_of, name):
    page, (_, troubles) = page_of(name), opened(name, text_of(name))
    assert troubles == []
    charts = len(Page(text_of(name)).specs)
    assert (charts == 0) == (name == "empty")
    drawn = page.evaluate("""() => [...document.querySelectorAll('.chart')].map(chart =>
        chart.querySelectorAll('.role-mark path, .role-mark line, .role-mark text, .role-mark rect').length)""")
    assert len(drawn) == charts and all(marks > 0 for marks in drawn)


@pytest.mark.parametrize(
    ("name", "width"),
    [
        *(("whole", 390), ("hostile", 390), ("empty", 390), ("whole", 768)),
        *(nightly("many", 390), nightly("hostile", 768), nightly("whole", 1400)),
    ],
)
def test_no_width_scrolls_sideways(page_of, name, width):
    assert page_of(name, width).evaluate("document.documentElement.scrollWidth") <= width


def test_page_and_charts_follow_the_color_scheme_and_print_is_light(page_of):
    page = page_of("whole")
    read = """() => [getComputedStyle(document.body).backgroundColor,
                     getComputedStyle(document.querySelector('#figure-pass-curve .mark-symbol path')).fill]"""
    light = page.evaluate(read)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(read)
    page.emulate_media(color_scheme="dark", media="print")
    printed = page.evaluate(read)
    assert light[0] != dark[0] and light[1] != dark[1]
    assert printed == light


def test_pointing_at_a_mark_shows_its_numbers(page_of):
    page = page_of("whole")
    page.locator("#figure-pass-curve .mark-symbol path").first.hover()
    page.wait_for_selector("#vg-tooltip-element.visible")
    assert "requests" in page.locator("#vg-tooltip-element").inner_text()


@pytest.mark.parametrize("name", NAMES)
def test_all_that_a_reader_in_a_hurry_needs_stands_on_the_first_screen(page_of, name):
    page = page_of(name)
    page.evaluate("scrollTo({top: 0, behavior: 'instant'})")
    for place in ("quality", "verdict", "actions"):
        if page.locator(f".first > .{place}").count():
            box = page.locator(f".first > .{place}").bounding_box()
            assert box["y"] >= 0 and box["height"] > 20 and box["y"] + box["height"] <= DESKTOP["height"], place
    assert page.locator(".first > .spent").bounding_box()["y"] <= 700


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("width", OPEN_PX)
def test_the_open_page_stays_short(page_of, name, width):
    page = page_of(name, width, is_open=False)
    assert page.evaluate("() => document.documentElement.scrollHeight") <= OPEN_PX[width]


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("width", OPEN_PX)
def test_no_label_of_a_chart_is_cut_or_lies_over_another_and_no_axis_says_a_number_twice(page_of, name, width):
    assert page_of(name, width).evaluate(LABELS) == []


def test_the_page_runs_no_script_but_its_own(opened, page_of):
    page, (_, troubles) = page_of("whole"), opened("whole", text_of("whole"))
    page.evaluate("""() => { const other = document.createElement('script'); other.textContent = 'window.ran = 1';
                             document.body.append(other); }""")
    assert page.evaluate("window.ran") is None and "Content Security Policy" in troubles.pop()


def test_without_scripts_verdict_and_tables_are_there_folds_open_and_the_switch_works(browser, page_of):
    context = browser.new_context(java_script_enabled=False, viewport=DESKTOP)
    page, troubles = watched(context.new_page())
    page.goto(page_of("whole").url)
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


def test_the_first_stop_of_the_keyboard_skips_to_the_verdict(page_of):
    page = page_of("empty")
    page.locator("body").press("Tab")
    assert page.locator(":focus").inner_text() == "Skip to the verdict"
    assert page.locator(":focus").bounding_box()["y"] >= 0
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "verdict"


def test_motion_is_left_out_where_it_is_not_wanted(page_of):
    page = page_of("whole")
    read = "getComputedStyle(document.documentElement).scrollBehavior"
    assert page.evaluate(read) == "smooth"
    page.emulate_media(reduced_motion="reduce")
    assert page.evaluate(read) == "auto"


@pytest.mark.parametrize(("scheme", "rules"), [("light", {}), ("dark", {"runOnly": ["color-contrast"]})])
def test_axe_finds_no_violation_on_the_whole_page(page_of, scheme, rules):
    axe = Path(pytest.importorskip("axe_playwright_python").__file__).with_name("axe.min.js")
    page = page_of("whole")
    page.emulate_media(color_scheme=scheme)
    # As a script of the page it would be refused by the page's own policy.
    page.evaluate(axe.read_text(encoding="utf-8"))
    # Of rules that pass it would describe every element, thousands of them: only their number comes back.
    found = page.evaluate(
        """async rules => {
        const options = { resultTypes: ['violations'], ...rules };
        const { violations, passes } = await axe.run({ exclude: ['.chart svg'] }, options);
        return { violations, passes: passes.length };
    }""",
        rules,
    )
    assert [(each["id"], each["impact"], each["nodes"][0]["html"]) for each in found["violations"]] == []
    assert found["passes"] > (0 if rules else 20)


def test_a_link_and_an_address_open_what_they_lead_into(page_of):
    page = page_of("whole", is_open=False)
    page.locator("nav a[href='#glossary']").click()
    page.locator("#glossary .folded").wait_for(state="visible")
    page.evaluate("location.hash = '#figure-pass-curve'")
    page.locator("#figure-pass-curve").wait_for(state="visible")
    assert page.locator("#latency > details").get_attribute("open") is not None


def test_print_shows_what_is_folded_and_the_panel_as_its_table_and_leaves_them_as_they_were(page_of, tmp_path):
    page = page_of("whole", is_open=False)
    printed = page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert printed.startswith(b"%PDF") and 4 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 40
    page.emulate_media(media="print")
    assert page.locator("nav:visible, .numbers:visible, button:visible, input:visible, .skip:visible").count() == 0
    assert page.locator(".printed").is_visible()
    assert page.locator("#figure-pass-curve .chart svg").is_visible() and page.locator("#glossary dl").is_visible()
    assert page.locator("#try .splits td").first.is_visible() and not page.locator("#try .tried").is_visible()
    page.evaluate("() => window.dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details.fold:not([open])").count() == 0
    page.emulate_media(media="screen")
    assert page.locator("#try .tried").is_visible() and not page.locator("#try .splits").is_visible()
    page.evaluate("() => window.dispatchEvent(new Event('afterprint'))")
    assert page.locator("details.fold[open]").count() == 0


@pytest.mark.nightly
@pytest.mark.parametrize("name", READ)
def test_on_a_sheet_nothing_is_cut_and_charts_keep_the_size_of_their_words(page_of, name):
    page = page_of(name, is_open=False)
    page.emulate_media(media="print")
    page.set_viewport_size({"width": A4_PX, "height": 1000})
    # Measured before the event has ended: a sheet is laid out at once, and does not wait.
    narrow = page.evaluate("""() => {
        window.dispatchEvent(new Event('beforeprint'));
        return [...document.querySelectorAll('.chart')].filter(chart => chart.checkVisibility())
            .filter(chart => chart.clientWidth > 1.2 * chart.querySelector('svg').getAttribute('width'))
            .map(chart => chart.closest('figure').id);
    }""")
    assert page.evaluate("() => document.documentElement.scrollWidth") <= A4_PX
    cut = page.evaluate("""() => [...document.querySelectorAll('main table, main .chart')]
        .filter(each => each.checkVisibility() && each.scrollWidth > each.parentElement.clientWidth + 1)
        .map(each => each.parentElement.outerHTML.slice(0, 90))""")
    page.evaluate("() => window.dispatchEvent(new Event('afterprint'))")
    assert (cut, narrow) == ([], [])


def test_one_setting_changes_with_the_split_where_it_was_solved_and_the_panel_shows_that_point(page_of):
    page = page_of("whole")
    page.emulate_media(reduced_motion="reduce")
    points = json.loads(page.locator("#try-points").text_content())
    for setting, value, key, unsolved in (
        ("split", "1", "1", 0),
        ("split", "3", "3", 0),
        ("max_running", "24", "3/max_running/24", 0),
        ("publish_every", "4", "3/publish_every/4", 0),
        ("split", "1", "1/publish_every/4", 0),
        ("split", "0", "0", 3),
    ):
        page.locator(f"#try label:has([name=try-{setting}][value='{value}'])").click()
        said, _, command, figures, place = points[key]
        assert [page.locator(f"#try {each}").inner_text() for each in (".said", "code")] == [said, command]
        assert page.locator("#try .figure").all_inner_texts() == figures
        assert page.locator("#try .at circle").get_attribute("cy") == f"{place[1]:g}"
        assert page.locator("#try input:disabled").count() == unsolved
    assert page.evaluate("() => [...document.querySelectorAll('#try :checked')].map(each => each.value)") == [
        "0",
        "",
        "",
    ]
    assert page.locator("#try .said").get_attribute("role") == "status"


# --- charts over time: a drag on one, or its keys, zooms all; buttons choose the view of the workers


@pytest.fixture
def page(opened, page_of):
    """The page as it opens: the next test finds the whole run and all workers again."""
    yield (sheet := page_of("whole"))
    sheet.get_by_role("radio", name="All workers").check()
    if sheet.locator("#zoom-reset").is_visible():
        sheet.locator("#zoom-reset").click()
    wait_for_zoom(sheet, "whole")
    assert opened("whole", text_of("whole"))[1] == []


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


def shown_after(page, words):
    """The stretch that all of those charts show once the words beside the buttons have these."""
    page.wait_for_function("words => document.getElementById('zoom-words').textContent.includes(words)", arg=words)
    return shown(page)


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
    assert shown(page) == STEADY_S
    assert page.locator("#zoom-words").inner_text() == "Charts over time begin at the steady state, 180 s in."
    assert not page.locator("#zoom-reset").is_visible()
    page.get_by_role("button", name="Whole run").click()
    assert shown_after(page, "whole run") == WHOLE_RUN_S
    assert not page.locator("#zoom-whole").is_visible()
    page.get_by_role("button", name="Reset zoom").click()
    assert shown_after(page, "steady") == STEADY_S


def test_dragging_over_one_chart_zooms_all_a_click_none_and_the_button_shows_the_steady_stretch_again(page):
    drag(page, "figure-batch-size", 0.25, 0.252)
    assert shown(page) == STEADY_S and page.locator(".brush").count() == 0
    drag(page, "figure-batch-size", 0.25, 0.5)
    wait_for_zoom(page, "part")
    low, high = shown(page)
    assert (low, high) == pytest.approx((450, 720), rel=0.02)
    assert f"of {DURATION_S:,} s" in page.locator("#zoom-words").inner_text()
    drag(page, "figure-workers-all", 0.9, 0.5)
    assert shown_after(page, "show 58") == pytest.approx((585, 693), rel=0.02)
    page.get_by_role("button", name="Reset zoom").click()
    wait_for_zoom(page, "whole")
    assert shown(page) == STEADY_S


def test_the_keys_of_a_focused_chart_zoom_pan_and_reset(page):
    chart = page.locator("#figure-throughput .chart")
    chart.focus()
    page.keyboard.press("+")
    wait_for_zoom(page, "part")
    assert shown(page) == (450.0, 990.0)
    page.keyboard.press("ArrowRight")
    assert shown_after(page, "558") == (558.0, 1098.0)
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    assert shown_after(page, "720") == (720.0, 1260.0), "no further than the end of the run"
    page.keyboard.press("Escape")
    wait_for_zoom(page, "whole")
    assert shown(page) == STEADY_S
    page.keyboard.press("-")
    assert shown_after(page, "whole run") == WHOLE_RUN_S, "no further out than the whole run"
    page.keyboard.press("Escape")
    assert shown_after(page, "steady") == STEADY_S


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
