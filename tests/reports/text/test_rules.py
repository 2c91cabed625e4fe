"""What fired stands in the card, the JSON and the page of an analysis; where nothing did, the page says so."""

from dataclasses import replace

from rlscope.alerts.config import built_in_rules
from rlscope.alerts.offline import RuleOutcome, RuleReport
from rlscope.analysis.result import Alert
from rlscope.reports import check
from rlscope.reports.card import first_screen
from rlscope.reports.documents.analysis import as_document
from rlscope.reports.markdown import markdown
from rlscope.reports.page.html import render
from tests.reports.analysis_fixture import full_analysis, without_frames
from tests.reports.terminal_card import card

QUIET = full_analysis()
START_NS = QUIET.run.started_ns
S = 1_000_000_000
HOSTILE = {"summary": "[red]<b>idle</b> 40%[/red]"}
FIRED = replace(
    QUIET,
    alerts=(
        Alert("trainers_idle", "warning", {}, HOSTILE, 0.4, START_NS + 60 * S, START_NS + 90 * S, 7.5),
        Alert("worker_silent", "critical", {}, {}, 70.0, START_NS + 10**15, None, None),
    ),
)  # fmt: skip


def test_the_card_lists_what_fired_and_is_silent_where_nothing_did() -> None:
    text = card(FIRED, 100)
    assert "Alerts, built-in rules" in text
    told = " ".join(text.split())
    assert "trainers_idle severity warning when from 1 min to 1 min 30 s value 40.0%" in told
    assert text.index("worker_silent") < text.index("trainers_idle"), "highest severity first"
    assert "[red]<b>idle</b> 40%[/red]" in text
    assert "Alerts" not in card(QUIET, 100)


def test_json_lists_what_fired_as_measured() -> None:
    assert as_document(QUIET)["alerts"] == []
    first, last = as_document(FIRED)["alerts"]  # type: ignore[misc]
    assert (first["rule"], first["start_ns"] - START_NS, first["end_ns"] - START_NS) == (
        "trainers_idle",
        60 * S,
        90 * S,
    )
    assert (first["cost_gpu_s"], last["cost_gpu_s"], last["end_ns"]) == (7.5, None, None)


def test_markdown_names_what_fired() -> None:
    named = "**Alerts, built-in rules:** worker\\_silent critical · trainers\\_idle warning"
    assert named in markdown(first_screen(FIRED).values()).splitlines()
    assert "Alerts" not in markdown(first_screen(QUIET).values())


def test_check_lists_what_fired_in_markdown() -> None:
    rows = [
        "| severity | rule | when | what | cost |",
        "| --- | --- | --- | --- | --- |",
        "| critical | worker\\_silent | from 21 min to the end of the run | 1 min 10 s |  |",
        "| warning | trainers\\_idle | from 1 min to 1 min 30 s | 40.0%; \\[red\\]&lt;b&gt;idle&lt;/b&gt; 40%\\[/red\\]"
        " | 7.5 GPU-s |",
    ]
    outcomes = [
        RuleOutcome(rule, tuple(alert for alert in FIRED.alerts if alert.rule == rule.name), 9, 9)
        for rule in built_in_rules().rules
    ]
    end_ns = START_NS + round(QUIET.run.duration_s * S)
    checked = check.as_markdown(RuleReport("run", START_NS, end_ns, tuple(outcomes), ()), "critical")
    assert "\n".join(rows) in checked


def test_the_page_lists_what_fired_escaped() -> None:
    page = render(replace(FIRED, answers={}))
    assert "trainers_idle</th>" in page
    assert "[red]&lt;b&gt;idle&lt;/b&gt; 40%[/red]" in page
    assert "No built-in rule fired" not in page
    assert "No built-in rule fired" in render(without_frames())
