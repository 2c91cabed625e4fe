"""Prices of a recommended change besides its work, as predicted and as measured after it.

They are dropped tokens, staleness, the mean trained length, and the long responses that are still trained.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import polars as pl

from rlscope.comparison.facts import ComparedRun
from rlscope.document import computed_field
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.actions import Action
from rlscope.model.forecast.price import NOTABLE_RATIO
from rlscope.model.simulate.results import LONGEST_RATIO

PriceName = Literal["dropped_ratio", "staleness_p95_steps", "trained_length_change_ratio", "longest_trained_ratio"]
_MARGINS: Final[dict[PriceName, float]] = {
    "dropped_ratio": NOTABLE_RATIO,
    "staleness_p95_steps": 1.0,
    "trained_length_change_ratio": NOTABLE_RATIO,
    "longest_trained_ratio": NOTABLE_RATIO,
}
"""Two runs of the same settings differ by as much."""


@dataclass(frozen=True, slots=True)
class PromisedPrice:
    """One price of a recommended change."""

    name: PriceName
    """Price: `dropped_ratio` (share of the generated tokens that is dropped), `staleness_p95_steps` (p95 staleness of
    samples by their oldest token, in optimizer steps), `trained_length_change_ratio` (mean length of trained
    samples, after over before, minus 1), or `longest_trained_ratio` (trained share of the longest tenth of responses,
    over the whole run)."""
    predicted: Estimate
    """Predicted value, with its 90% interval."""
    measured: float
    """Measured value."""

    @computed_field
    @property
    def is_as_predicted(self) -> bool:
        """Whether the measured value is in the interval, or misses it by no more than two alike runs may differ."""
        margin = _MARGINS[self.name]
        return self.predicted.low - margin <= self.measured <= self.predicted.high + margin


def promised_prices(action: Action, before: ComparedRun, after: ComparedRun) -> Iterator[PromisedPrice]:
    """Yield every price that was predicted for an action and measured after it."""
    if action.price.dropped_ratio is not None and after.dropped_ratio is not None:
        yield PromisedPrice("dropped_ratio", action.price.dropped_ratio, after.dropped_ratio)
    if before.modeled is None or after.modeled is None:
        return
    old, promised, new = action.price_before, action.price, after.modeled.forecasts.today.price
    if promised.staleness is not None and new.staleness is not None:
        steps = action.steps_per_version(before.modeled.calibration.steps_per_version)
        measured = new.staleness.p95_steps * after.modeled.calibration.steps_per_version
        yield PromisedPrice("staleness_p95_steps", promised.staleness.p95_in_optimizer_steps(steps), measured)
    change, came = promised.trained_length_ratio(old), new.trained_length_ratio(old)
    if change is not None and came is not None:
        yield PromisedPrice("trained_length_change_ratio", change, came.value)
    longest = longest_trained_ratio(after.answers["delivered_lengths"])
    if promised.longest_trained_ratio is not None and longest is not None:
        yield PromisedPrice("longest_trained_ratio", promised.longest_trained_ratio, longest)


def longest_trained_ratio(delivered_lengths: pl.DataFrame) -> float | None:
    """Return the trained share of the longest tenth of the samples trained or dropped as stale; None without any.

    Lengths are known by bin: samples of the bin in which the tenth begins count in whole.
    """
    left = delivered_lengths.filter(pl.col("outcome").is_in(("trained", "dropped_stale")))
    bins = left.group_by("length_from_tokens").agg(
        pl.col("samples").sum(), trained=pl.col("samples").filter(pl.col("outcome") == "trained").sum()
    )
    longest = bins.sort("length_from_tokens", descending=True).with_columns(longer=pl.col("samples").cum_sum().shift(1))
    tenth = longest.filter(pl.col("longer").fill_null(0) < LONGEST_RATIO * int(bins["samples"].sum()))
    return int(tenth["trained"].sum()) / int(tenth["samples"].sum()) if tenth.height else None
