"""The what-ifs of the panel: which are solved, in which order, and for how long."""

from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from rlscope.model.forecast import grid
from rlscope.model.forecast.grid import recommended_layout, solve_grid
from rlscope.model.system import Granularity, Layout
from tests.kept import analyzed
from tests.reports.model_fixture import changing_model


def asked(model):
    return [((split.trainer_gpus, split.sampler_gpus), name, value) for split, name, value in grid._asked(model)]


def test_the_recommended_layout_is_first_then_the_splits_then_one_setting_at_the_current_and_at_its_split():
    model = analyzed("fleet").model
    assert recommended_layout(model) == Layout(4, 6, 16)
    # The actions of the run ask for a cap of 5 and of 8 versions, and for a publication every 2 steps.
    values = [
        *[("max_running", 16), ("max_running", 64)],
        *[("max_staleness", 2), ("max_staleness", 5), ("max_staleness", 8)],
        *[("publish_every", 2), ("publish_every", 4)],
        *[("max_in_flight_samples", 192), ("max_in_flight_samples", 384)],
    ]
    assert asked(model) == [
        ((4, 6), "max_running", 16),
        *[(split, None, None) for split in ((4, 6), (3, 7), (6, 4), (7, 3))],
        *[((5, 5), *each) for each in values],
        *[((4, 6), *each) for each in values[1:]],
    ]


def test_a_limit_that_the_run_has_is_halved_and_doubled():
    model = analyzed("capped_staleness").model
    limited = replace(model.calibration.system.admission, max_in_flight_samples=100)
    system = replace(model.calibration.system, admission=limited)
    values = grid._values(replace(model, calibration=replace(model.calibration, system=system)))
    assert {50, 200} <= set(values["max_in_flight_samples"]) and 100 not in values["max_in_flight_samples"]
    # The cap is 1 version: half of it is no cap that an asynchronous run can keep.
    assert values["max_staleness"][0] == 2


def test_a_synchronous_run_is_asked_for_no_cap_and_for_no_other_split_of_two_gpus():
    model = analyzed("synchronous").model
    assert recommended_layout(model) is None
    assert {(split, name) for split, name, _ in asked(model)} == {((1, 1), "max_running"), ((1, 1), "publish_every")}


def test_many_splits_are_thinned_and_no_side_loses_more_than_half_of_its_gpus():
    made = changing_model()
    today = Layout(trainer_gpus=16, sampler_gpus=48, max_running=32)
    wide = replace(made, calibration=replace(made.calibration, layout=today))
    splits = [split for split, setting, _ in grid._asked(wide) if setting is None]
    assert sorted(split.trainer_gpus for split in splits[1:]) == [8, 13, 18, 23, 28, 33, 38]
    nodes = replace(wide, model_config=replace(made.model_config, granularity=Granularity(8, 8, 8)))
    kept = [split.trainer_gpus for split, setting, _ in grid._asked(nodes) if setting is None]
    assert kept[1:] == [8, 24, 32, 40]


@pytest.mark.parametrize(("samples", "simulated"), [(0, 0), (1, 1), (4 * 32 * 120, 4)])
def test_no_point_is_begun_after_the_samples_of_a_page_are_simulated(monkeypatch, samples, simulated):
    # 32 samples per step, 120 steps per simulation; every point of this run is simulated.
    monkeypatch.setattr(grid, "_MOST_SAMPLES", samples)
    answered = Mock(side_effect=lambda model, change: SimpleNamespace(steps_per_version=1.0, change=change))
    monkeypatch.setattr(grid, "what_if", answered)
    assert len(solve_grid(replace(analyzed("capped_staleness").model))) == answered.call_count == simulated
