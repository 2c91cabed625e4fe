"""Card, Markdown, JSON and page of a comparison: one set of words, escaped, and valid by its schema."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rlscope
from rlscope.comparison.attribution import Promise
from rlscope.comparison.differences import Breakdown, BreakdownPart
from rlscope.comparison.facts import ALSO_ASKED, ComparedRun, run_of
from rlscope.comparison.prices import PromisedPrice
from rlscope.comparison.runs import compare_runs
from rlscope.comparison.statistics import Difference
from rlscope.comparison.warnings import CompareWarning, CompareWarningKind
from rlscope.document import extended
from rlscope.model.estimate import Estimate
from rlscope.pipeline import analyze
from rlscope.reports.page.comparison import render_comparison
from rlscope.reports.text.comparison import (
    breakdown_block,
    headline,
    label,
    letter_of,
    promise_sentence,
    state_bars,
    warning_words,
)
from rlscope.reports.text.ledger import steady_state
from tests.comparison.made_runs import made_run
from tests.kept import analysis_of
from tests.reports.analysis_fixture import HOSTILE
from tests.reports.conftest import watched
from tests.reports.terminal_card import printed
from tests.schemas import faults
from tests.trace_folder import small_run, worker, write_run

SECOND = 10**9


def comparison_of(baseline: ComparedRun, others: Sequence[ComparedRun]) -> rlscope.Comparison:
    return extended(rlscope.Comparison, compare_runs(baseline, others))


@pytest.mark.parametrize(
    ("before", "rows"),
    [(0.002, ["training", "other", "total"]), (1e-9, ["training", "total"])],
)
def test_small_parts_share_a_row_and_parts_that_are_nothing_have_none(before: float, rows: list[str]) -> None:
    parts = (
        BreakdownPart("train", "trainer", None, 2.0, 1.0, -1.0),
        BreakdownPart("unattributed", "trainer", None, before, before + 1.46e-9, 1.46e-9),
    )
    words = breakdown_block(Breakdown("step_s", None, 2.0, 1.0, -1.0, parts), "B")
    assert [row[0] for row in words.rows] == rows and len(words.columns) == 4
    assert [row[3] for row in words.rows if row[0] == "other"] == ["about 0 µs"] * rows.count("other")


def rate(change: float, low: float | None, high: float | None, *, significant: bool = False) -> Difference:
    return Difference(1000.0, 1000.0 * (1 + change), "ratio", change, low, high, is_significant=significant)


@pytest.mark.parametrize(
    ("found", "words", "said"),
    [
        (
            rate(0.38, 0.34, 0.42, significant=True),
            "Faster",
            "B trains 38.0% (34.0% to 42.0%) more tokens/s than A: 1.38k against 1k tokens/s",
        ),
        (
            rate(-0.1, -0.15, -0.05, significant=True),
            "Slower",
            "B trains 10.0% (5.0% to 15.0%) fewer tokens/s than A: 900 against 1k tokens/s",
        ),
        (
            rate(0.01, -0.02, 0.04),
            "No significant difference",
            "No significant difference in throughput: +1.0% (−2.0% to +4.0%), 1.01k against 1k tokens/s",
        ),
        (
            rate(0.1, None, None),
            "Not tested",
            "B trains 10.0% more tokens/s than A, without an interval: 1.1k against 1k tokens/s",
        ),
        (
            Difference(None, 1.0, "ratio", None),
            "No rate to compare",
            "The throughput of B and A cannot be compared: one of them has no recorded trained tokens",
        ),
    ],
)
def test_the_headline_says_what_came_and_how_sure_that_is(found: Difference, words: str, said: str) -> None:
    assert (label(found), headline(found, "B")) == (words, said)


@pytest.mark.parametrize(
    ("measured", "is_within_error", "end"),
    [
        (0.1, True, "measured +10.0%, within the interval."),
        (0.3, True, "measured +30.0%, within the interval."),
        (0.35, False, "measured +35.0%, 5.0 points above the interval."),
        (0.05, False, "measured +5.0%, 5.0 points below the interval."),
        (0.05, True, "measured +5.0%, 5.0 points below the interval, less than the measurement may be off."),
    ],
)
def test_the_prediction_is_shown_with_the_measured_gain(measured: float, is_within_error: bool, end: str) -> None:
    gain_ratio = Estimate(0.2, 0.1, 0.3)
    said = promise_sentence(Promise(1, "layout", gain_ratio, measured, True, is_within_error=is_within_error))
    assert said == (
        "The analysis of A recommended this change (action 1) and predicted +20% (90% interval +10% to +30%); " + end
    )


def test_predicted_prices_are_shown_with_the_measured_ones() -> None:
    gain, length = Estimate(0.2, 0.1, 0.3), Estimate(-0.036, -0.126, 0.023)
    prices = (
        PromisedPrice("dropped_ratio", Estimate(0.38, 0.32, 0.45), 0.46),
        PromisedPrice("staleness_p95_steps", Estimate.exactly(3.0), 5.0),
        PromisedPrice("trained_length_change_ratio", length, 0.005),
        PromisedPrice("longest_trained_ratio", Estimate(0.9, 0.721, 1.0), 0.947),
    )
    promise = Promise(1, "layout", gain, 0.2, True, prices=prices)
    assert promise_sentence(promise).endswith(
        "within the interval. It also predicted: dropped tokens 38.0% (32.0% to 45.0%), measured 46.0%; p95 sample "
        "staleness 3 steps, measured 5 steps (not as predicted); mean trained length −3.6% (−12.6% to +2.3%), measured "
        "+0.5%; trained share of the longest 10% of responses 90.0% (72.1% to 100%), measured 94.7%."
    )


def test_every_warning_has_a_sentence_that_ends() -> None:
    for kind in CompareWarningKind:
        assert warning_words(CompareWarning(kind, "0.25", "0.125", "4"), "B").endswith(".")


def test_runs_after_z_are_numbered() -> None:
    assert [letter_of(index) for index in (0, 1, 25, 26)] == ["A", "B", "Z", "#27"]


def test_all_formats_say_the_same(pair: rlscope.Comparison, tmp_path: Path) -> None:
    (first,) = json.loads(pair.to_json())["comparisons"]
    assert faults("compare", pair.to_json()) == []
    assert {each["name"] for each in first["breakdowns"]} == {"step_s", "gpu_s_per_1k_tokens", "role_share"}
    page, shown = pair.to_html(tmp_path / "page.html").read_text(), pair._repr_html_()
    for text in (pair.to_markdown(), page, shown):
        assert first["headline"] in text and ", within the interval." in text
    assert shown.count("<div") == shown.count("</div>") and "<script" not in shown and "http" not in shown
    assert re.sub(r"\W+", " ", first["headline"]) in re.sub(r"\W+", " ", printed(pair.blocks, 120))
    assert repr(pair).startswith("Comparison('starved_trainer-") and first["headline"][:60] in repr(pair)


def test_the_page_has_every_chart(pair: rlscope.Comparison) -> None:
    page = render_comparison(pair)
    names = {"step_times", "staleness", "lengths", "rewards", "rewards_by_gpu_hours"}
    assert set(dir(pair.charts)) == names
    for name in names:
        assert f'id="figure-{name.replace("_", "-")}"' in page
        assert "var(--" not in json.dumps(getattr(pair.charts, name)().to_dict(validate=True))


def test_no_table_of_the_page_has_a_column_without_a_value_and_breakdowns_are_folded(pair: rlscope.Comparison) -> None:
    page = render_comparison(pair)
    tables = re.findall(r"<table class=\"rows compared\">.*?</table>", page, flags=re.DOTALL)
    assert len(tables) > 4 and any("95% interval</th>" not in table for table in tables)
    for table in tables:
        rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr.*?</tr>", table, flags=re.DOTALL)]
        assert all(any(column) for column in zip(*rows[1:], strict=True))
    before, folded = page.split('<details class="fold"')
    assert before.count('class="rows compared"') == 1 < folded.count('class="rows compared"')


def test_sampler_bars_show_the_dropped_share_of_generation_as_the_report_does() -> None:
    wasteful = analysis_of("overproduction")
    (_, sampler) = steady_state(wasteful).block.roles  # type: ignore[union-attr]
    (dropped,) = (part.share_ratio for part in sampler.parts if part.state.name == "discarded")
    (_, bar) = state_bars(run_of(wasteful), "steady")
    shares = {part.state.name: part.share_ratio for part in bar.parts}
    assert shares["discarded"] == pytest.approx(dropped, rel=0.01) and dropped > 0.4
    assert math.fsum(shares.values()) == pytest.approx(1.0)
    (_, bar) = state_bars(made_run(), "steady")
    assert [part.state.name for part in bar.parts] == ["decoding"]


def test_staleness_is_drawn_in_the_unit_that_the_runs_share() -> None:
    run = replace(made_run(), steps_per_version=1.0)
    ages = replace(run.staleness.tokens, histogram=((0, 1), (2, 3)))
    run = replace(run, staleness=replace(run.staleness, tokens=ages))
    for span, unit, ages in ((1.0, "versions", {0, 2}), (1.6, "optimizer steps", {0, 3})):
        drawn = comparison_of(run, [replace(run, steps_per_version=span)]).charts.staleness().to_dict()
        (rows,) = drawn["datasets"].values()
        assert drawn["encoding"]["x"]["title"] == f"staleness, {unit}"
        assert {row["staleness"] for row in rows if row["run"] == "B"} == ages


def test_names_from_runs_stay_text_in_every_format() -> None:
    runs = [made_run(f"{HOSTILE}{n}", settings={HOSTILE: n}) for n in range(3)]
    comparison = comparison_of(runs[0], runs[1:])
    for text in (render_comparison(comparison), comparison._repr_html_(), comparison.to_markdown()):
        assert "<img src=x" not in text
    assert faults("compare", comparison.to_json()) == [] and printed(comparison.blocks, 80)
    assert comparison.to_markdown().count(" against A: ") == 2


def test_runs_with_little_data_are_compared_by_what_they_have(pair: rlscope.Comparison, tmp_path: Path) -> None:
    """Compare a run of one training step (no steady state, no model) and a run that trained nothing."""
    workers = [worker("e0", "sampler", 0, 10 * SECOND), worker("t0", "trainer", 0, 10 * SECOND)]
    short = small_run(tmp_path / "short")
    nothing = write_run(tmp_path / "nothing", workers)
    runs = [run_of(analyze(each, also_ask=ALSO_ASKED)) for each in (short, nothing)]
    for first, others in ((runs[0], [runs[1], pair.baseline]), (pair.baseline, runs)):
        comparison = comparison_of(first, others)
        assert faults("compare", comparison.to_json()) == []
        assert render_comparison(comparison).rstrip().endswith("</html>") and printed(comparison.blocks, 80)
        assert "never reaches steady state" in comparison.to_markdown()
    assert "cannot be compared" in comparison_of(runs[0], runs[1:]).to_markdown()


@pytest.mark.browser
def test_a_browser_draws_every_chart_and_complains_of_nothing(
    pair: rlscope.Comparison, tmp_path: Path, browser: Any
) -> None:
    page, troubles = watched(browser.new_page(color_scheme="dark"))
    page.goto(pair.to_html(tmp_path / "page.html").as_uri())
    page.wait_for_function("() => ['drawn', 'all'].includes(document.documentElement.dataset.charts)")
    assert troubles == [] and page.locator(".chart svg").count() == 5
    page.close()
