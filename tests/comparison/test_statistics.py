"""Whether a difference is more than noise: exact cases, thresholds, and rates of false alarms over many pairs."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlscope.comparison.statistics import (
    LEAST_STEPS,
    Difference,
    StepSeries,
    changed,
    corrected,
    difference,
)


def steps(values: list[float]) -> StepSeries:
    """One value a step."""
    return StepSeries(np.array(values, dtype=float), np.ones(len(values)))


def related(rng: np.random.Generator, count: int, correlation: float = 0.0, level: float = 1.0) -> StepSeries:
    """Tokens over step times that vary by 10% and remember the one before."""
    noise = rng.standard_normal(count)
    for step in range(1, count):
        noise[step] = correlation * noise[step - 1] + np.sqrt(1.0 - correlation**2) * noise[step]
    return StepSeries(np.full(count, 100.0 * level), np.exp(0.1 * noise))


@pytest.mark.parametrize(
    ("before", "after", "scale", "expected"),
    [
        (100.0, 110.0, "ratio", 0.1),
        (100.0, 110.0, "absolute", 10.0),
        (0.0, 1.0, "ratio", None),
        (0.0, 1.0, "absolute", 1.0),
        (None, 1.0, "ratio", None),
        (1.0, None, "absolute", None),
    ],
)
def test_a_change_is_a_ratio_or_a_difference_and_none_without_both_ends(before, after, scale, expected) -> None:
    found = changed(before, after, scale)
    assert found == (None if expected is None else pytest.approx(expected))


def test_two_constant_runs_differ_if_they_do_and_not_otherwise() -> None:
    same, other = (
        difference(steps([5] * 20), steps([5] * 20), "ratio"),
        difference(steps([5] * 20), steps([6] * 20), "ratio"),
    )
    assert (same.change, same.is_significant, same.p_value) == (0.0, False, 1.0)
    assert (other.change, other.is_significant, other.p_value) == (pytest.approx(0.2), True, 0.0)


@pytest.mark.parametrize(("count", "has_interval"), [(LEAST_STEPS - 1, False), (LEAST_STEPS, True)])
def test_too_few_steps_give_a_change_without_an_interval(count: int, has_interval: bool) -> None:
    rng = np.random.default_rng(3)
    found = difference(related(rng, count), related(rng, count), "ratio")
    assert found.change is not None and (found.low is not None) is has_interval
    assert found.is_significant is False


def test_a_difference_as_large_as_that_between_the_halves_of_a_run_is_noise() -> None:
    """The second half of the first run is 0.5 higher; the other run is 0.5, and a little more than that, higher."""
    rng = np.random.default_rng(5)
    level = np.repeat([1.0, 1.5], 40) + 1e-3 * rng.standard_normal(80)
    level[40:] += 0.5 - (level[40:].mean() - level[:40].mean())
    first, shift = steps(list(level)), float(level.mean())
    for above, is_noisy in ((0.4999, True), (0.5001, False)):
        calm = steps([shift + above] * 80)
        assert difference(first, calm, "absolute").is_noisy is is_noisy
        assert not (is_noisy and difference(first, calm, "absolute").is_significant)


@given(seed=st.integers(0, 10_000), count=st.integers(LEAST_STEPS, 60), factor=st.floats(0.01, 100.0))
def test_swapping_the_runs_turns_the_sign_and_units_do_not_matter(seed: int, count: int, factor: float) -> None:
    rng = np.random.default_rng(seed)
    first, second = related(rng, count), related(rng, count, level=1.1)
    there, back = difference(first, second, "ratio"), difference(second, first, "ratio")
    assert (1.0 + there.change) * (1.0 + back.change) == pytest.approx(1.0)
    scaled = difference(*(StepSeries(each.numerators * factor, each.denominators) for each in (first, second)), "ratio")
    assert scaled.change == pytest.approx(there.change)
    if there.low is not None and there.high is not None:
        assert scaled.low == pytest.approx(there.low, rel=1e-6, abs=1e-9)
        assert there.low < there.change < there.high


@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_runs_of_one_setting_are_called_different_in_few_pairs_even_if_steps_are_related(correlation: float) -> None:
    rng = np.random.default_rng(11)
    pairs = [difference(related(rng, 40, correlation), related(rng, 40, correlation), "ratio") for _ in range(200)]
    # 5% of 200, and six more: three standard deviations would be 19.
    assert sum(each.is_significant for each in pairs) <= 16


def made_up_for(rng: np.random.Generator, count: int) -> StepSeries:
    """Tokens of steps that a sampler ends: what is in flight at the end of one belongs to the next."""
    in_flight = rng.standard_normal(count + 1)
    tokens = 100.0 * (1.0 + 0.1 * np.diff(in_flight) + 0.03 * rng.standard_normal(count))
    return StepSeries(tokens, np.ones(count))


@pytest.mark.parametrize("count", [40, 80])
def test_steps_that_make_up_for_each_other_have_intervals_as_wide_as_their_rates_vary(count: int) -> None:
    """Their blocks alone say four times as much."""
    rng = np.random.default_rng(17)
    runs = [made_up_for(rng, count) for _ in range(120)]
    pairs = [difference(first, then, "ratio") for first, then in zip(runs[::2], runs[1::2], strict=True)]
    spread = float(np.std([run.value for run in runs], ddof=1)) / 100.0
    held = [each.low <= 0.0 <= each.high for each in pairs if each.low is not None and each.high is not None]
    assert len(held) == 60 and sum(held) >= 54  # 57 of 60 at 95%.
    half_widths = [(each.high - each.low) / 2.0 for each in pairs if each.low is not None and each.high is not None]
    assert 1.0 <= float(np.median(half_widths)) / (1.96 * np.sqrt(2.0) * spread) <= 1.7


def test_a_slow_change_under_steps_that_make_up_for_each_other_stays_in_the_interval() -> None:
    rng = np.random.default_rng(19)

    def run() -> StepSeries:
        slow = rng.standard_normal(80)
        for step in range(1, 80):
            slow[step] = 0.9 * slow[step - 1] + np.sqrt(1.0 - 0.81) * slow[step]
        quick = made_up_for(rng, 80)
        return StepSeries(quick.numerators + 2.0 * slow, quick.denominators)

    pairs = [difference(run(), run(), "ratio") for _ in range(100)]
    assert sum(each.is_significant for each in pairs) <= 10


def test_a_detectable_difference_is_detected_in_most_pairs() -> None:
    rng = np.random.default_rng(13)
    least = np.median([difference(related(rng, 60), related(rng, 60), "ratio").detectable or 0.0 for _ in range(40)])
    found = [
        difference(related(rng, 60), related(rng, 60, level=1.0 + least), "ratio").is_significant for _ in range(100)
    ]
    assert sum(found) >= 70


@pytest.mark.parametrize(
    ("p_values", "significant"),
    [
        ([0.01, 0.02, 0.03], [True, True, True]),
        ([0.03, 0.02, 0.01], [True, True, True]),
        ([0.05 / 3, 0.0, 0.0], [True, True, True]),
        ([0.05 / 3, 0.04, 0.04], [False, False, False]),  # On the threshold is not below it.
        ([0.01, 0.03, 0.03], [True, False, False]),
        ([None, 0.049], [False, True]),
    ],
)
def test_many_differences_are_significant_by_holms_thresholds(p_values, significant) -> None:
    plain = Difference(1.0, 2.0, "absolute", 1.0)
    tested = [replace(plain, p_value=each, is_significant=each is not None) for each in p_values]
    assert [each.is_significant for each in corrected(tested)] == significant


def test_correction_never_makes_a_noisy_difference_significant() -> None:
    (found,) = corrected([Difference(1.0, 2.0, "absolute", 1.0, p_value=0.001, is_significant=False)])
    assert not found.is_significant
