"""The last stable stretch of step times: after a warm-up, after a change, and none where there are too few steps.

And changes of level, and whether a series drifts.
"""

import math
from collections.abc import Callable
from random import Random

import numpy as np
import polars as pl
import pytest

from rlscope.analysis.run_facts import steady_window
from rlscope.model.numerics.changepoints import (
    LEAST_STEPS_TO_SETTLE,
    Stretch,
    drift,
    last_stable_stretch,
    level_changes,
)


def noisy(level_s: float, steps: int, seed: int = 0) -> list[float]:
    random = Random(seed)
    return [level_s * (1 + random.uniform(-0.1, 0.1)) for _ in range(steps)]


STEADY = noisy(1.0, 40)
EVEN = [1.0] * 20
THREE_SIGMAS = math.exp(0.06)
"""The least noise that is assumed is 2%, and a run without noise has it."""


@pytest.mark.parametrize(
    ("periods_s", "stretch"),
    [
        ([2.0] * LEAST_STEPS_TO_SETTLE, Stretch(0, LEAST_STEPS_TO_SETTLE - 1)),
        ([2.0] * (LEAST_STEPS_TO_SETTLE - 1), None),
        ([], None),
        # Five steps are a level, four are outliers.
        ([1.0] * 44 + [10.0] * 4 + [1.0] * 12, Stretch(0, 59)),
        ([1.0] * 44 + [10.0] * 5 + [1.0] * 11, Stretch(49, 59)),
        ([10.0 if place % 10 == 4 else 1.0 for place in range(60)], Stretch(0, 59)),
        # It neither begins nor ends with an outlier: three sigmas above the rest is none, and a last bit more is.
        ([10.0, 8.0, 6.0, 4.0, *STEADY], Stretch(4, 43)),
        ([*STEADY, 3.0, 7.0], Stretch(0, 39)),
        ([math.nextafter(THREE_SIGMAS, 0), *EVEN], Stretch(0, 20)),
        ([THREE_SIGMAS, *EVEN], Stretch(1, 20)),
        # A period that changes within two percent, or takes no time, is one stretch.
        ([1.0] * 30 + [1.01] * 30, Stretch(0, 59)),
        ([0.0] * 60, Stretch(0, 59)),
    ],
)
def test_the_last_stretch_has_ten_steps_or_more_and_no_outlier_at_its_ends(periods_s, stretch) -> None:
    assert last_stable_stretch(periods_s) == stretch


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("after_s", [2.0, 0.5])
def test_a_change_of_level_starts_the_last_stretch(seed: int, after_s: float) -> None:
    stretch = last_stable_stretch(noisy(1.0, 40, seed) + noisy(after_s, 30, seed + 100))
    assert (abs(stretch.first - 40) <= 1, stretch.last) == (True, 69)


def steps_of(periods_s: list[float], lengths_tokens: Callable[[int], int] = lambda step: 100) -> pl.DataFrame:
    """The answer of training_steps for a first step that ends at 5 s and these periods after it, of eight samples."""
    ends = [5.0]
    for period_s in periods_s:
        ends.append(ends[-1] + period_s)
    steps = range(1, len(ends) + 1)
    return pl.DataFrame(
        {
            "step": steps,
            "end_ns": [round(end * 1e9) for end in ends],
            "step_s": [None, *periods_s],
            "samples": [8] * len(ends),
            "response_tokens": [8 * lengths_tokens(step) for step in steps],
        }
    )


@pytest.mark.parametrize(
    ("steps", "growth_tokens", "first"),
    [
        (40, 1, 22),  # 102 to 141 tokens
        (40, 0, 2),
        (39, 1, 2),  # a half of it could not be checked
        (79, 1, 42),
        (80, 1, 62),  # a half of the half can, and lengths drift over the half too
    ],
)
def test_where_response_lengths_drift_the_window_has_their_latest(steps: int, growth_tokens: int, first: int) -> None:
    window = steady_window(steps_of([1.0] * steps, lambda step: 100 + growth_tokens * step))
    assert (window.first_step, window.last_step, window.lengths_drifted) == (first, steps + 1, first > 2)
    assert window.start_ns == (5 + first - 2) * 10**9


