"""How much faster the engines would be together if those that straggle kept up with the others.

An engine's slowness is the time of its decode passes over what the fitted curve says of passes over as many requests
and resident tokens, so a small batch is no slowness. Not covered: why an engine is slow, and GPUs within one engine.
"""

from typing import Final

import numpy as np

from rlscope.model.observed import PassCosts
from rlscope.model.system import DecodeCurve, Reals

LEAST_ENGINES: Final = 3
"""Two cannot tell who is slow."""
STRAGGLES_RATIO: Final = 1.25
"""Of the median slowness, and beyond: equal hardware differs by less. A fifth of the tokens per second is then lost."""


def speed_without_stragglers(passes: PassCosts, curve: DecodeCurve) -> float:
    """Passes per second of all engines, the stragglers replaced by the median engine, over what it was; at least 1.

    Engines share the work of a step, so together they make sum(1 / slowness). Own derivation.
    """
    slowness = engine_slowness(passes, curve)
    if slowness.size < LEAST_ENGINES:
        return 1.0
    median = float(np.median(slowness))
    kept_up = np.where(slowness >= STRAGGLES_RATIO * median, median, slowness)
    return float((1.0 / kept_up).sum() / (1.0 / slowness).sum())


def engine_slowness(passes: PassCosts, curve: DecodeCurve) -> Reals:
    """Of each engine with passes that only decode: their time over the curve's, ordered by the engine's number."""
    decodes = (passes.decode_tokens > 0) & ~passes.prefills & (passes.passes > 0)
    kv_s = curve.kv_s_per_token * np.nan_to_num(passes.kv_tokens)
    expected_s = passes.passes * (curve.pass_s(np.maximum(passes.running, 1).astype(np.float64)) + kv_s)
    engines = np.unique(passes.engine[decodes])
    spent_s = np.array([passes.busy_s[decodes & (passes.engine == engine)].sum() for engine in engines])
    should_s = np.array([expected_s[decodes & (passes.engine == engine)].sum() for engine in engines])
    return spent_s / should_s
