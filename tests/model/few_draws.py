"""What holds of any draws is tried with few of them and with short simulations."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from rlscope.model import calibration
from rlscope.model.forecast import actions, predict, ranking, recommend, result


@contextmanager
def few_draws(calibrations: int = 12, steps: int = 16) -> Iterator[None]:
    """While it lasts; nothing that is kept may be made in it, unless its simulations are as long as those later.

    calibrations: draws of a calibration. steps: those of a simulation.
    """
    with (
        patch.object(calibration, "DRAWS", calibrations),
        patch.object(actions, "DRAWS", 8),
        patch.object(ranking, "DRAWS", 8),
        patch.object(result, "PREDICTED_DRAWS", 12),
        patch.multiple(predict, _STEPS=steps, _MORE_STEPS=steps, _MOST_SIMULATED=3),
        patch.object(recommend, "_DRAWS_OF_A_SOURCE", 2),
    ):
        yield
