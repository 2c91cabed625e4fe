"""How far the rates of all layouts may be off together, from how a part that was held out was missed."""

import math
from dataclasses import replace

import numpy as np
import pytest

from rlscope.model.arrays import Reals
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.holdout import Prediction, level_log_sd
from rlscope.model.forecast.predict import predict
from rlscope.model.system import Layout
from tests.model.known_run import TODAY, calibrated

HALF_WIDTH = 1.6448536269514722
"""Of the interval that holds 90 % of a normal law, in deviations."""


def prediction(off: float, predicted_sd: float = 0.0, achieved_sd: float = 0.0) -> Prediction:
    """The rate as so many logs off what was predicted, with intervals of such log deviations."""

    def interval(middle: float, log_sd: float) -> Estimate:
        return Estimate(middle, middle * math.exp(-HALF_WIDTH * log_sd), middle * math.exp(HALF_WIDTH * log_sd))

    return Prediction(20, 20, interval(1_000.0, predicted_sd), interval(1_000.0 * math.exp(off), achieved_sd))


@pytest.mark.parametrize(
    ("off", "predicted_sd", "achieved_sd", "expected"),
    [
        (0.10, 0.0, 0.0, 0.10),
        (-0.10, 0.0, 0.0, 0.10),
        (0.10, 0.06, 0.0, 0.08),
        (0.13, 0.04, 0.03, 0.12),
        (0.05, 0.03, 0.04, 0.0),
        (0.02, 0.03, 0.04, 0.0),
    ],
)
def test_what_the_intervals_do_not_explain_is_the_error_of_the_level(
    off: float, predicted_sd: float, achieved_sd: float, expected: float
) -> None:
    assert level_log_sd(prediction(off, predicted_sd, achieved_sd)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("achieved", "agrees"), [(1_020.0, True), (980.0, True), (1_020.1, False), (979.9, False)])
def test_a_prediction_agrees_within_2_percent_however_small_the_intervals(achieved: float, agrees: bool) -> None:
    found = Prediction(20, 20, Estimate.exactly(1_000.0), Estimate.exactly(achieved))
    assert (found.agrees, found.margin_ratio) == (agrees, 0.02)


@pytest.mark.parametrize(
    ("achieved", "high", "misses"),
    [(1_100.0, 1_000.0, False), (1_100.1, 1_000.0, True), (899.9, 1_000.0, True), (1_100.1, 1_100.1, False)],
)
def test_a_prediction_misses_that_is_over_a_tenth_off_and_beyond_both_intervals(
    achieved: float, high: float, misses: bool
) -> None:
    found = Prediction(20, 20, Estimate(1_000.0, 1_000.0, high), Estimate.exactly(achieved))
    assert found.misses is misses


def test_a_run_too_short_to_hold_a_part_out_or_that_made_nothing_says_nothing_of_the_level() -> None:
    assert level_log_sd(None) == 0.0
    assert level_log_sd(Prediction(20, 20, Estimate(10.0, 9.0, 11.0), Estimate.exactly(0.0))) == 0.0


def test_the_error_of_the_level_widens_every_rate_and_moves_no_gain() -> None:
    def drawn(level: float, layout: Layout) -> Reals:
        return predict(replace(calibrated(), level_log_sd=level), layout).drawn_tokens_per_s

    (sure, other), (unsure, other_unsure) = (
        [drawn(level, layout) for layout in (TODAY, Layout(3, 5, 64))] for level in (0.0, 0.2)
    )
    assert np.log(unsure / sure).std() == pytest.approx(0.2, rel=0.15)
    assert other_unsure / unsure == pytest.approx(other / sure)
