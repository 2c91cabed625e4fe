"""Check the model on the run itself: calibrate on one part of the steady state, compare with the rest.

The model never sees the part that it is compared with. Both sides have intervals: the prediction from its draws, the
achieved values from the variation between steps. Not covered: which part of the model is at fault if a prediction
misses; and the idle time of samplers that are held back: the model predicts their output, not whether they run few
requests all the time or many from time to time.
"""

import math
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from scipy.special import ndtri

from rlscope.document import computed_field
from rlscope.model.arrays import Reals
from rlscope.model.calibration import Calibration
from rlscope.model.estimate import INTERVAL_RATIO, Estimate
from rlscope.model.forecast.layouts import StepTiming
from rlscope.model.forecast.predict import predict
from rlscope.model.numerics.bootstrap import ratio_of_sums
from rlscope.model.observed import Observed
from rlscope.model.simulate.results import Ages
from rlscope.model.training.step_time import trainer_step

PredictedQuantity = Literal["tokens_per_s", "step_s", "trainer_idle_ratio", "staleness_mean"]

MOST_MISS: Final = 0.10
"""Tolerance as a share of the predicted rate, as for a replay: the model is rough if a run's halves differ by more."""
PREDICTED_DRAWS: Final = 100
"""Draws of the prediction: five lie beyond each end of the interval."""


@dataclass(frozen=True, slots=True)
class ComparedPrediction:
    """A quantity predicted from the first half of the steady state and measured over the second."""

    quantity: PredictedQuantity
    """The quantity; its unit is in its name, and a step is an optimizer step."""
    predicted: Estimate
    """The prediction."""
    held_out: Estimate
    """The measured value. Both ends are the value if no interval can be given."""

    @computed_field
    @property
    def residual_ratio(self) -> float | None:
        """`held_out` over `predicted`, less 1; None if the prediction is 0."""
        return self.held_out.value / self.predicted.value - 1.0 if self.predicted.value else None

    @computed_field
    @property
    def agrees(self) -> bool:
        """Whether the two intervals overlap."""
        return self.predicted.low <= self.held_out.high and self.held_out.low <= self.predicted.high


@dataclass(frozen=True, slots=True)
class Prediction:
    """Comparison of predicted and achieved quantities, and the number of steps on either side."""

    calibrated_steps: int
    held_out_steps: int
    compared: tuple[ComparedPrediction, ...]

    @property
    def rate(self) -> ComparedPrediction | None:
        """Trained tokens per second; None if they were not compared."""
        return next((each for each in self.compared if each.quantity == "tokens_per_s"), None)

    @property
    def misses(self) -> bool:
        """Whether the achieved rate is off by more than MOST_MISS and outside both intervals."""
        rate = self.rate
        if rate is None or rate.agrees:
            return False
        return abs(rate.held_out.value - rate.predicted.value) > MOST_MISS * rate.predicted.value


def level_log_sd(prediction: Prediction | None) -> float:
    """Log deviation of a rate due to effects that the model does not include; shared by all layouts.

    The held-out part, off by r in log rate, is one draw of this deviation plus the error in both intervals. By the
    method of moments its variance is r^2 minus theirs, and at least 0. Causes include lengths that drift and a shared
    machine.
    """
    rate = None if prediction is None else prediction.rate
    if rate is None or min(rate.held_out.low, rate.predicted.low) <= 0.0:
        return 0.0
    predicted, achieved = rate.predicted, rate.held_out
    off = math.log(achieved.value / predicted.value)
    known = _log_variance(predicted) + _log_variance(achieved)
    return math.sqrt(max(0.0, off**2 - known))


def _log_variance(interval: Estimate) -> float:
    """Log variance of a normal distribution with this interval."""
    return (math.log(interval.high / interval.low) / (2.0 * float(ndtri((1.0 + INTERVAL_RATIO) / 2.0)))) ** 2


def compare(calibration: Calibration, judged: Observed, rng: np.random.Generator) -> Prediction | None:
    """Compare the calibration's prediction for the run's own layout with the held-out part; None if it cannot run."""
    calibration = replace(calibration, draws=calibration.draws[:PREDICTED_DRAWS])
    forecast = predict(calibration, calibration.layout, form_error=False, is_reference=True)
    if forecast.timing is None or forecast.drawn_tokens_per_s is None or not forecast.drawn_tokens_per_s.any():
        return None
    achieved, spreads = _achieved(judged, rng), _spreads(calibration, forecast.timing, forecast.drawn_tokens_per_s)
    if forecast.staleness is not None:
        spreads["staleness_mean"] = Estimate.exactly(forecast.staleness.token_mean)
    compared = [ComparedPrediction(quantity, spread, achieved[quantity]) for quantity, spread in spreads.items()]
    return Prediction(
        calibrated_steps=calibration.steps,
        held_out_steps=judged.steps.period_s.size,
        compared=tuple(each for each in compared if each.quantity != "staleness_mean" or judged.staleness),
    )


def _spreads(calibration: Calibration, timing: StepTiming, drawn: Reals) -> dict[PredictedQuantity, Estimate]:
    """Predicted quantities; drawn: trained tokens per second in every draw that can run."""
    runs, gpus = drawn > 0.0, float(calibration.layout.trainer_gpus)
    worked = (trainer_step(each.trainer, each.workload, each.update, gpus) for each in calibration.draws)
    work_s, step_s = np.array([float(each.work_s) for each in worked])[runs], timing.step_tokens / drawn[runs]
    # The draws move the idle share of the best estimate, which a simulation knows better than the closed form.
    idle_ratio = 1.0 - work_s / step_s
    idle_ratio += timing.trainer_idle_ratio - float(np.median(idle_ratio))
    return {
        "tokens_per_s": Estimate.of(drawn[runs]),
        "step_s": Estimate.of(step_s / calibration.steps_per_version),
        "trainer_idle_ratio": Estimate.of(np.clip(idle_ratio, 0.0, 1.0)),
    }


def _achieved(judged: Observed, rng: np.random.Generator) -> dict[PredictedQuantity, Estimate]:
    steps = judged.steps
    return {
        "tokens_per_s": ratio_of_sums(steps.response_tokens, steps.period_s, rng),
        "step_s": ratio_of_sums(steps.period_s, np.ones_like(steps.period_s), rng),
        "trainer_idle_ratio": ratio_of_sums(steps.wait_s + steps.publish_s, steps.period_s, rng),
        "staleness_mean": Estimate.exactly(Ages(judged.staleness).mean if judged.staleness else 0.0),
    }
