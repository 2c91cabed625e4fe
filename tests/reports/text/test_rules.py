"""What fired stands in the card and the page of an analysis; where nothing did, the page says so."""

from dataclasses import replace

from rlscope.analysis.result import Alert
from rlscope.reports.card import first_screen
from rlscope.reports.markdown import markdown
from rlscope.reports.page.html import render
from rlscope.reports.text.rules import fired_rules
from tests.reports.analysis_fixture import NO_ROWS, full_analysis, without_frames
from tests.reports.terminal_card import card, card_words

QUIET = full_analysis()
START_NS = QUIET.run.started_ns
S = 1_000_000_000
HOSTILE = {"summary": "[red]<b>idle</b> 40%[/red]"}
FIRED = replace(
    QUIET,
    alerts=(
        Alert("trainers_idle", "warning", {}, HOSTILE, 0.4, START_NS + 60 * S, START_NS + 90 * S),
        Alert("worker_silent", "critical", {}, {}, 70.0, START_NS + 10**15, None),
    ),
)  # fmt: skip


def test_the_card_lists_what_fired_and_is_silent_where_nothing_did() -> None:
    text = card(FIRED, 100)
    assert "Alerts, built-in rules" in text
    assert "trainers_idle warning from 1 min to 1 min 30 s 40.0%" in card_words(FIRED, 100)
    assert text.index("worker_silent") < text.index("trainers_idle"), "highest severity first"
    assert "[red]<b>idle</b> 40%[/red]" in text
    assert "Alerts" not in card(QUIET, 100)


def test_a_rule_that_fired_again_and_again_is_one_entry_with_the_first_time() -> None:
    def fired(rule: str, start_s: int) -> Alert:
        return Alert(rule, "warning", {}, {}, 0.4, START_NS + start_s * S, START_NS + (start_s + 1) * S)

    run = replace(QUIET, alerts=(fired("trainers_idle", 30), fired("samplers_idle", 20), fired("trainers_idle", 10)))
    assert [(each.title, each.when) for each in fired_rules(run)] == [
        ("trainers_idle", "from 10 s to 11 s, and 1 more time"),
        ("samplers_idle", "from 20 s to 21 s"),
    ]


def test_markdown_and_the_page_list_what_fired_escaped() -> None:
    named = "**Alerts, built-in rules:** worker\\_silent critical · trainers\\_idle warning"
    assert named in markdown(first_screen(FIRED).values()).splitlines()
    assert "Alerts" not in markdown(first_screen(QUIET).values())
    page = render(replace(FIRED, answers=NO_ROWS))
    assert "trainers_idle</th>" in page
    assert "[red]&lt;b&gt;idle&lt;/b&gt; 40%[/red]" in page
    assert "No built-in rule fired" not in page
    assert "No built-in rule fired" in render(without_frames())
