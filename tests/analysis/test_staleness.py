"""Quantiles of staleness."""

from rlscope.analysis.result import TokenStaleness
from rlscope.analysis.staleness import token_staleness, weighted_quantile


def test_a_quantile_is_the_smallest_value_that_enough_of_the_weight_does_not_exceed() -> None:
    histogram = ((0, 50), (1, 45), (4, 4), (7, 1))
    assert token_staleness(histogram) == TokenStaleness(0.68, 0, 1, 4, 7, histogram)
    assert [weighted_quantile(histogram, percent) for percent in (1, 50, 51, 95, 96, 99, 100)] == [0, 0, 1, 1, 4, 4, 7]
