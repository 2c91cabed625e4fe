"""What a recommended change was predicted to cost, and what it cost."""

import polars as pl
import pytest

from rlscope.comparison.prices import PriceName, PromisedPrice, longest_trained_ratio
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.price import Price


@pytest.mark.parametrize(
    ("rows", "ratio"),
    [
        # A tenth of 20 samples are the two longest: one of them was dropped.
        ([("trained", 0, 18), ("trained", 10, 1), ("dropped_stale", 10, 1)], 0.5),
        # The bin in which the tenth begins counts in whole.
        ([("trained", 0, 10), ("trained", 10, 6), ("dropped_stale", 10, 3), ("dropped_stale", 20, 1)], 0.6),
        ([("trained", 0, 9), ("dropped_stale", 10, 1), ("filtered", 20, 5), ("abandoned", 20, 5)], 0.0),
        ([("trained", 0, 7)], 1.0),
        ([], None),
    ],
)
def test_the_trained_share_of_the_longest_tenth_is_counted_by_bins_of_length(
    rows: list[tuple[str, int, int]], ratio: float | None
) -> None:
    schema = {"outcome": pl.String, "length_from_tokens": pl.Int64, "samples": pl.Int64}
    assert longest_trained_ratio(pl.DataFrame(rows, schema, orient="row")) == ratio


@pytest.mark.parametrize(
    ("name", "margin"),
    [
        ("dropped_ratio", 0.01),
        ("staleness_p95_steps", 1.0),
        ("longest_trained_ratio", 0.01),
        ("trained_length_change_ratio", 0.01),
    ],
)
def test_a_price_holds_within_its_interval_or_as_near_as_two_alike_runs_are(name: PriceName, margin: float) -> None:
    ends = (3.0 - 1.01 * margin, 3.0 - 0.99 * margin, 4.0 + 0.99 * margin, 4.0 + 1.01 * margin)
    prices = [PromisedPrice(name, Estimate(3.5, 3.0, 4.0), measured) for measured in ends]
    assert [price.is_as_predicted for price in prices] == [False, True, True, False]


def test_a_change_of_length_is_that_of_the_mean_trained_length() -> None:
    before = Price(mean_trained_tokens=Estimate.exactly(200.0))
    found = Price(mean_trained_tokens=Estimate(190.0, 180.0, 210.0)).trained_length_ratio(before)
    assert found is not None and list(found) == pytest.approx([-0.05, -0.1, 0.05])
    assert before.trained_length_ratio(Price()) is Price().trained_length_ratio(before) is None
