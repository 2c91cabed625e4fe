"""The page as a reader meets it: its length, what folds and opens again, and whether labels and colours can be read."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from rlscope.reports.page.html import render
from tests.kept import analysed
from tests.nightly import nightly
from tests.reports.model_fixture import changing_model
from tests.reports.timeline_fixture import timeline_analysis

NAMES = ["made", nightly("vllm_trl"), nightly("fleet")]
"""The made run has every chart."""
OPEN_PX = {1280: 4_800, 390: 8_000}
"""The most that a page may be high before anything is unfolded, by its width."""
A4_PX = 703
"""Width of a sheet between margins of 12 mm."""
pytestmark = pytest.mark.browser

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


@cache
def text_of(name):
    return render(replace(timeline_analysis(), model=changing_model()) if name == "made" else analysed(name))


@pytest.fixture
def drawn(opened):
    """Each page with every chart drawn; nothing is unfolded."""

    def page(name, width=1280):
        sheet, _ = opened(name, text_of(name))
        sheet.set_viewport_size({"width": width, "height": 800})
        unfold(sheet, is_open=False)
        return sheet

    return page


def unfold(page, *, is_open):
    page.evaluate("to => document.querySelectorAll('details').forEach(each => { each.open = to; })", is_open)
    # The charts take their new width in the frame after.
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done())))")
    page.wait_for_function("""() => [...document.querySelectorAll('.chart')].every(chart => {
        const svg = chart.querySelector('svg');
        return !svg || !chart.checkVisibility() || Math.abs(svg.clientWidth - chart.clientWidth) < 4;
    })""")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", OPEN_PX)
def test_the_open_page_stays_short(drawn, name, width):
    page = drawn(name, width)
    assert page.evaluate("() => document.documentElement.scrollHeight") <= OPEN_PX[width]


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_the_answers_come_in_the_order_of_a_readers_questions(drawn, name):
    page = drawn(name)
    order = ["verdict", "workers", "findings", "staleness", "engines", "lengths", "queue", "layouts"]
    sections = page.evaluate("() => [...document.querySelectorAll('main > section')].map(each => each.id)")
    assert sections[: len(order)] == order
    assert all(page.locator(f"#{each}.folds > details").count() == 1 for each in sections[len(order) :])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", OPEN_PX)
def test_no_label_of_a_chart_is_cut_or_lies_over_another_and_no_axis_says_a_number_twice(drawn, name, width):
    page = drawn(name, width)
    unfold(page, is_open=True)
    assert page.evaluate(LABELS) == []


@pytest.mark.parametrize(("scheme", "rules"), [("light", {}), ("dark", {"runOnly": ["color-contrast"]})])
def test_axe_finds_no_violation_on_the_whole_page(drawn, scheme, rules):
    axe = Path(pytest.importorskip("axe_playwright_python").__file__).with_name("axe.min.js")
    page = drawn("made")
    page.emulate_media(color_scheme=scheme)
    page.evaluate("() => document.querySelectorAll('details.fold').forEach(each => { each.open = true; })")
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


def test_a_link_and_an_address_open_what_they_lead_into(drawn):
    page = drawn("made")
    page.locator("nav a[href='#glossary']").click()
    page.locator("#glossary .folded").wait_for(state="visible")
    page.evaluate("location.hash = '#figure-pass-curve'")
    page.locator("#figure-pass-curve").wait_for(state="visible")
    assert page.locator("#latency > details").get_attribute("open") is not None


def test_print_shows_what_is_folded_and_leaves_it_folded(drawn):
    page = drawn("made")
    page.emulate_media(media="print")
    assert page.locator("#figure-pass-curve .chart svg").is_visible() and page.locator("#glossary dl").is_visible()
    page.evaluate("() => window.dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details.fold:not([open])").count() == 0
    page.evaluate("() => window.dispatchEvent(new Event('afterprint'))")
    assert page.locator("details.fold[open]").count() == 0


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_on_a_sheet_nothing_is_cut_and_charts_keep_the_size_of_their_words(drawn, name):
    page = drawn(name)
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
    assert (
        page.evaluate("""() => [...document.querySelectorAll('main table, main .chart')]
        .filter(each => each.checkVisibility() && each.scrollWidth > each.parentElement.clientWidth + 1)
        .map(each => each.parentElement.outerHTML.slice(0, 90))""")
        == []
    )
    page.evaluate("() => window.dispatchEvent(new Event('afterprint'))")
    assert narrow == []


def test_the_keyboard_switches_the_bars_to_the_whole_run_and_back(drawn):
    page = drawn("made")
    bars = [page.locator(f".spent .of-{stretch}") for stretch in ("steady", "whole")]
    assert [each.is_visible() for each in bars] == [True, False]
    page.locator(".spent input[value=steady]").focus()
    page.keyboard.press("ArrowRight")
    assert [each.is_visible() for each in bars] == [False, True]
    page.keyboard.press("ArrowLeft")
    assert [each.is_visible() for each in bars] == [True, False]


def solved_points(page):
    return json.loads(page.locator("#try-points").text_content())


def shown_point(page):
    """The figures, the answer and the command that the panel shows, in the order of its points."""
    figures = page.locator("#try .figure").all_inner_texts()
    return [page.locator(f"#try {place}").inner_text() for place in (".said", "code")], figures


def choose(page, setting, value):
    page.locator(f"#try label:has([name=try-{setting}][value='{value}'])").click()


def chosen(page):
    return page.evaluate("() => [...document.querySelectorAll('#try :checked')].map(each => each.value)")


def test_the_keyboard_moves_the_panel_from_one_solved_point_to_the_next(drawn):
    page = drawn("made")
    page.locator("#try > summary").press("Enter")
    points, seen = solved_points(page), []
    choose(page, "split", "1")
    page.locator("#try > summary").focus()
    page.keyboard.press("Tab")
    assert chosen(page) == ["1", "", "", "", ""]
    # Two splits on, then to the limit of running requests, and back to where its values are not solved.
    for keys, key in (("", "1"), ("ArrowRight", "2"), ("ArrowRight", "3"), ("Tab ArrowLeft", "3/max_running/24"),
                      ("Shift+Tab ArrowLeft", "2")):  # fmt: skip
        for pressed in keys.split():
            page.keyboard.press(pressed)
        said, _, command, figures, place = points[key]
        assert shown_point(page) == ([said, command], figures)
        assert page.locator("#try .at circle").get_attribute("cy") == f"{place[1]:g}"
        seen.append(figures[0])
    assert chosen(page) == ["2", "", "", "", ""] and len(set(seen)) == 4
    assert page.locator("#try .said").get_attribute("role") == "status"


def test_one_setting_changes_with_the_split_and_only_where_it_was_solved(drawn):
    page = drawn("made")
    page.locator("#try > summary").click()
    points = solved_points(page)
    for setting, value in (("split", "1"), ("max_running", "64"), ("publish_every", "4")):
        choose(page, setting, value)
    assert chosen(page) == ["1", "", "", "4", ""]
    assert shown_point(page)[1] == points["1/publish_every/4"][3]
    choose(page, "split", "0")
    assert chosen(page) == ["0", "", "", "", ""]
    assert page.locator("#try input[name=try-publish_every]:disabled").count() == 2
    choose(page, "split", "3")
    assert page.locator("#try input:disabled").count() == 0
    choose(page, "split", "1")
    assert shown_point(page)[0][0] == "Current settings"


def test_the_panel_prints_as_its_table(drawn):
    page = drawn("made")
    page.emulate_media(media="print")
    assert page.locator("#try .splits td").first.is_visible() and not page.locator("#try .tried").is_visible()
    page.emulate_media(media="screen")
    unfold(page, is_open=True)
    assert page.locator("#try .tried").is_visible() and not page.locator("#try .splits").is_visible()


def test_the_tab_key_reaches_every_control_in_sight(drawn):
    page = drawn("made")
    unfold(page, is_open=False)
    wanted = page.evaluate("""() => [...document.querySelectorAll('a[href], button, summary, .zooms, input')]
        .filter(each => each.checkVisibility() && !(each.type === 'radio' && !each.checked)).length""")
    page.evaluate("""() => {
        window.reached = new Set();
        document.addEventListener('focusin', event => reached.add(event.target));
        document.activeElement.blur();
    }""")
    for _ in range(wanted + 20):
        page.keyboard.press("Tab")
    missed = page.evaluate("""() => [...document.querySelectorAll('a[href], button, summary, .zooms, input')]
        .filter(each => each.checkVisibility() && !(each.type === 'radio' && !each.checked) && !reached.has(each))
        .map(each => each.outerHTML.slice(0, 90))""")
    assert missed == []
