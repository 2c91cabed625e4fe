"""Event simulation of one layout: exact in its own terms, and reproducible from one seed.

`simulate` is the whole interface. Time jumps from one change of a batch to the next, never token by token.
"""

from rlscope.model.simulate.loop import simulate
from rlscope.model.simulate.results import NeverTrains, Simulated
from rlscope.model.simulate.settings import Settings

__all__ = ["NeverTrains", "Settings", "Simulated", "simulate"]
