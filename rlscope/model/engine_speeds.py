"""The speed of each engine, against the decode curve that all of them share.

Equal engines need only the curve. Where some are much slower (older GPUs, a throttled host, a faulty link),
each has its own time factor, and a layout is predicted with the engines that it keeps. Not covered: engines that become
slower in the middle of a run.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from rlscope.model.arrays import Flags, Reals
from rlscope.model.decode.curves import RooflineCurve
from rlscope.model.engine_cost import curve_seconds
from rlscope.model.observed import PassCosts

LEAST_ENGINES_COMPARED: Final = 3
"""Minimum number of engines to name slow ones: of two engines, neither can be called slow."""
STRAGGLES_RATIO: Final = 1.25
"""Slowness over the median from which an engine is a straggler: equal hardware differs by less. Such an engine loses at
least a fifth of its tokens per second."""
_STRAYS_RATIO: Final = 0.25
"""Share of the engines at each end of the speeds that do not count for the usual one."""


def engine_slowness(passes: PassCosts, curve: RooflineCurve) -> Reals:
    """Time of each engine's decode-only passes over the curve's, by engine number; NaN for an engine without any."""
    decodes = (passes.decode_tokens > 0) & ~passes.prefills & (passes.passes > 0)
    engines = int(passes.engine.max(initial=0)) + 1
    spent_s, should_s = (
        np.bincount(passes.engine[decodes], seconds[decodes], engines)
        for seconds in (passes.busy_s, curve_seconds(passes, curve))
    )
    return np.divide(spent_s, should_s, out=np.full(engines, np.nan), where=should_s > 0.0)


def unequal_engines(passes: PassCosts, curve: RooflineCurve) -> tuple[float, ...] | None:
    """Time factor of each engine, by engine number; None if the slowest is about as fast as the fastest.

    Engines that only prefilled have the usual speed. Every engine is busy for about as long, so the mean of
    1 / factor is the speed of the curve: 1. Own derivation.
    """
    slowness = engine_slowness(passes, curve)
    known = slowness[np.isfinite(slowness)]
    if known.size == 0 or known.max() < STRAGGLES_RATIO * known.min():
        return None
    factors = np.where(np.isfinite(slowness), slowness, _usual(known))
    return tuple((factors * (1.0 / factors).mean()).tolist())


def evened_passes(passes: PassCosts, slowness: Sequence[float]) -> PassCosts:
    """Passes as engines of the mean speed would have run them, so that one curve fits them all."""
    own = np.asarray(slowness)[passes.engine]
    return replace(passes, busy_s=passes.busy_s / own, pass_p50_s=passes.pass_p50_s / own)


def slowness_at(slowness: tuple[float, ...] | None, engines: int) -> tuple[float, ...] | None:
    """Factors of a layout with `engines` engines: the first ones stay, and added ones have the usual speed."""
    if slowness is None:
        return None
    return (*slowness, *[_usual(slowness)] * (engines - len(slowness)))[:engines]


def _usual(slowness: Sequence[float] | Reals) -> float:
    """Factor of the mean speed without the slowest and the fastest quarter of the engines.

    One straggler does not slow down engines that the run does not have yet; an old half of the fleet does.
    """
    # scipy.stats has this mean as trim_mean, but importing it takes a quarter of a second of every analysis.
    speeds = 1.0 / np.asarray(slowness)
    strays = int(_STRAYS_RATIO * speeds.size)
    middle = np.partition(speeds, (strays, speeds.size - strays - 1))[strays : speeds.size - strays]
    return 1.0 / float(middle.mean())


def speed_without_stragglers(passes: PassCosts, curve: RooflineCurve) -> float:
    """Passes per second of all engines if stragglers ran like the median engine, over the actual rate; at least 1.

    Engines share the work of a step, so together they make sum(1 / slowness). Own derivation.
    """
    slowness = engine_slowness(passes, curve)
    slow = _straggles(slowness)
    if not slow.any():
        return 1.0
    kept_up = np.where(slow, np.nanmedian(slowness), slowness)
    return float(np.nansum(1.0 / kept_up) / np.nansum(1.0 / slowness))


def slow_engine_names(passes: PassCosts, curve: RooflineCurve) -> tuple[str, ...]:
    """Names of the engines that `speed_without_stragglers` replaces; empty if engines have no names."""
    slow = _straggles(engine_slowness(passes, curve))
    return tuple(name for name, is_slow in zip(passes.engine_names, slow, strict=False) if is_slow)


def _straggles(slowness: Reals) -> Flags:
    """Mark the engines that are much slower than the median one; none of fewer than LEAST_ENGINES_COMPARED."""
    if np.isfinite(slowness).sum() < LEAST_ENGINES_COMPARED:
        return np.zeros(slowness.size, dtype=np.bool_)
    return slowness >= STRAGGLES_RATIO * np.nanmedian(slowness)
