"""The panel of what-ifs: each point says what its command says, and nothing in it can end its script."""

import json
import shlex
from dataclasses import replace

import pytest

from rlscope import format as fmt
from rlscope.model.forecast import grid
from rlscope.model.forecast.change import Change
from rlscope.model.forecast.what_if import what_if
from rlscope.reports.page.html import render
from rlscope.reports.text import advice, panel
from rlscope.reports.text.what_if import headline
from tests.kept import analyzed
from tests.reports.analysis_fixture import HOSTILE, without_frames
from tests.reports.conftest import solving
from tests.reports.model_fixture import changing_model

MOST_BYTES_A_POINT = 10_000
"""A page has at most 24 points, and 250 kB for them."""


def points_of(offer):
    return {
        key: dict(zip(("said", "note", "command", "figures", "place"), point, strict=True))
        for key, point in json.loads(offer.points).items()
    }


def options_of(offer):
    return {control.name: [option[1:] for option in control.options] for control in offer.controls}


def solved(model, currency=None, **values):
    """The panel of a model that solves the splits and these values only."""
    with solving(**values):
        return panel.panel(model, currency)


@pytest.fixture(scope="module")
def starved():
    """The panel with a value of three settings, of a run whose recommendation keeps the split."""
    return solved(analyzed("starved_trainer").model, max_running=[4], max_staleness=[2], publish_every=[2])


@pytest.fixture(scope="module")
def fleet():
    """The panel with two settings, of a run with a price in a currency that would end the script."""
    model = analyzed("fleet").model
    priced = replace(model, model_config=replace(model.model_config, gpu_hour_price=2.5))
    return solved(priced, HOSTILE, max_running=[64], max_in_flight_samples=[192])


def test_every_point_has_the_figures_that_its_command_prints(starved):
    model, points = analyzed("starved_trainer").model, points_of(starved)
    assert len(points) == 6
    for key, point in points.items():
        words = shlex.split(point["command"])
        assert (words[:3] == ["rlscope", "what-if", "RUN_DIR"]) == (key != "0")
        names = [name.removeprefix("--").replace("-", "_") for name in words[3::2]]
        answer = what_if(model, Change(**dict(zip(names, map(int, words[4::2]), strict=True))))
        rate = advice.rate_of(answer.predicted, answer.now)
        assert point["said"] == (headline(answer) if words else "Current settings")
        assert point["figures"][0] == fmt.with_interval(fmt.si, *rate)


def test_the_controls_ascend_and_mark_the_current_and_the_recommended_layout(fleet):
    controls = options_of(fleet)
    assert list(controls) == ["split", "max_running", "max_in_flight_samples"]
    assert controls["split"] == [("3 : 7", ""), ("4 : 6", "to try"), ("5 : 5", "current"), ("6 : 4", ""), ("7 : 3", "")]
    assert controls["max_running"] == [("16", "to try"), ("32", "current"), ("64", "")]
    assert controls["max_in_flight_samples"] == [("192", ""), ("none", "current")]


def test_a_recommendation_for_the_current_split_leaves_it_marked_as_the_current_one(starved):
    controls = options_of(starved)
    assert controls["split"] == [("1 : 2", "current"), ("2 : 1", "")]
    assert controls["max_running"] == [("4", ""), ("8", "current"), ("32", "recommended")]


def test_a_run_with_one_split_has_no_curve_and_a_table_of_its_settings():
    offer = solved(analyzed("synchronous").model, max_running=[32], publish_every=[2])
    assert offer.curve is None and list(options_of(offer)) == ["max_running", "publish_every"]
    assert [row[0] for row in offer.table.rows] == [
        "1 : 1, current",
        "1 : 1, max running per engine: 32",
        "1 : 1, steps per weight update: 2",
    ]
    assert offer.notes[1:] == ["One setting changes at a time.", "The run is synchronous and is assumed to stay so."]


def test_settings_that_cannot_run_are_not_predicted_and_say_why():
    points = points_of(solved(changing_model(), max_in_flight_samples=[1]))
    stuck = points["1/max_in_flight_samples/1"]
    assert stuck["said"] == "Infeasible: the in-flight cap allows fewer complete groups than a step needs"
    assert stuck["figures"] == ["no data", "no data", "no data", "8", "no data"] and stuck["place"] is None
    assert all(point["place"] for key, point in points.items() if "/" not in key)


@pytest.mark.parametrize(
    ("price", "auxiliary_gpus", "name", "figures"),
    [
        # 8 GPUs train 2.92k tokens per second: 2,739 GPU-seconds.
        (None, 0, "GPU-h per 1M trained tokens", ["8", "0.761"]),
        (2.5, 0, "cost per 1M trained tokens", ["8", "1.90 EUR"]),
        (2.5, 8, "cost per 1M trained tokens", ["16", "3.81 EUR"]),
    ],
)
def test_a_million_tokens_cost_the_hours_or_the_price_of_every_gpu_of_the_run(price, auxiliary_gpus, name, figures):
    made = changing_model()
    config = replace(made.model_config, gpu_hour_price=price, auxiliary_gpus=auxiliary_gpus)
    offer = solved(replace(made, model_config=config), "EUR")
    assert (offer.names[-1], offer.current[-2:]) == (name, figures)


def test_the_curve_has_the_splits_and_both_marks_inside_its_frame():
    curve = solved(changing_model()).curve
    assert [label for _, label in curve.x_ticks] == ["1", "2", "3", "4", "5"]
    assert [label for _, label in curve.y_ticks] == ["0", "2k", "4k"]
    assert [name for *_, name in curve.marks] == ["current", "recommended"]
    corners = [tuple(map(float, corner.split(","))) for corner in f"{curve.band} {curve.line}".split(" ")]
    assert len(corners) == 15 and all(0 <= x <= 360 and 0 <= y <= 182 for x, y in corners)


def test_the_points_are_small_and_cannot_end_their_script(fleet):
    assert len(fleet.points.encode()) <= MOST_BYTES_A_POINT * len(points_of(fleet)) and "<" not in fleet.points


def test_a_run_without_an_alternative_has_no_panel(monkeypatch):
    monkeypatch.setattr(grid, "_MOST_SAMPLES", 0)
    assert solved(changing_model()) is None
    assert 'id="try' not in render(replace(without_frames(), model=changing_model()))
