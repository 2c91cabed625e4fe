"""The bound, and the bars from it to what was achieved."""

from dataclasses import replace
from functools import cache
from itertools import accumulate

import pytest

from rlscope.model.forecast.change import with_trainer_speed
from rlscope.model.forecast.gap import Gap, GapCause, explain_gap
from rlscope.model.forecast.layouts import Forecasts
from rlscope.model.forecast.predict import predict_layouts
from rlscope.model.observed import Observed
from rlscope.model.system import Admission, Granularity, Layout, WeightUpdateCost, possible_layouts
from tests.model.golden_system import load_ratio
from tests.model.known_run import TRUTH, calibrated, calibration_of, observed, steady


@cache
def forecasts_of(gpus: int, granularity: Granularity, running: tuple[int, ...]) -> Forecasts:
    return predict_layouts(calibrated(), possible_layouts(gpus, granularity, running))


SPLITS = Granularity(1)


def gap_of(run: Observed, forecasts: Forecasts, *reached: float) -> Gap:
    return explain_gap(calibrated(), run, forecasts, steady().trained_tokens_per_s, reached)


def lost(gap: Gap) -> dict[GapCause, float]:
    return {step.cause: step.lost_tokens_per_s for step in gap.steps}


def test_the_bars_begin_with_what_no_split_of_today_s_limit_reaches():
    gap = gap_of(observed(), forecasts_of(8, SPLITS, (16, 64, 256)))
    assert [step.cause for step in gap.steps[:3]] == ["running_limit", "whole_gpus", "layout_imbalance"]
    left = [gap.bound_tokens_per_s - total for total in accumulate(step.lost_tokens_per_s for step in gap.steps)]
    assert left == pytest.approx([step.left_tokens_per_s for step in gap.steps], rel=1e-12)


def test_a_forecast_or_a_rate_that_a_setting_is_said_to_reach_raises_the_bound():
    forecasts = forecasts_of(8, SPLITS, (64,))
    bound = gap_of(observed(), forecasts).bound_tokens_per_s
    fastest = forecasts.rivals[0]
    for changed in (
        replace(fastest, tokens_per_s=2.0 * bound),
        replace(fastest, drawn_tokens_per_s=fastest.drawn_tokens_per_s * 2.0 * bound / fastest.tokens_per_s),
    ):
        raised = gap_of(observed(), Forecasts(forecasts.today, (changed, *forecasts.others[1:])))
        assert raised.bound_tokens_per_s == pytest.approx(2.0 * bound, rel=0.05)
    assert gap_of(observed(), forecasts, 2.0 * bound).bound_tokens_per_s == 2.0 * bound


def test_a_run_that_does_better_than_the_bound_is_its_own_bound():
    run = observed()
    faster = replace(run, steps=replace(run.steps, period_s=run.steps.period_s / 10.0))
    gap = gap_of(faster, forecasts_of(8, SPLITS, (64,)))
    assert gap.bound_tokens_per_s == gap.achieved_tokens_per_s == faster.trained_tokens_per_s
    assert sum(lost(gap).values()) == pytest.approx(0.0, abs=1e-9 * gap.bound_tokens_per_s)
    assert lost(gap)["unexplained"] < 0.0


def test_whole_gpus_cost_what_a_fractional_split_would_gain_and_no_action_can():
    """Of eight GPUs in whole nodes of four there is one split; GPU by GPU there are seven."""
    by_gpu = lost(gap_of(observed(), forecasts_of(8, SPLITS, (64,))))
    by_node = lost(gap_of(observed(), forecasts_of(8, Granularity(4, 4), (64,))))
    assert 0.0 <= by_gpu["whole_gpus"] < by_node["whole_gpus"]
    # What is left of the split is charged to the layout.
    assert by_gpu["layout_imbalance"] > by_node["layout_imbalance"]


def test_whole_gpus_cost_nothing_where_a_fractional_split_is_no_better():
    # Perfect scaling, and both sides take equally long.
    layout, truth = Layout(4, 4, 64), replace(TRUTH, update=WeightUpdateCost())
    even = with_trainer_speed(truth, load_ratio(truth, layout))
    run = observed(even, layout, noise=0.0)
    found = replace(calibration_of(run), system=even)
    forecasts = predict_layouts(found, possible_layouts(8, SPLITS, (64,)))
    gap = explain_gap(found, run, forecasts, run.trained_tokens_per_s)
    assert lost(gap)["whole_gpus"] == pytest.approx(0.0, abs=0.01 * gap.bound_tokens_per_s)
    assert lost(gap)["layout_imbalance"] == pytest.approx(0.0, abs=0.01 * gap.bound_tokens_per_s)


def test_what_a_prediction_falls_short_of_the_closed_forms_is_charged_to_no_cap_of_a_run_without_one():
    run, forecasts = observed(), forecasts_of(8, SPLITS, (64,))
    rate = steady().trained_tokens_per_s
    free = lost(explain_gap(calibrated(), run, forecasts, 0.9 * rate))
    assert "staleness_cap" not in free and free["tail"] > 0.05 * rate
    capped = replace(calibrated(), system=replace(TRUTH, admission=Admission(max_staleness=4)))
    assert lost(explain_gap(capped, run, forecasts, 0.9 * rate))["staleness_cap"] > 0.05 * rate
