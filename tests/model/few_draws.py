"""What holds of any draws is tried with few of them and with short simulations."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from rlscope.model import calibration
from rlscope.model.forecast import actions, predict, ranking, recommend, result


@contextmanager
def few_draws(calibrations: int = 12, steps: int = 16) -> Iterator[None]:
    """While it lasts; nothing that is kept may be made in it, unless its simulations are as long as those later.

    calibrations: draws of a calibration. steps: those of a simulation.
    """
    with ExitStack() as patched:
        for module, name, value in (
            (calibration, "DRAWS", calibrations),
            (actions, "DRAWS", 8),
            (ranking, "DRAWS", 8),
            (result, "PREDICTED_DRAWS", 12),
            (predict, "_STEPS", steps),
            (predict, "_MORE_STEPS", steps),
            (predict, "_MOST_SIMULATED", 3),
            (recommend, "_DRAWS_OF_A_SOURCE", 2),
        ):
            patched.enter_context(patch.object(module, name, value))
        yield
