"""Of the time spent decoding, how much a fuller batch would have saved.

A pass over few requests makes few tokens in hardly less time. The efficient batch is the smallest one, up to today's
limit, that comes within EFFICIENT_RATIO of the rate at the limit; what passes below it take more per token is time
lost to underfilled batches. Not covered: what a higher limit would bring, which the forecasts say.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from rlscope.model.calibration import Calibration
from rlscope.model.observed import Observed
from rlscope.model.system import Reals

EFFICIENT_RATIO: Final = 0.90
"""Filling a batch further gains less than a tenth: not worth its staleness and its KV."""


@dataclass(frozen=True, slots=True, eq=False)
class BatchEfficiency:
    """How well the batches of a stretch used the time of their passes."""

    efficient_running: int
    """Requests of the smallest efficient batch."""
    efficient_time_ratio: float
    """Share of the decoding time, 0..1, that the same tokens would have taken in efficient batches."""
    used_ratios: Reals
    """That share of a single pass over 1, 2, ... efficient_running requests."""

    def time_ratio(self, running: npt.ArrayLike, busy_s: npt.ArrayLike) -> float:
        """That share of passes over `running` requests each, which took `busy_s` seconds each, not all of them none."""
        at = np.clip(np.asarray(running, dtype=np.int64), 1, self.efficient_running) - 1
        return float(np.average(self.used_ratios[at], weights=np.asarray(busy_s, dtype=np.float64)))


def batch_efficiency(calibration: Calibration, observed: Observed) -> BatchEfficiency | None:
    """Split the decoding time of the stretch by the fitted curve; None where nothing decoded."""
    limit = calibration.layout.running_per_engine
    context_tokens = _context_tokens(observed)
    batches = np.arange(1, limit + 1, dtype=np.float64)
    rates = batches / _pass_s(calibration, batches, context_tokens)
    efficient = int(np.argmax(rates >= EFFICIENT_RATIO * rates.max())) + 1
    passes = observed.passes
    decodes = (passes.decode_tokens > 0) & (passes.busy_s > 0.0)
    if not decodes.any():
        return None
    used_ratios = np.minimum(rates[:efficient] / rates[efficient - 1], 1.0)
    whole = BatchEfficiency(efficient, 1.0, used_ratios)
    return replace(whole, efficient_time_ratio=whole.time_ratio(passes.running[decodes], passes.busy_s[decodes]))


def _context_tokens(observed: Observed) -> float:
    """Resident tokens of a running request, mean over passes; 0 where not recorded."""
    passes = observed.passes
    known = np.isfinite(passes.kv_tokens) & (passes.running > 0)
    if not known.any():
        return 0.0
    return float(np.average(passes.kv_tokens[known] / passes.running[known], weights=passes.passes[known]))


def _pass_s(calibration: Calibration, running: Reals, context_tokens: float) -> Reals:
    curve = calibration.system.engine.curve
    return curve.pass_s(running) + curve.kv_s_per_token * context_tokens * running
