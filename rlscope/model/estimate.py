"""A quantity with the interval that holds it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from rlscope.model.arrays import Reals

INTERVAL_RATIO: Final = 0.90
"""Share of the draws inside every interval that the model reports."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A quantity and its 90% interval. Both ends are the value if it has no interval."""

    value: float
    """The value; over posterior draws, their median."""
    low: float
    """Low end of the 90% interval."""
    high: float
    """High end of the 90% interval."""

    @classmethod
    def of(cls, draws: Reals) -> "Estimate":
        """Return the estimate from equally likely values."""
        outside = (1.0 - INTERVAL_RATIO) / 2.0
        low, median, high = np.quantile(draws, [outside, 0.5, 1.0 - outside])
        return cls(float(median), float(low), float(high))

    @classmethod
    def exactly(cls, value: float) -> "Estimate":
        """Return the estimate of a quantity that has no interval."""
        return cls(value, value, value)

    def mapped(self, change: Callable[[float], float]) -> "Estimate":
        """Return the estimate of an increasing function of the quantity."""
        return Estimate(*map(change, self))

    def __iter__(self) -> Iterator[float]:
        """Iterate over the value and the ends of the interval."""
        return iter((self.value, self.low, self.high))


def about(value: float, drawn: Reals) -> Estimate:
    """Return the interval of the draws, about a value that all of them share."""
    spread = Estimate.of(drawn)
    return Estimate(value, min(spread.low, value), max(spread.high, value))
