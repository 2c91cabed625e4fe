"""Whether a series of steps has settled: where its warm-up ends, and whether it drifts afterwards.

Beside `steady_state.py`, which finds changes of level. Not covered: seasonal effects, and several drifts in a row.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from rlscope.model.blocks import autocorrelation_time

_BATCH_STEPS: Final = 5
"""Steps averaged before the cut is looked for, as the method has it."""
_LEAST_BATCHES: Final = 4
"""With fewer, only one cut would be tried."""
_LEAST_STEPS: Final = 10
"""Fewer steps cannot tell a drift from noise."""
_CONFIDENCE_RATIO: Final = 0.99
"""Two-sided. Of steady series of 30 to 100 steps, related ones too, two or three in a hundred are said to drift: the
autocorrelation itself is estimated, a little too low."""
_WORTH_RATIO: Final = 0.05
"""A drift of less than this from end to end changes no decision, however sure it is."""


@dataclass(frozen=True, slots=True)
class Drift:
    """A line through the logarithm of a series."""

    change_ratio: float
    """Last over first value of the line, minus 1: how much the quantity grew over the series."""
    margin_ratio: float
    """Half-width of the interval of change_ratio, in logarithm."""
    drifts: bool
    """Surely, and by enough to matter."""


def warm_up_steps(values: npt.ArrayLike) -> int | None:
    """Steps to leave out at the start; None when the series has not settled, or is too short to tell.

    MSER-5 (White 1997): over batches of five, the cut that minimises the variance of what is left over the square of
    its number. Cuts up to the middle are tried: fewer batches look alike by chance. When the last of them is the best,
    the series still moves; so it seems, by chance, to one in six steady series of 40 steps and one in thirty of 100.
    A change of level beyond the middle is for `steady_state.py` to find. A last batch that is not full is left out.
    """
    series = np.asarray(values, dtype=np.float64)
    batches = series.size // _BATCH_STEPS
    if batches < _LEAST_BATCHES:
        return None
    means = series[: batches * _BATCH_STEPS].reshape(batches, _BATCH_STEPS).mean(axis=1)
    cuts = range(batches // 2 + 1)
    errors = [float(means[cut:].var()) / (batches - cut) for cut in cuts]
    best = int(np.argmin(errors))
    return best * _BATCH_STEPS if best < cuts[-1] else None


def drift(values: npt.ArrayLike) -> Drift | None:
    """Whether a positive series grows or shrinks: a least-squares line through its logarithm.

    The line's error is widened by the autocorrelation of what is left around it. None with fewer than ten steps, or
    where a value is not positive.
    """
    series = np.asarray(values, dtype=np.float64)
    if series.size < _LEAST_STEPS or series.min() <= 0.0:
        return None
    logs, times = np.log(series), np.arange(series.size) - (series.size - 1) / 2.0
    slope = float((times * logs).sum() / (times**2).sum())
    left = logs - logs.mean() - slope * times
    worth = autocorrelation_time(left)
    freedom = max(series.size / worth - 2.0, 1.0)
    error = math.sqrt(worth * float((left**2).sum()) / max(series.size - 2, 1) / float((times**2).sum()))
    change = slope * (series.size - 1)
    margin = float(stdtrit(freedom, (1.0 + _CONFIDENCE_RATIO) / 2.0)) * error * (series.size - 1)
    surely = abs(change) > margin and abs(math.expm1(change)) > _WORTH_RATIO
    return Drift(math.expm1(change), margin, surely)
