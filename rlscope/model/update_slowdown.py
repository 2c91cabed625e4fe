"""Slowdown of the engines' passes while weights are moved to them, and what it costs per version.

An update that does not pause the engines is not free: it takes bandwidth and kernels from their passes. Those passes
are compared with the others on one decode curve, so batches and contexts may differ. Not covered: a slowdown of all of
the run, which no other passes reveal.
"""

from dataclasses import replace
from typing import Final

from rlscope.model.decode.curves import RooflineCurve
from rlscope.model.engine_cost import curve_seconds
from rlscope.model.observed import Observed, PassCosts

SLOWS_RATIO: Final = 1.1
"""Time of passes during updates over that of the others from which updates slow them: batches and contexts that differ
explain less."""
FEWEST_ROWS_DURING: Final = 20
"""Minimum rows of passes during updates, and of others: their ratio is then known to 3% if a row is known to 10%."""


def slowdown_during_updates(passes: PassCosts, curve: RooflineCurve) -> float:
    """Time of decode-only passes during updates over that of the others, each over the curve's; 1 if not slower."""
    decodes = (passes.decode_tokens > 0) & ~passes.prefills & (passes.passes > 0)
    during, others = decodes & passes.in_update, decodes & ~passes.in_update
    if min(passes.rows[during].sum(), passes.rows[others].sum()) < FEWEST_ROWS_DURING:
        return 1.0
    should_s = curve_seconds(passes, curve)
    during_ratio, others_ratio = (passes.busy_s[each].sum() / should_s[each].sum() for each in (during, others))
    slowdown = float(during_ratio / others_ratio)
    return slowdown if slowdown >= SLOWS_RATIO else 1.0


def without_slowdown(observed: Observed, slowdown: float) -> Observed:
    """Return the run with passes during updates as fast as the others, and the seconds that updates cost instead."""
    passes = observed.passes
    factors = 1.0 + (slowdown - 1.0) * passes.in_update
    even = replace(passes, busy_s=passes.busy_s / factors, pass_p50_s=passes.pass_p50_s / factors)
    lost_s = float((passes.busy_s - even.busy_s).sum()) / (observed.publications * observed.engines)
    return replace(observed, passes=even, update_slowdown_s=lost_s)