def stepped(before: float, after: float, steps: int = 40, at: int = 20) -> list[float]:
    """A series of two levels, with a little noise that is the same around both."""
    random = Random(7)
    return [(before if place < at else after) + random.uniform(-0.02, 0.02) for place in range(steps)]


def test_a_change_of_level_is_found_at_its_place_with_the_medians_of_both_sides() -> None:
    (change,) = level_changes(stepped(0.0, 0.5), 0.1)
    assert change.place == 20
    assert (change.before, change.after) == (pytest.approx(0.0, abs=0.02), pytest.approx(0.5, abs=0.02))


def test_a_change_below_the_least_is_none() -> None:
    values = [place % 2 * 0.02 for place in range(20)] + [1.0 + place % 2 * 0.02 for place in range(20)]
    (change,) = level_changes(values, 1.0)
    assert change.after - change.before == 1.0
    assert level_changes(values, math.nextafter(1.0, 2.0)) == []


@pytest.mark.parametrize(
    ("steps", "at", "is_found"),
    [(40, 9, False), (40, 10, True), (40, 30, True), (40, 31, False), (20, 10, True), (19, 10, False)],
)
def test_both_levels_of_a_change_last_ten_steps(steps: int, at: int, is_found: bool) -> None:
    assert bool(level_changes(stepped(0.0, 0.5, steps, at), 0.1)) is is_found


def test_a_change_from_noisy_to_quiet_steps_is_found_at_its_place() -> None:
    """The noise of one side would be outliers on the other: in 20 runs, cleaned values place 12 changes right."""
    places: list[int] = []
    for seed in range(20):
        random = Random(seed)
        values = [random.gauss(1.05, 0.15) for _ in range(32)] + [random.gauss(1.46, 0.02) for _ in range(58)]
        places += [each.place for each in level_changes(values, 0.1)]
    assert places.count(32) >= 17


def test_outliers_and_a_drift_are_no_changes_of_level() -> None:
    slow = stepped(0.0, 0.0, 60)
    slow[9::10] = [0.7] * 6
    assert level_changes(slow, 0.1) == []
    assert level_changes([value + 0.01 * place for place, value in enumerate(stepped(0.0, 0.0, 80))], 0.1) == []


def test_dependent_noise_of_a_tenth_is_hardly_ever_a_change() -> None:
    """Steps share samples: each has half of the last one's error."""
    alarms = 0
    for seed in range(40):
        random, error, values = Random(seed), 0.0, list[float]()
        for _ in range(100):
            error = 0.5 * error + random.gauss(0.0, 0.087)
            values.append(error)
        alarms += len(level_changes(values, 0.1))
    assert alarms <= 2


def noise(count: int, seed: int, spread: float = 0.05) -> np.ndarray:
    return spread * np.random.default_rng(seed).standard_normal(count)


def test_of_steady_series_hardly_any_drifts() -> None:
    found = [drift(np.exp(noise(60, seed, spread=0.2))) for seed in range(200)]
    # Two in a hundred; 12 is three standard deviations above.
    assert sum(each.drifts for each in found) <= 12


@pytest.mark.parametrize(("growth", "drifts"), [(1.0499, False), (1.0501, True), (0.9501, False), (0.9499, True)])
def test_a_change_of_less_than_five_per_cent_is_no_drift(growth: float, drifts: bool) -> None:
    found = drift(growth ** np.linspace(0.0, 1.0, 50))
    assert (found.drifts, found.change_ratio) == (drifts, pytest.approx(growth - 1))


@pytest.mark.parametrize("series", [[1.0] * 9, [1.0] * 10 + [0.0], [1.0] * 10 + [-1.0]])
def test_too_few_steps_or_a_value_that_has_no_logarithm_say_nothing(series: list[float]) -> None:
    assert drift(series) is None
    assert drift([1.0] * 10) is not None
