"""Whether a layout stays the better one when the model takes another form that fits the run about as well.

The draws vary the parameters of one form of the decode curve and the exponent of training; here the form itself is
varied, and training scales as the ends of the draws have it, or perfectly where nothing was seen of that. Not
covered: parameters away from the most probable ones of a form, and what only the event simulator sees, by which all
forms are moved alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal

from rlscope.model.calibration import Calibration, engine_of
from rlscope.model.decode_fit import forms_as_good
from rlscope.model.decode_prior import HardwarePrior
from rlscope.model.observed import Observed
from rlscope.model.operating_point import rates_of
from rlscope.model.pass_points import prefill_points
from rlscope.model.recommendation import Recommendation
from rlscope.model.system import Engine, Layout, Trainer
from rlscope.model.trainer_step import at_pace_of, trainer_step

Contradiction = Literal["decode_form", "training_form"]
"""decode_form: another form of the decode curve says that today's layout is the faster one. training_form: training
that scales otherwise does."""

_PERFECT: Final = 1.0
"""Exponent with which every trainer GPU trains as many tokens as today."""
_ENDS: Final = (0.05, 0.95)
"""Quantiles of the draws, by how fast they train in the layout."""


def contradiction(
    calibration: Calibration, observed: Observed, prior: HardwarePrior | None, advice: Recommendation
) -> Contradiction | None:
    """The part of the model of which another form says that the advised layout is no faster than today's.

    observed: the stretch that was calibrated on. None where every form agrees.
    """
    layout, own = advice.best.layout, calibration.system.engine
    moved = _moved_ratio(calibration, layout, advice.gain_ratio.median)
    curves = forms_as_good(calibration.curve, prior, prefill_points(observed.passes))
    engines = [engine_of(observed, curve) for curve in curves]
    trainers = _trainers(calibration, layout)
    tried: Mapping[Contradiction, tuple[Sequence[Engine], Sequence[Trainer]]] = {
        "training_form": ([own], trainers),
        "decode_form": (engines, [calibration.system.trainer, *trainers]),
    }
    for part, (of_engines, of_trainers) in tried.items():
        gains = [_gain(calibration, layout, engine, each) for engine in of_engines for each in of_trainers]
        if any(gain * moved <= 1.0 for gain in gains):
            return part
    return None


def _trainers(calibration: Calibration, layout: Layout) -> list[Trainer]:
    """As fast as the best estimate today; each exponent with the overhead of its draw, which it goes with."""
    system = calibration.system
    workload, update = system.workload, system.update
    drawn = [at_pace_of(draw.trainer, system.trainer, workload) for draw in calibration.draws]
    drawn.sort(key=lambda each: float(trainer_step(each, workload, update, layout.trainer_gpus).compute_s))
    ends = [drawn[round(end * (len(drawn) - 1))] for end in _ENDS]
    seen = calibration.training.scaling_seen_at
    return ends if seen else [replace(system.trainer, scaling_exponent=_PERFECT), *ends]


def _moved_ratio(calibration: Calibration, layout: Layout, gain_ratio: float) -> float:
    """What the forecasts say of the layout over what the closed form of the best estimate says."""
    system = calibration.system
    plain = _gain(calibration, layout, system.engine, system.trainer)
    return (1.0 + gain_ratio) / plain if plain else 1.0


def _gain(calibration: Calibration, layout: Layout, engine: Engine, trainer: Trainer) -> float:
    """The layout's rate over today's; 0 where either cannot run."""
    system = replace(calibration.system, engine=engine, trainer=trainer)
    today, other = rates_of(calibration, system, (calibration.layout, layout)).tolist()
    return other / today if today else 0.0
