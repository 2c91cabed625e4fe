"""What related steps are worth: autocorrelation times, blocks, and rates with their intervals."""

import numpy as np
import pytest

from rlscope.model.numerics.bootstrap import (
    LEAST_BLOCKS,
    autocorrelation_time,
    block_steps,
    few_blocks_factor,
    ratio_of_sums,
)


def related(count: int, memory: float, seed: int = 0) -> np.ndarray:
    """Each value is `memory` times the one before, plus noise: an autocorrelation time of (1 + m) / (1 - m)."""
    noise, values = np.random.default_rng(seed).standard_normal(count), np.zeros(count)
    for at in range(1, count):
        values[at] = memory * values[at - 1] + noise[at]
    return values


@pytest.mark.parametrize(("memory", "steps"), [(0.0, 1.0), (0.5, 3.0), (0.8, 9.0)])
def test_the_autocorrelation_time_of_a_series_with_a_known_memory(memory: float, steps: float) -> None:
    found = np.mean([autocorrelation_time(related(4000, memory, seed)) for seed in range(10)])
    assert found == pytest.approx(steps, rel=0.1)


@pytest.mark.parametrize("series", [[5.0] * 20, [1.0], [1.0, -1.0] * 20, [0.1] * 7])
def test_steps_of_a_series_without_positive_memory_are_independent(series: list[float]) -> None:
    assert autocorrelation_time(series) == 1.0


@pytest.mark.parametrize(("count", "block"), [(1, 1), (2, 1), (27, 3), (64, 4), (1000, 10)])
def test_a_block_of_unrelated_steps_is_the_cube_root_of_their_number(count: int, block: int) -> None:
    alternating = np.where(np.arange(count) % 2, 1.0, -1.0)
    assert block_steps(alternating) == block


def test_a_block_of_related_steps_is_two_autocorrelation_times_and_at_most_half_of_all() -> None:
    series = related(4000, 0.9)
    assert block_steps(series) == round(2 * autocorrelation_time(series))
    assert block_steps(np.linspace(0.0, 1.0, 30)) == 15


def test_a_rate_is_sum_over_sum_and_not_the_mean_of_rates() -> None:
    found = ratio_of_sums([100.0, 300.0], [1.0, 9.0], np.random.default_rng(0))
    assert found.value == 40.0
    assert (found.low, found.high) == (pytest.approx(300 / 9), 100.0)


def test_fewer_than_ten_blocks_give_the_range_of_the_blocks() -> None:
    # Blocks of one step below 4 steps, of 2 from 7 on: 10 blocks of 3 are 30 steps.
    values = np.where(np.arange(29) % 2, 3.0, 1.0)
    few = ratio_of_sums(values, np.ones(29), np.random.default_rng(0))
    many = ratio_of_sums(np.append(values, 3.0), np.ones(30), np.random.default_rng(0))
    assert (block_steps(values), LEAST_BLOCKS) == (3, 10)
    assert (few.low, few.high) == (pytest.approx(5 / 3), pytest.approx(7 / 3))
    assert 5 / 3 < many.low < many.high < 7 / 3


@pytest.mark.parametrize(("memory", "least"), [(0.0, 82), (0.6, 76)])
def test_nine_of_ten_intervals_hold_the_true_rate(memory: float, least: int) -> None:
    # 90 expected of 100; what the bootstrap of a short related series misses is a few more than chance.
    inside = 0
    for seed in range(100):
        seconds = 10.0 + related(150, memory, seed)
        found = ratio_of_sums(np.full(150, 50.0), seconds, np.random.default_rng(seed), draws=300)
        inside += found.low <= 5.0 <= found.high
    assert inside >= least


def test_many_blocks_need_no_widening_and_two_are_the_least_that_count() -> None:
    assert few_blocks_factor(100_000, 1) == pytest.approx(1.0, abs=1e-3)
    assert few_blocks_factor(10, 1) == pytest.approx(1.833 / 1.645 * (10 / 9) ** 0.5, rel=1e-3)
    assert few_blocks_factor(3, 3) == few_blocks_factor(2, 1)
