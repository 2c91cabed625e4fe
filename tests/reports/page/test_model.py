"""What page, card and JSON make of a model result, and of none."""

from dataclasses import replace

import polars as pl
import pytest

from rlscope import format as fmt
from rlscope.model.forecast.result import NoModelResult
from rlscope.reports.charts.passes import beyond_visited
from rlscope.reports.page.html import render
from rlscope.reports.sections.model import curve_frame
from rlscope.reports.text.model import loss_bars
from tests.reports.analysis_fixture import HOSTILE, full_analysis, without_frames
from tests.reports.model_fixture import changing_model
from tests.reports.page.test_html import Page
from tests.reports.terminal_card import card_words

pytestmark = pytest.mark.usefixtures("few_what_ifs")


def with_model(said):
    return replace(full_analysis(), model=said)


def test_the_bars_of_the_losses_join_and_end_at_the_measured_throughput():
    (whole, *losses, measured), gap = loss_bars(changing_model()).bars, changing_model().gap
    ends = [1.0]
    for bar in losses:
        before, after = (bar.to_ratio, bar.from_ratio) if bar.value.startswith("−") else (bar.from_ratio, bar.to_ratio)
        assert before == pytest.approx(ends[-1])
        ends.append(after)
    assert (whole.from_ratio, whole.to_ratio) == (0.0, 1.0) and len(ends) > 2
    assert ends[-1] == pytest.approx(measured.to_ratio, rel=1e-5)
    assert measured.to_ratio == gap.achieved_tokens_per_s / gap.bound_tokens_per_s


def test_the_page_says_what_each_loss_means():
    text = Page(render(with_model(changing_model()))).text
    notes = [bar.note for bar in loss_bars(changing_model(), has_meanings=True).bars[1:-1]]
    assert all(note and note in text for note in notes)


def test_the_curve_has_the_measured_cells_its_interval_and_both_operating_points():
    made = changing_model()
    frame, cells = curve_frame(made), made.calibration.curve.cells
    measured = frame.filter(pl.col("kind") == "measured")
    assert sorted(measured["pass_s"]) == sorted(cells.pass_s)
    fitted = frame.filter(pl.col("kind") == "fitted")
    assert (fitted["low_s"] <= fitted["pass_s"]).all() and (fitted["pass_s"] <= fitted["high_s"]).all()
    today = frame.filter(pl.col("kind") == "current").row(0, named=True)
    assert today["running"] == made.forecasts.today.state.running
    assert "recommended" in set(frame["kind"])


@pytest.mark.parametrize(
    ("grades", "stretches"),
    [
        (["measured", "interpolated", "measured"], []),
        (["extrapolated", "measured", "extrapolated"], [(1.0, 2.0), (3.0, 3.0)]),
        (["extrapolated", "extrapolated", "measured"], [(1.0, 3.0)]),
        (["assumed", "assumed", "assumed"], [(1.0, 3.0)]),
    ],
)
def test_extrapolated_stretches_are_shaded(grades, stretches):
    frame = pl.DataFrame({"kind": ["fitted"] * 3, "running": [1.0, 2.0, 3.0], "grade": grades})
    assert beyond_visited(frame).rows() == stretches


def test_a_layout_whose_state_is_not_known_has_no_operating_point():
    made = changing_model()
    unknown = replace(made, forecasts=replace(made.forecasts, today=replace(made.forecasts.today, state=None)))
    assert "current" not in set(curve_frame(unknown)["kind"])


@pytest.mark.parametrize("reason", ["no steady state: 3 steps cannot show a steady state", HOSTILE])
def test_without_a_model_result_page_and_card_say_why_and_draw_nothing(reason):
    unknown = replace(without_frames(), model=NoModelResult(reason))
    html = render(unknown)
    page = Page(html)
    assert f"No model result: {reason}." in page.text
    assert page.specs == [] and "actions" not in page.ids
    assert "<img src=x" not in html
    assert f"No model result: {reason}." in card_words(unknown, 200)


def test_the_card_says_the_advice_once_in_the_panel_and_the_gain_with_it():
    panel = card_words(with_model(changing_model())).partition("Recommended actions")[0]
    assert panel.count("Use 4 trainer GPUs") == 1
    gain = fmt.with_interval(fmt.gain, *changing_model().recommendation.gain_ratio)
    assert f"Predicted gain: {gain}. Sample staleness" in panel
