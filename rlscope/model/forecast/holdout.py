"""Check the model on the run itself: calibrate on one part of the steady state, compare with the rest.

The model never sees the part that it is compared with. Both rates have intervals: the predicted one from its draws, the
measured one from the variation between steps. Not covered: which part of the model is at fault if a prediction misses.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.special import ndtri

from rlscope.model.calibration import Calibration
from rlscope.model.estimate import INTERVAL_RATIO, Estimate
from rlscope.model.forecast.predict import predict
from rlscope.model.forecast.recommend import TIE_RATIO
from rlscope.model.numerics.bootstrap import ratio_of_sums
from rlscope.model.observed import TrainerSteps

MOST_MISS: Final = 0.10
"""Tolerance as a share of the predicted rate, as for a replay: the model is rough if a run's halves differ by more."""
PREDICTED_DRAWS: Final = 100
"""Draws of the prediction: five lie beyond each end of the interval."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Trained tokens per second, predicted from the first half of the steady state and measured over the second."""

    calibrated_steps: int
    held_out_steps: int
    predicted: Estimate
    held_out: Estimate
    """The measured rate. Both ends are the value if no interval can be given."""

    @property
    def residual_ratio(self) -> float:
        """`held_out` over `predicted`, less 1."""
        return self.held_out.value / self.predicted.value - 1.0

    @property
    def agrees(self) -> bool:
        """Whether the two intervals overlap, or the rates differ by at most TIE_RATIO."""
        return abs(self.held_out.value - self.predicted.value) <= self.margin_ratio * self.predicted.value

    @property
    def margin_ratio(self) -> float:
        """Largest `residual_ratio`, without its sign, at which they agree."""
        slower, faster = sorted((self.predicted, self.held_out), key=lambda each: each.value)
        return max(TIE_RATIO, (slower.high - slower.value + faster.value - faster.low) / self.predicted.value)

    @property
    def misses(self) -> bool:
        """Whether the measured rate is off by more than MOST_MISS and outside both intervals."""
        off = abs(self.held_out.value - self.predicted.value)
        return not self.agrees and off > MOST_MISS * self.predicted.value


def level_log_sd(prediction: Prediction | None) -> float:
    """Log deviation of a rate due to effects that the model does not include; shared by all layouts.

    The held-out part, off by r in log rate, is one draw of this deviation plus the error in both intervals. By the
    method of moments its variance is r^2 minus theirs, and at least 0. Causes include lengths that drift and a shared
    machine.
    """
    if prediction is None or min(prediction.held_out.low, prediction.predicted.low) <= 0.0:
        return 0.0
    predicted, measured = prediction.predicted, prediction.held_out
    off = math.log(measured.value / predicted.value)
    known = _log_variance(predicted) + _log_variance(measured)
    return math.sqrt(max(0.0, off**2 - known))


def _log_variance(interval: Estimate) -> float:
    """Log variance of a normal distribution with this interval."""
    return (math.log(interval.high / interval.low) / (2.0 * float(ndtri((1.0 + INTERVAL_RATIO) / 2.0)))) ** 2


def compare(calibration: Calibration, judged: TrainerSteps, rng: np.random.Generator) -> Prediction | None:
    """Compare the calibration's prediction for the run's own layout with the held-out part; None if it cannot run."""
    drawn = predict(calibration, calibration.layout, form_error=False, is_reference=True).drawn_tokens_per_s
    if drawn is None or not drawn.any():
        return None
    return Prediction(
        calibrated_steps=calibration.steps,
        held_out_steps=judged.period_s.size,
        predicted=Estimate.of(drawn[drawn > 0.0]),
        held_out=ratio_of_sums(judged.response_tokens, judged.period_s, rng),
    )
